# SPDX-License-Identifier: Apache-2.0
"""A virtual environment for each peer, under build/peers or a folder given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# What `make bench-peers` was last measured with.
MOONCAKE = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
LMCACHE = "lmcache==0.5.6"
TORCH = "torch==2.13.0"  # before LMCache, which would take a larger one
INSTALL_S = 900


class InstallError(Exception):
    """The peer is not to be had here; the message says why and what would help."""


@dataclass(frozen=True)
class Environment:
    """python: of the virtual environment. libraries: for LD_LIBRARY_PATH. version: of the
    peer's package."""

    python: Path
    libraries: tuple[Path, ...]
    version: str


def _run(what: str, command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{what}: {error}") from error
    if done.returncode != 0:
        last = [line for line in done.stdout.splitlines() if line.strip()][-3:]
        raise InstallError(f"{what} failed: {' / '.join(last)}")
    return done.stdout


def _venv(folder: Path, steps: list[list[str]]) -> Path:
    """Python of a virtual environment with these packages, made once: pip runs a step each."""
    python = folder / "bin" / "python"
    made = folder / ".made"
    wanted = repr((sys.version_info[:2], steps))
    if made.exists() and made.read_text() == wanted and python.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run(f"a virtual environment in {folder}", [sys.executable, "-m", "venv", str(folder)])
    for packages in steps:
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        _run(f"pip install {' '.join(packages)}", [*pip, *packages])
    made.write_text(wanted)
    return python


def _version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return _run(f"version of {package}", [str(python), "-c", code]).strip()


def _debian_libraries(folder: Path, packages: list[str]) -> tuple[Path, ...]:
    """Unpacks Debian packages into folder, for a machine that does not have them installed.

    Nothing is installed on the machine. Raises InstallError where it is no Debian.
    """
    root = folder / "debian"
    if not root.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise InstallError(
                f"it needs {', '.join(packages)}: install the package of that name"
            )
        files = folder / "downloads"
        files.mkdir(exist_ok=True)
        _run(
            f"apt-get download {' '.join(packages)}", ["apt-get", "download", *packages], files
        )
        for file in sorted(files.glob("*.deb")):
            _run(f"unpacking {file.name}", ["dpkg-deb", "-x", str(file), str(root)])
    return tuple(sorted({path.parent for path in root.rglob("*.so.*")}))


def mooncake(folder: Path) -> Environment:
    """Mooncake Store. Its programs need libibverbs even where they use TCP only."""
    place = folder / "mooncake"
    python = _venv(place, [[MOONCAKE, "numpy"]])
    try:
        _run("import of mooncake.store", [str(python), "-c", "import mooncake.store"])
        libraries: tuple[Path, ...] = ()
    except InstallError as error:
        if "libibverbs" not in str(error) and "libnl" not in str(error):
            raise
        packages = ["libibverbs1", "libnl-3-200", "libnl-route-3-200"]
        libraries = _debian_libraries(place, packages)
    return Environment(python, libraries, _version(python, MOONCAKE.split("==")[0]))


def lmcache(folder: Path) -> Environment:
    """LMCache, over torch's CPU build."""
    python = _venv(folder / "lmcache", [[TORCH], [LMCACHE]])
    return Environment(python, (), _version(python, LMCACHE.split("==")[0]))


def ours() -> Environment:
    """This Python, with the installed libsac and sacctl."""
    import libsac

    return Environment(Path(sys.executable), (), libsac.__version__)


def environ(made: Environment) -> dict[str, str]:
    """Environment variables to run a peer's Python with."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    if made.python == Path(sys.executable):
        kept = dict(os.environ)
    elif made.libraries:
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, made.libraries))
    return {**kept, "LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR"}
