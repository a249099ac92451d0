# SPDX-License-Identifier: Apache-2.0
"""Commands of docs that want CXL hardware: run on a simulated machine, with a daemon there.

A block that begins with

    ```sh sim=2hb2
    ```sh sim=2hb2 firmware=kmem-offline kmem=no size=512

runs on such a machine (docs/simulator.md has the words). Blocks of a page with the same words,
one behind the other, share it. A line must end well, or as ``# exits 4`` behind it says.
``sudo`` is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cxlsim

__all__ = ["Block", "House", "simulated"]

_FENCE = re.compile(r"^```sh (sim=[^\n]*)\n(.*?)^```", re.M | re.S)
_EXITS = re.compile(r"\s#.*\bexits (\d+)")


@dataclass(frozen=True, slots=True)
class Block:
    """words: of the fence, such as "sim=2hb2"."""

    words: str
    text: str

    def lines(self) -> list[tuple[str, int]]:
        """Each command with the exit code that it is to have."""
        found = []
        for line in self.text.replace("\\\n", " ").splitlines():
            code = _EXITS.search(line)
            bare = re.sub(r"\s+#.*", "", line).strip().removeprefix("sudo ")
            if bare and not bare.startswith("#"):
                found.append((bare, int(code[1]) if code else 0))
        return found


def simulated(page: Path) -> list[list[Block]]:
    """The page's blocks, those of one machine together."""
    groups: list[list[Block]] = []
    for words, text in _FENCE.findall(page.read_text()):
        block = Block(words.strip(), text)
        if groups and groups[-1][0].words == block.words:
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def machine(words: str, folder: Path) -> cxlsim.Machine:
    """As a fence's words say. Raises ValueError for a word that means nothing."""
    given = dict(word.split("=", 1) for word in words.split())
    options: dict[str, Any] = {"firmware": given.pop("firmware", "")}
    topology = given.pop("sim")
    size = int(given.pop("size", "256")) << 20
    if "kmem" in given:
        options["kmem"] = given.pop("kmem") == "yes"
    if "kernel" in given:
        options["version"] = given.pop("kernel")
    if "auto_online" in given:
        options["auto_online"] = given.pop("auto_online")
    if given:
        raise ValueError(f"what is {given} of {words!r}")
    return cxlsim.Machine(folder, topology, size, seed=1, **options)


class House:
    """The machine of a group of blocks, and a daemon that serves it. A context manager."""

    def __init__(self, folder: Path, words: str) -> None:
        self.folder = folder
        folder.mkdir()
        self.machine = machine(words, folder / "machine")
        config = folder / "sac.toml"
        config.write_text(f"daemon.run_dir = '{folder}/run'\npools.dir = '{folder}/pools.d'\n")
        self.socket = folder / "run" / "sacd.sock"
        self.env = os.environ | {
            "SAC_SYSROOT": str(self.machine.root),
            "SAC_CONFIG": str(config),
            "SAC_SOCKET": str(self.socket),
            "PYTHONSAFEPATH": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        code = 0
        if self._daemon is not None:
            self._daemon.terminate()
            code = self._daemon.wait(30)
        self.machine.__exit__(kind, value, trace)
        if kind is None and code:
            raise AssertionError((self.folder / "log").read_text())

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """The command, as an administrator's on that machine."""
        if not line.startswith("sacctl device ") and self._daemon is None:
            self._serve()
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def _serve(self) -> None:
        with (self.folder / "log").open("wb") as log:
            self._daemon = subprocess.Popen(
                ["sacctl", "daemon", "run"], env=self.env, stderr=log, stdout=log
            )
        for _ in range(300):
            if self.socket.exists():
                return
            if self._daemon.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text())
