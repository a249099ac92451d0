"""What is built and shipped: the library's symbols, flags for C users, sdist and wheel."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import libsac.__main__ as command
from libsac.gpu import kernel_sources

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "c_example"
WHYS = ("No space left on device", "Broken pipe")
LINE = re.compile(r"libsac \S+: 6 pages, 96 tokens, 47 rows gathered, every byte as written\n")


def run(
    *words: str | Path, cwd: Path, code: int = 0, env: Mapping[str, str] | None = None
) -> str:
    """Run a program with the installed libsac; its stdout. Fails with all its output."""
    result = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, "PYTHONSAFEPATH": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    said = f"{words}\n{result.stdout}\n{result.stderr}"
    assert result.returncode == code, said
    return result.stdout if code == 0 else result.stdout + result.stderr


def tool(name: str) -> str:
    """A program beside this Python, else on PATH. Its absence is a failure, no skip."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is missing: apt-get install {name}, or run make test-python"
    return found


def header_version() -> str:
    text = (ROOT / "libsac" / "include" / "sac.h").read_text()
    found = re.search(r'#define SAC_VERSION "([^"]+)"', text)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def installed() -> Path:
    """The folder of the installed package, which must not be the source tree."""
    folder = command.installation()
    assert folder != ROOT / "libsac", "run with PYTHONSAFEPATH=1, as make test-python does"
    return folder


# ------------------------------------------------------------------- python -m libsac


def test_flags_name_existing_files(installed: Path, tmp_path: Path) -> None:
    flags = run(sys.executable, "-m", "libsac", "--cflags", "--libs", cwd=tmp_path)
    include, library, rpath, name = shlex.split(flags)
    assert Path(include.removeprefix("-I"), "sac.h").is_file()
    assert Path(library.removeprefix("-L"), "libsac.so").is_file()
    assert rpath == f"-Wl,-rpath,{library.removeprefix('-L')}"
    assert name == "-lsac"
    path = run(sys.executable, "-m", "libsac", "--library", cwd=tmp_path)
    assert Path(path.strip()) == installed / "lib" / "libsac.so.0"


def test_version_is_the_headers(tmp_path: Path) -> None:
    said = run(sys.executable, "-m", "libsac", "--version", cwd=tmp_path)
    assert said.strip() == header_version() == importlib.metadata.version("libsac")


def test_asking_nothing_shows_the_help(tmp_path: Path) -> None:
    said = run(sys.executable, "-m", "libsac", cwd=tmp_path, code=2)
    assert "--cflags" in said
    assert "--cfla" in run(sys.executable, "-m", "libsac", "--cfla", cwd=tmp_path, code=2)


def test_says_so_when_the_module_is_not_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert command.main(["--libs"]) == 1
    assert "pip install ." in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("redirection", ["> /dev/full", "| head -0", "2>&1 | head -0"])
def test_output_that_cannot_be_written_is_one_line(
    unbuffered: str, redirection: str, tmp_path: Path
) -> None:
    script = f"{shlex.quote(sys.executable)} -m libsac --cflags --version {redirection}"
    env = {"PYTHONUNBUFFERED": unbuffered}
    said = run("bash", "-c", f"({script}) 2>&1; true", cwd=tmp_path, env=env)
    assert said in ("", *(f"error: cannot write to stdout: {why}\n" for why in WHYS))
    if redirection == "> /dev/full":
        assert said
        assert "space" in run("bash", "-c", script, cwd=tmp_path, env=env, code=1)


# ------------------------------------------------------------------------- the library


def test_exports_are_the_header_and_nothing_else(installed: Path, tmp_path: Path) -> None:
    headers = ("sac.h", "sac_gpu.h", "sac_server.h")
    header = "".join((installed / "include" / name).read_text() for name in headers)
    declared = set(re.findall(r"^SAC_API\b[^;{]*?\b(sac_\w+)\(", header, re.MULTILINE))
    assert {"sac_version", "sac_put_commit", "sac_seq_view", "sac_hot_resolve"} <= declared
    library = installed / "lib" / "libsac.so.0"
    lines = run(tool("nm"), "-D", "--defined-only", library, cwd=tmp_path).splitlines()
    exported = {line.split()[-1] for line in lines}
    assert exported == {f"{name}@@SAC_0.1" for name in declared} | {"SAC_0.1"}


