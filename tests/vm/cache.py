# SPDX-License-Identifier: Apache-2.0
"""Folders that are made once, and made anew when what they are made from has changed."""

from __future__ import annotations

import fcntl
import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["ROOT", "built", "digest", "locked", "mirror", "run", "say"]

ROOT = Path(__file__).resolve().parents[2]  # of the sources
_STAMP = ".made-from"
_start = time.monotonic()


def say(what: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _start:6.1f}] {what}", file=sys.stderr, flush=True)


def run(*command: str | Path, cwd: Path | None = None, text: str | None = None) -> str:
    """What a command prints. Raises SystemExit with its output where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)}\nfailed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return done.stdout


def digest(parts: Iterable[str | Path]) -> str:
    """Of strings, and of files by name and content. Folders count with all that is in them."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            total.update(b"s" + part.encode() + b"\0")
            continue
        files = sorted(part.rglob("*")) if part.is_dir() else [part]
        for file in files:
            if file.is_file():
                total.update(b"f" + str(file).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def built(folder: Path, key: str, what: str, make: Callable[[Path], None]) -> Path:
    """The folder, made anew by make(new folder) unless it was made from the same key.

    A folder that could not be finished leaves nothing behind that is taken for it.
    """
    stamp = folder / _STAMP
    if stamp.is_file() and stamp.read_text() == key:
        return folder
    say(f"making {what}")
    fresh = folder.with_name(folder.name + ".new")
    for old in (fresh, folder):
        if old.exists():
            shutil.rmtree(old)
    fresh.mkdir(parents=True)
    make(fresh)
    (fresh / _STAMP).write_text(key)
    fresh.rename(folder)
    return folder


def mirror(source: Path, target: Path, keep: str = "", *, times: bool = True) -> None:
    """Target becomes as source. What is equal is left alone, so that nothing is compiled
    again; what is not gets the source's time, or the present one (Ninja compiles what is
    newer than its object). Folders named keep are left in the target as they are."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or not filecmp.cmp(source, target, shallow=times):
            (shutil.copy2 if times else shutil.copyfile)(source, target)
        return
    wanted = {
        p.relative_to(source)
        for p in source.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    for old in [p for p in target.rglob("*") if p.is_file()]:
        if old.relative_to(target) not in wanted and old.parent.name != keep:
            old.unlink()
    for name in sorted(wanted):
        mirror(source / name, target / name, times=times)


@contextmanager
def locked(folder: Path, name: str = ".lock", *, wait: bool = True) -> Iterator[None]:
    """Only one process at a time makes what lies in the folder. Others wait, or end with a
    SystemExit."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            sys.exit(f"another run is going on with {folder}: wait for it, or give --cache")
        yield
