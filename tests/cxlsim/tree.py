# SPDX-License-Identifier: Apache-2.0
"""A folder tree that follows what the simulated kernel shows: written where it differs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Entry", "Files", "Store", "Tree", "action", "file", "folder", "link"]

Store = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """kind: "f", "l" (content: an absolute path on the machine) or "d".

    store: what a write to the file does; None where the kernel has no such function.
    """

    kind: str
    mode: int
    content: str
    store: Store | None = None

    def same(self, other: Entry) -> bool:
        return (self.kind, self.mode, self.content) == (other.kind, other.mode, other.content)


Files = dict[str, Entry]


def file(content: object, store: Store | None = None, *, mode: int | None = None) -> Entry:
    """An attribute; the line's end is added. Without a store it cannot be written."""
    if mode is None:
        mode = 0o644 if store else 0o444
    return Entry("f", mode, f"{content}\n", store)


def action(store: Store) -> Entry:
    """An attribute that is only written."""
    return Entry("f", 0o200, "", store)


def link(to: str) -> Entry:
    return Entry("l", 0o777, to)


def folder() -> Entry:
    return Entry("d", 0o755, "")


class Tree:
    """The files below a root. Keeps what it has written, so that only changes are made.

    A file appears with all of its content: it is made beside the tree and moved into it.
    Folders and links that go are kept beside the tree, for the kernel gives no inode number
    of its objects a second time soon, and a file system does.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shown: Files = {}
        self._new = str(root / ".new")
        self._gone = root / ".gone"
        self._buried = 0
        self._masked = os.umask(0o022)
        os.umask(self._masked)

    def clear(self) -> None:
        """Takes away what an earlier machine has left, but for its memory."""
        for name in ("sys", "proc", "dev", ".gone"):
            if (self.root / name).exists():
                shutil.rmtree(self.root / name)
        Path(self._new).unlink(missing_ok=True)

    def show(self, wanted: Files) -> None:
        """Makes the tree that of wanted."""
        wanted = with_folders(wanted)
        left = self.shown.keys() - wanted.keys()
        for path in sorted(left, key=lambda p: _turn(p, self.shown[p]), reverse=True):
            if self.shown[path].kind == "f":
                os.unlink(f"{self.root}{path}")  # noqa: PTH108 - these are many
            else:
                self._bury(path)
        changed = [
            path
            for path, entry in wanted.items()
            if path not in self.shown or not self.shown[path].same(entry)
        ]
        for path in sorted(changed, key=lambda p: _turn(p, wanted[p])):
            self._put(path, wanted[path], in_place=not self.shown)
        self.shown = wanted

    def _bury(self, path: str) -> None:
        self._gone.mkdir(exist_ok=True)
        self._buried += 1
        os.rename(f"{self.root}{path}", self._gone / str(self._buried))  # noqa: PTH104

    def _put(self, path: str, entry: Entry, in_place: bool) -> None:
        """in_place: nobody looks yet."""
        at = f"{self.root}{path}"
        if entry.kind == "d":
            os.makedirs(at, mode=0o755, exist_ok=True)  # noqa: PTH103
            return
        made = at if in_place else self._new
        if entry.kind == "l":
            os.symlink(os.path.relpath(entry.content, os.path.dirname(path)), made)  # noqa: PTH120, PTH211
        else:
            fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, entry.mode)
            try:
                os.write(fd, entry.content.encode("latin-1"))
                if entry.mode & self._masked:
                    os.fchmod(fd, entry.mode)
            finally:
                os.close(fd)
        if not in_place:
            os.rename(made, at)  # noqa: PTH104

    def find(self, path: str) -> tuple[str, Entry | None]:
        """The path that links lead to, and what the kernel has there."""
        parts = [p for p in path.split("/") if p]
        done: list[str] = []
        hops = 0
        while parts:
            part = parts.pop(0)
            if part == "..":
                done = done[:-1]
                continue
            if part == ".":
                continue
            here = "/" + "/".join([*done, part])
            entry = self.shown.get(here)
            if entry is not None and entry.kind == "l" and hops < 40:
                hops += 1
                parts = [p for p in entry.content.split("/") if p] + parts
                done = []
                continue
            done.append(part)
        real = "/" + "/".join(done)
        return real, self.shown.get(real)


def _turn(path: str, entry: Entry) -> tuple[int, str]:
    """Folders, then devices, then the links to them: who finds a link finds all behind it."""
    if entry.kind == "d":
        return 0, path
    return 1 + (not path.startswith("/sys/devices/")), path


def with_folders(files: Files) -> Files:
    """The files, and the folders that they lie in."""
    all_of = dict(files)
    for path in files:
        parent = path.rpartition("/")[0]
        while parent and parent not in all_of:
            all_of[parent] = folder()
            parent = parent.rpartition("/")[0]
    return all_of