def test_names_and_hardening(installed: Path, tmp_path: Path) -> None:
    library = installed / "lib" / "libsac.so.0"
    dynamic = run(tool("readelf"), "-Wdl", library, cwd=tmp_path)
    assert re.search(r"\(SONAME\).*\[libsac\.so\.0\]", dynamic)
    assert "BIND_NOW" in dynamic
    assert "GNU_RELRO" in dynamic
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic)
    assert not re.search(r"GNU_STACK.*RWE", dynamic)
    spec = importlib.util.find_spec("libsac._core")
    assert spec is not None
    assert spec.origin is not None
    module = run(tool("readelf"), "-Wd", spec.origin, cwd=tmp_path)
    assert re.search(r"\(NEEDED\).*\[libsac\.so\.0\]", module)
    assert re.search(r"\(RUNPATH\).*\[\$ORIGIN/lib\]", module)


def test_library_carries_the_kernels_as_they_are_in_the_sources() -> None:
    folder = ROOT / "libsac" / "hotbuffer" / "kernels"
    kept = {
        p.name: p.read_text() for p in folder.iterdir() if p.suffix in (".cu", ".cuh", ".h")
    }
    assert {"hot.cu", "put.cu", "gather.cu", "args.h"} <= kept.keys()
    assert kernel_sources() == kept


def test_no_stop_points_are_shipped(installed: Path) -> None:
    assert b"SAC_STOP_AT" not in (installed / "lib" / "libsac.so.0").read_bytes()


# ------------------------------------------------------------------------ C programs


def test_c_example_with_one_command(installed: Path, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "example.c", tmp_path)
    python = shlex.quote(sys.executable)
    run(
        "sh",
        "-c",
        "cc -std=c11 -Wall -Wextra -Wpedantic -Werror example.c "
        f"$({python} -m libsac --cflags --libs) -o example",
        cwd=tmp_path,
    )
    assert LINE.fullmatch(run(tmp_path / "example", cwd=tmp_path))
    needed = run(tool("readelf"), "-Wd", "example", cwd=tmp_path)
    assert re.search(r"\(NEEDED\).*\[libsac\.so\.0\]", needed)


def test_c_example_with_the_path_of_libsac_so(installed: Path, tmp_path: Path) -> None:
    library = installed / "lib"
    run(
        "cc",
        EXAMPLE / "example.c",
        f"-I{installed / 'include'}",
        library / "libsac.so",
        f"-L{library}",
        f"-Wl,-rpath,{library}",
        "-oexample",
        cwd=tmp_path,
    )
    assert LINE.fullmatch(run(tmp_path / "example", cwd=tmp_path))


