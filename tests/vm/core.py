# SPDX-License-Identifier: Apache-2.0
"""The native core, built for the test machine's Python inside a root of its release.

The compilers are in a root of their own, which is never booted. The build folder is kept:
after a change of the core only what changed is compiled.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from vm.cache import ROOT, built, digest, mirror, run, say
from vm.debian import RELEASE, Debian
from vm.images import unpack_wheel

__all__ = ["Core"]

_PACKAGES = ("build-essential", "cmake", "ninja-build", "python3", "python3-dev")
_SOURCES = (
    "libsac/core",
    "libsac/include",
    "libsac/hotbuffer/kernels",
    "cmake",
    "CMakeLists.txt",
)


class Core:
    """Builds in a cache folder."""

    def __init__(self, cache: Path, debian: Debian, *, keep: bool = False) -> None:
        """keep: take the core that was built last, whatever the sources are now."""
        self.cache = cache
        self.keep = keep
        self.debian = debian

    def tools(self) -> Path:
        """A root with compilers and the guest's Python."""
        nanobind = _nanobind()
        packages = tuple(sorted({*_PACKAGES, *_for_the_package()}))
        key = digest([RELEASE, *packages, nanobind])

        def make(folder: Path) -> None:
            self.debian.bootstrap(folder / "root", packages)
            unpack_wheel(nanobind, folder / "root/usr/local/lib/python3.13/dist-packages")

        return built(self.cache / "tools", key, "a root with compilers", make) / "root"

    def installed(self) -> Path:
        """A folder with libsac/_core.*.so and libsac/lib/libsac.so.0 of this checkout."""
        root = self.tools()
        key = digest([ROOT / part for part in _SOURCES])
        out = self.cache / "core"
        stamp = self.cache / "core.made-from"
        if out.is_dir() and stamp.is_file() and (self.keep or stamp.read_text() == key):
            return out
        say("compiling the core for the test machine's Python")
        source = root / "src/libsac"
        for part in _SOURCES:
            mirror(ROOT / part, source / part, times=False)
        jobs = os.cpu_count() or 1
        inside(
            root,
            "cmake -S /src/libsac -B /src/build -G Ninja --log-level=WARNING "
            "-DSKBUILD=1 -DSAC_PYTHON=ON -DCMAKE_CXX_SCAN_FOR_MODULES=OFF "
            "-DPython_EXECUTABLE=/usr/bin/python3 "
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo "
            "'-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g0' "
            f"&& cmake --build /src/build -j{jobs} "
            "&& rm -rf /src/out && cmake --install /src/build --prefix /src/out",
        )
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(root / "src/out", out)
        stamp.write_text(key)
        return out

    def package(self) -> None:
        """dist/sacctl_*.deb of this checkout, made in the root with compilers."""
        say("making the Debian package, unless it is there")
        root = self.tools()
        run("env", f"DEB_ROOT={root}", f"PYTHON={sys.executable}", ROOT / "packaging/deb.sh")

    def stage(self) -> Path:
        """A folder in the root with compilers, for compile_python()."""
        return self.tools() / "src/payload"

    def compile_python(self, at: str) -> None:
        """Writes the byte code of all modules in the stage, which will lie at that path in
        the machine: there, compiling takes far longer than the tests."""
        inside(
            self.tools(),
            f"python3 -m compileall -q -j2 -s /src/payload -p {at} /src/payload",
        )


def inside(root: Path, command: str) -> str:
    """What a shell command prints in a root. Raises SystemExit where it fails."""
    return run("chroot", root, "/bin/sh", "-ec", f"export PATH=/usr/sbin:/usr/bin; {command}")


def _for_the_package() -> list[str]:
    """What packaging/deb.sh needs in the root that it builds in."""
    control = (ROOT / "packaging/debian/control").read_text()
    field = re.search(r"^Build-Depends:((?:\n .*)+)", control, re.M)
    names = re.findall(r"^ ([a-z0-9.+-]+)", field[1], re.M) if field else []
    # Two of them are names for what debhelper provides.
    real = [n for n in names if not n.startswith(("debhelper-compat", "dh-sequence-"))]
    return ["debhelper", *real]


def _nanobind() -> str:
    text = (ROOT / "requirements/build.txt").read_text()
    found = re.search(r"^nanobind==\S+$", text, re.M)
    if not found:
        raise SystemExit("requirements/build.txt pins no nanobind")
    return found[0]
