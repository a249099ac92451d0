# SPDX-License-Identifier: Apache-2.0
"""The payload disk: the product of this checkout, the tests, and the plan, as a tar archive.

In the machine: /payload/product (sacctl and libsac with its native core), /payload/tests,
/payload/files (what a scenario brings), /payload/plan.json.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

from vm.cache import ROOT, mirror
from vm.core import Core

__all__ = ["Payload"]

_PRODUCT = ("sacctl", "libsac")
_TESTS = ("vm/guest", "vm/scenarios", "steps")
_FOLDERS = ("systemd", "udev", "packaging")


class Payload:
    """Staged in a folder that stays, so that only changed modules are compiled again."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.stage = core.stage()

    def prepare(self) -> None:
        """Brings the staged files to this checkout's state."""
        installed = self.core.installed()
        for part in _PRODUCT:
            self._copy(ROOT / part, self.stage / "product" / part)
        for file in (installed / "libsac").rglob("*.so*"):
            target = self.stage / "product/libsac" / file.relative_to(installed / "libsac")
            mirror(file, target)
        for part in _TESTS:
            self._copy(ROOT / "tests" / part, self.stage / "tests" / part)
        for part in _FOLDERS:
            self._copy(ROOT / part, self.stage / part)
        self.core.compile_python("/payload")

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_dir():
            mirror(source, target, keep="__pycache__")
        elif target.exists():
            shutil.rmtree(target)

    def write(self, to: Path, plan: object, files: Iterable[Path] = ()) -> None:
        """The archive of a machine: what is staged, its plan, and files to bring along."""
        with tarfile.open(to, "w") as tar:
            for name in sorted(p.name for p in self.stage.iterdir()):
                tar.add(self.stage / name, name, filter=_wanted)
            for file in files:
                tar.add(file, f"files/{file.name}")
            text = json.dumps(plan).encode()
            info = tarfile.TarInfo("plan.json")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
        with to.open("r+b") as disk:  # a disk has whole sectors
            disk.truncate(-(-to.stat().st_size // 512) * 512)


def _wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Nothing that only a build needs."""
    parts = Path(info.name).parts
    if parts[:3] in (("product", "libsac", "core"), ("product", "libsac", "include")):
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info
