# SPDX-License-Identifier: Apache-2.0
"""How `python -m libsac.demo.llm` ends when something is wrong: one line, never a traceback.

Needs no package of the extra `llm`.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from libsac.demo import llm, llm_options

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_options, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_packages")
def test_options_and_text_are_checked_before_packages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--tokens", "--budget", "--recent"):
        for value in ("0", "-1", "x"):
            with pytest.raises(SystemExit) as stopped:
                llm.main([option, value])
            assert stopped.value.code == 2
            assert f"{value} is not a whole number" in capsys.readouterr().err
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    binary.write_bytes(b"\xff\xfe\x00")
    empty.touch()
    for path in (Path("/no/such/file"), tmp_path, binary, empty):
        assert llm.main(["--text", str(path)]) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert str(path) in said
    with pytest.raises(llm.DemoError, match="at least one token"):
        llm.run(llm.Options(tokens=0))


def test_an_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: llm.Options) -> llm.Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm, "run", interrupted)
    assert llm.main([]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.usefixtures("no_packages")
def test_a_package_that_does_not_load_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llm_options, "missing_modules", list)
    monkeypatch.setitem(sys.modules, "libsac.demo.llm_model", None)
    assert llm.main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: a package of the demo does not load")
    assert said.count("\n") == 1


def test_a_closed_pipe_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    def write(options: llm.Options) -> llm.Report:
        print("a figure")
        raise AssertionError

    monkeypatch.setattr(llm, "run", write)
    monkeypatch.setattr(sys, "stdout", Closed())
    assert llm.main([]) == 1
    assert capsys.readouterr().err == "error: cannot write the output: Broken pipe\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_broken_streams_end_without_a_traceback(unbuffered: str, tmp_path: Path) -> None:
    """Both streams, as in `2>&1 | head -0`; buffered or not, Python's own end included."""
    command = [sys.executable, "-P", "-m", "libsac.demo.llm"]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        for arguments in (["--text", "/no/such/file"], ["--help"]):
            done = subprocess.run(
                [*command, *arguments],
                cwd=tmp_path,
                env=env,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            assert "Traceback" not in done.stderr
            assert "Exception ignored" not in done.stderr
            assert done.stderr.count("\n") <= 1
        both = subprocess.run(
            [*command, "--text", "/no/such/file"],
            cwd=tmp_path,
            env=env,
            stdout=full,
            stderr=full,
            check=False,
        )
        assert both.returncode == 1


def test_a_missing_package_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        llm_options, "find_spec", lambda name: None if name == "gguf" else object()
    )
    assert llm.main([]) == 1
    talk = capsys.readouterr()
    assert talk.out == ""
    assert "not installed: gguf" in talk.err
    assert talk.err.startswith("error: ")
    assert talk.err.count("\n") == 1
    assert "make demo-llm" in talk.err
    documented = (DOCS / "dependencies.md").read_text().splitlines()
    for line in llm.INSTALL:
        assert line in talk.err
        assert line in documented
