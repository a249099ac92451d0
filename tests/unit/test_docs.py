# SPDX-License-Identifier: Apache-2.0
"""README and docs say what is true: their Python runs, their commands work, their links lead
somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from unit import docs_gpu
from unit.docs_machine import House, simulated

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def needs_daemon(page: Path) -> bool:
    """Whether the page's blocks talk to one: they run in test_pages_with_a_daemon."""
    return any(word in page.read_text() for word in ("\nsacctl ", "libsac.connect("))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if not needs_daemon(p)], ids=lambda p: p.name
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Nothing is given: a page brings what its examples need.
    scope: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block.replace("/tmp/", f"{tmp_path}/"), page.name, "exec"), scope)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if docs_gpu.has_examples(p)], ids=lambda p: p.name
)
def test_python_blocks_for_a_gpu(page: Path, tmp_path: Path) -> None:
    """On the CUDA for tests; tests/gpu/test_docs_gpu.py runs them on a GPU."""
    docs_gpu.run(page, tmp_path, real=False)


@pytest.mark.parametrize("line", [x for p in PAGES for x in docs_gpu.shell_lines(p)])
def test_commands_for_a_gpu(line: str) -> None:
    docs_gpu.look_at_command(line)


def test_readme_example_twice_in_one_process() -> None:
    example = blocks(ROOT / "README.md", "python")[0]
    seen = []
    for _ in range(2):
        scope: dict[str, np.ndarray] = {}
        exec(compile(example, "README.md", "exec"), scope)
        seen.append(scope["rows"].copy())
    assert seen[0].shape == (4, 1152)
    assert seen[0].dtype == np.uint8
    assert (seen[0] == seen[1]).all()
    assert (seen[0][0] == seen[0][3]).all()


def test_readme_example_in_two_processes() -> None:
    example = blocks(ROOT / "README.md", "python")[0] + "\nprint(rows.tobytes().hex())\n"
    runs = [
        subprocess.run(
            [sys.executable, "-P", "-c", example], capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.strip()) == 4 * 1152 * 2


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            found += [(page.name, line) for line in lines(block)]
    return found


def lines(block: str) -> list[str]:
    joined = block.replace("\\\n", " ")
    return [line.split("  #")[0].strip() for line in joined.splitlines() if line.strip()]


# What a test of its own runs, and where.
ELSEWHERE = {
    "pip install .": "tests/unit/test_packaging.py",
    ".ci/run": "CI itself",
}


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands(page: str, line: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if line in ELSEWHERE or line.startswith("sacctl "):
        return
    env = os.environ | {"PYTHONSAFEPATH": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    if re.fullmatch(r"make( [a-zA-Z_-]+(=\S+)?)*", line):
        # The targets themselves run this test: here only that make knows what to do.
        subprocess.run(
            [*line.split(), "-n"], cwd=ROOT, env=env, check=True, capture_output=True
        )
        return
    work = (
        tmp_path_factory.getbasetemp() / "commands"
    )  # one page's commands build on each other
    work.mkdir(exist_ok=True)
    for name in ("tests", "libsac", "benchmarks"):
        link = work / name
        if not link.exists():
            shutil.copytree(
                ROOT / name, link, ignore=shutil.ignore_patterns("__pycache__", "core", "*.so*")
            )
    done = subprocess.run(
        ["bash", "-c", line], cwd=work, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{page}: {line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", [p for p in PAGES if needs_daemon(p)], ids=lambda p: p.name)
def test_pages_with_a_daemon(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's commands and Python, in its order, with a daemon of their own."""
    config, socket = tmp_path / "sac.toml", tmp_path / "run" / "sacd.sock"
    config.write_text(f"daemon.run_dir = '{tmp_path}/run'\npools.dir = '{tmp_path}/pools.d'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAC_CONFIG", str(config))
    monkeypatch.setenv("SAC_SOCKET", str(socket))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with (tmp_path / "log").open("wb") as log:
        daemon = subprocess.Popen(["sacctl", "daemon", "run"], stderr=log, stdout=log)
    try:
        for _ in range(300):
            if socket.exists():
                break
            time.sleep(0.1)
        scope: dict[str, object] = {}
        for language, block in re.findall(
            r"^```(sh|python)\n(.*?)^```", page.read_text(), re.M | re.S
        ):
            if language == "python":
                code = compile(block.replace("/tmp/", f"{tmp_path}/"), page.name, "exec")
                exec(code, scope)
                continue
            for line in lines(block):
                if line.startswith("sacctl ") and line != "sacctl daemon run &":
                    run_sacctl(page.name, line, tmp_path)
    finally:
        daemon.terminate()
        assert daemon.wait(30) == 0, (tmp_path / "log").read_text()


def run_sacctl(page: str, line: str, folder: Path) -> None:
    # Not where the pools of this machine are.
    if re.match(r"sacctl pool create .*--emulate", line) and "--path" not in line:
        line += f" --path {folder}/pool"
    for _ in range(100):
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode not in (3, 30):  # the daemon is not there yet
            break
        time.sleep(0.1)
    assert done.returncode == 0, f"{page}: {line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", [p for p in PAGES if simulated(p)], ids=lambda p: p.name)
def test_commands_on_simulated_machines(page: Path, tmp_path: Path) -> None:
    for number, group in enumerate(simulated(page)):
        with House(tmp_path / str(number), group[0].words) as house:
            for line, code in (one for block in group for one in block.lines()):
                done = house.run(line)
                said = f"{page.name}: {line}\n{done.stdout}{done.stderr}"
                assert done.returncode == code, said


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
