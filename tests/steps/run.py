# SPDX-License-Identifier: Apache-2.0
"""Runs sections on a machine, and says where it did not answer as the script has it."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from sacctl.cxl.sysfs import Sysfs
from steps.names import CXL, Names, bare
from steps.script import Section, Step

__all__ = ["Differs", "Runner"]

_PATIENCE = 10.0  # seconds that "wait" and "gone" give a kernel


@dataclass(frozen=True, slots=True)
class Differs:
    """A step that came out otherwise. line: of the script."""

    section: str
    line: int
    step: str
    wanted: str
    got: str

    def __str__(self) -> str:
        return f"line {self.line} ({self.section}): {self.step}: {self.got}, not {self.wanted}"


class Runner:
    """kernel: "6.12" or "7.3", for answers that differ. say: gets a line for each step."""

    def __init__(self, sysfs: Sysfs, kernel: str, say: Callable[[str], object] = str) -> None:
        self.sysfs = sysfs
        self.kernel = kernel
        self.say = say
        self.ran = 0

    def run(self, sections: list[Section]) -> list[Differs]:
        """Every section that the machine has the parts for. What is left behind by one is a
        difference too."""
        found: list[Differs] = []
        facts = Names(self.sysfs).facts()
        for section in sections:
            if any(facts.get(k) != v for k, v in section.needs.items()):
                self.say(f"-- {section.title}: needs {section.needs}")
                continue
            self.say(f"== {section.title}")
            found += self._section(section)
            left = self.left()
            if left:
                found.append(Differs(section.title, section.line, "end", "clean", left))
        return found

    def left(self) -> str:
        """What a section should have taken away: regions, capacity of decoders."""
        names = self.sysfs.names(CXL)
        left = [n for n in names if n.startswith("region")]
        for name in names:
            size = self.sysfs.get(f"{CXL}/{name}/dpa_size", "0")
            if int(size, 0):
                left.append(f"{name} has {size}")
        return ", ".join(left)

    def _section(self, section: Section) -> list[Differs]:
        names = Names(self.sysfs)
        found = []
        for step in section.steps:
            shown, wanted = " ".join([step.name, *step.words]), ""
            try:
                words = [names.fill(word) for word in step.words]
                shown = " ".join([step.name, *words])
                wanted = names.fill(step.wants(self.kernel))
                more = [wanted] if step.name == "until" else []
                got = self._step(step, words + more, names)
            except (OSError, KeyError, IndexError, StopIteration) as error:
                got = repr(error)
            self.ran += 1
            self.say(f"   {shown} -> {got}")
            if got != wanted:
                found.append(Differs(section.title, step.line, shown, wanted, got))
        return found

    def _step(self, step: Step, words: list[str], names: Names) -> str:
        match step.name:
            case "write":
                return self._write(bare(words[0]), words[1].replace("newline", "\n"))
            case "each":
                return self._each(names, *words)
            case "read":
                return self._read(bare(words[0]))
            case "until":
                self._until(lambda: self._read(bare(words[0])) == words[1])
                return self._read(bare(words[0]))
            case "set":
                names.given[words[0]] = self.sysfs.read(bare(words[2]))
                return ""
            case "keep":
                names.given[words[0]] = words[1]
                return ""
            case "there":
                return "" if self.sysfs.exists(bare(words[0])) else "gone"
            case "gone":
                return self._until(lambda: not self.sysfs.exists(bare(words[0])))
            case "wait":
                return self._until(lambda: self.sysfs.exists(bare(words[0])))
            case "open":
                return _code(lambda: os.close(os.open(self._dev(words[0]), os.O_RDWR)))
            case "store":
                return self._store(*words)
            case _:
                return self._load(*words)

    def _write(self, path: str, value: str) -> str:
        return _code(lambda: self.sysfs.write(path, value))

    def _each(self, names: Names, what: str, name: str, value: str) -> str:
        """Of all memory blocks that are there: the last answer that is not OK."""
        if what != "blocks":
            raise KeyError(what)
        answers = [
            self._write(f"{path}/{name}", value)
            for path in names.blocks()
            if self.sysfs.exists(path)
        ]
        return next((a for a in answers if a != "OK"), "OK" if answers else "none")

    def _read(self, path: str) -> str:
        got = ""

        def read() -> None:
            nonlocal got
            got = self.sysfs.read(path).strip()

        answer = _code(read)
        return got if answer == "OK" else answer

    def _until(self, ready: Callable[[], bool]) -> str:
        end = time.monotonic() + _PATIENCE
        while not ready():
            if time.monotonic() > end:
                return "waited in vain"
            time.sleep(0.01)
        return ""

    def _dev(self, name: str) -> str:
        return str(self.sysfs.at(f"/dev/{name}"))

    def _mapped(self, name: str) -> mmap.mmap:
        size = self.sysfs.number(f"/sys/bus/dax/devices/{name}/size")
        fd = os.open(self._dev(name), os.O_RDWR)
        try:
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def _store(self, name: str, offset: str, text: str) -> str:
        with self._mapped(name) as memory:
            at = int(offset, 0)
            memory[at : at + len(text)] = text.encode()
        return ""

    def _load(self, name: str, offset: str, size: str) -> str:
        with self._mapped(name) as memory:
            at = int(offset, 0)
            return memory[at : at + int(size)].rstrip(b"\0").decode("latin-1")


def _code(what: Callable[[], object]) -> str:
    """OK, or the errno's name."""
    try:
        what()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "OK"