def test_c_example_with_cmake(installed: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(EXAMPLE, source)
    cmake = tool("cmake")
    python = f"-DPython_EXECUTABLE={sys.executable}"
    run(cmake, "-S", source, "-B", "build", python, cwd=tmp_path)
    run(cmake, "--build", "build", cwd=tmp_path)
    assert LINE.fullmatch(run(tmp_path / "build" / "example", cwd=tmp_path))


def test_headers_are_fit_for_c_and_older_cxx(installed: Path, tmp_path: Path) -> None:
    for compiler, standard, name in (("cc", "c99", "a.c"), ("c++", "c++11", "a.cpp")):
        source = tmp_path / name
        source.write_text(
            '#include "sac_gpu.h"\n#include "sac_server.h"\n'
            "int size(void) { return sizeof(sac_layout); }\n"
        )
        flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        include = f"-I{installed / 'include'}"
        run(compiler, *flags, include, "-fsyntax-only", source, cwd=tmp_path)


# --------------------------------------------------------------------- sdist and wheel


def tree(folder: str, *patterns: str) -> set[str]:
    """Files of the source tree under folder, as posix paths relative to the root."""
    found = {path for pattern in patterns for path in (ROOT / folder).rglob(pattern)}
    kept = {path for path in found if path.is_file() and "__pycache__" not in path.parts}
    return {path.relative_to(ROOT).as_posix() for path in kept}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist of the source tree, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    arguments = ("-m", "build", "--no-isolation", "--sdist", "--outdir", folder, ROOT)
    run(sys.executable, *arguments, cwd=folder)
    (archive,) = folder.glob("libsac-*.tar.gz")
    with tarfile.open(archive) as tar:
        assert not [member.name for member in tar if member.issym() or member.islnk()]
    run(tool("tar"), "-xzf", archive, cwd=folder)
    return folder / archive.name.removesuffix(".tar.gz")


def test_sdist_holds_all_sources(sdist: Path) -> None:
    assert sdist.name == f"libsac-{header_version()}"
    wanted = {"CMakeLists.txt", "LICENSE", "Makefile", "NOTICE", "README.md", "pyproject.toml"}
    wanted |= tree("libsac", "*") | tree("sacctl", "*") | tree("cmake", "*")
    wanted |= tree("docs", "*.md", "*.1")
    wanted |= tree("tests", "*.py", "*.cpp", "*.hpp", "*.c", "*.sh", "CMakeLists.txt")
    assert {"libsac/hotbuffer/kernels/hot.cu", "libsac/hotbuffer/kernels/plan.cuh"} <= wanted
    wanted = {name for name in wanted if not name.endswith(".so")}
    files = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*") if path.is_file()}
    assert not wanted - files
    unwanted = re.compile(r"^(build|dist|\.venv|\.git)/|\.pyc$|\.so(\.\d+)?$|_cache/")
    assert not [name for name in files if unwanted.search(name)]


@pytest.mark.timeout(900)
def test_wheel_from_the_sdist(sdist: Path, tmp_path: Path) -> None:
    """Built without optimisation, to be quick; the contents are the same."""
    options = ["--config-settings=cmake.build-type=Debug", "--no-build-isolation", "--no-deps"]
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        *options,
        sdist,
        cwd=tmp_path,
        env={"PATH": beside},
    )
    (wheel,) = tmp_path.glob("libsac-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [i.filename for i in archive.infolist() if i.external_attr >> 28 == 0xA]
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        info = {name.split("/", 1)[1] for name in archive.namelist() if ".dist-info/" in name}
        script = archive.read("libsac/lib/libsac.so").decode()
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        fields = archive.read(metadata).decode()
        (scripts,) = (n for n in archive.namelist() if n.endswith("/entry_points.txt"))
        assert "sacctl = sacctl.cli:main" in archive.read(scripts).decode()
    assert {"METADATA", "RECORD", "WHEEL", "licenses/LICENSE", "licenses/NOTICE"} <= info
    (module,) = (name for name in names if re.fullmatch(r"libsac/_core\..*\.so", name))
    native = {module, "libsac/lib/libsac.so", "libsac/lib/libsac.so.0"}
    package = {name for name in tree("libsac", "*") if not name.startswith("libsac/core/")}
    package |= tree("sacctl", "*")
    assert names == native | {name for name in package if not name.endswith(".so")}
    assert script.splitlines()[-1] == "INPUT(libsac.so.0)"
    assert "Requires-Dist: numpy" in fields
    required = re.findall(r"^Requires-Dist: (.*)$", fields, re.MULTILINE)
    needed = {line for line in required if "extra ==" not in line}
    assert needed == {"numpy>=1.26", "click>=8.3.1", "rich>=13.9", "pyudev>=0.24"}
    assert not re.search(r"^Requires-Dist: torch\s*[=<>~]", fields, re.MULTILINE)


def test_type_stub_is_the_modules(installed: Path, tmp_path: Path) -> None:
    """libsac/_core.pyi is written by make stubs; it must be newer than the bindings."""
    stub = tmp_path / "_core.pyi"
    arguments = ("-m", "nanobind.stubgen", "-q", "-m", "libsac._core", "-o", stub)
    run(sys.executable, *arguments, cwd=tmp_path)
    kept = (installed / "_core.pyi").read_text()
    same = ast.dump(ast.parse(kept)) == ast.dump(ast.parse(stub.read_text()))
    assert same, "the bindings changed: run make stubs"
