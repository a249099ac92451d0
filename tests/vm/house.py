# SPDX-License-Identifier: Apache-2.0
"""Runs boots: makes what is missing, starts machines, follows their tests, and starts a
fresh machine for the rest where one hangs or is left in disorder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vm.cache import ROOT, locked, say
from vm.core import Core
from vm.images import Images, Kernel
from vm.machine import AbortedError, HungError, Machine, Settings
from vm.payload import Payload
from vm.scenario import Boot, Test
from vm.topologies import find

__all__ = ["House", "Outcome"]

_START = 150.0  # seconds until a machine is ready; far above what it takes
_ABORTS = 3
_MARGIN = 30.0  # above a test's own limit, which the guest watches


@dataclass(frozen=True)
class Outcome:
    """status: "passed", "failed" or "skipped"."""

    test: Test
    status: str
    seconds: float
    output: str


class House:
    """Everything that machines need, in a cache folder."""

    def __init__(self, cache: Path, *, keep_core: bool = False) -> None:
        if os.geteuid():
            raise SystemExit(
                "the images are made by mmdebstrap and chroot: run as root, as in "
                "'sudo make test-vm'"
            )
        self.images = Images(cache)
        self.core = Core(cache, self.images.debian, keep=keep_core)
        self.payload: Payload
        self.kernels: dict[str, Kernel] = {}
        self.root = Path()

    def prepare(self, kernels: Iterable[str]) -> None:
        """Makes what is missing, the Debian package excepted. Nothing of it is changed by a
        machine."""
        self.payload = Payload(self.core)
        self.root = self.images.root()
        for name in sorted(kernels):
            self.kernels[name] = self.images.kernel(name)
        self.payload.prepare()

    def run(self, boot: Boot, folder: Path, verbose: bool = False) -> list[Outcome]:
        """How all tests of a boot went, those after its restart included."""
        outcomes: list[Outcome] = []
        if boot.package:
            # Here, while other machines run: it takes minutes, most of them on one processor.
            with locked(self.core.cache):
                self.core.package()
        for tests in (boot.tests, boot.second):
            todo = list(tests)
            aborted = 0
            while todo:
                some: list[Outcome] = []
                try:
                    self._start(boot, todo, folder, verbose, some)
                except AbortedError as error:
                    # QEMU's emulation of several processors has races of its own.
                    say(f"{boot.name}: QEMU failed, not the test: {error}")
                    aborted += 1
                    if aborted > _ABORTS:
                        raise SystemExit(f"QEMU fails again and again: {error}") from error
                    if tests is boot.tests:
                        (folder / "state.ext4").unlink(missing_ok=True)
                outcomes += some
                todo = todo[len(some) :]
        return outcomes

    def settings(self, boot: Boot) -> Settings:
        return Settings(
            find(boot.topology),
            self.kernels[boot.kernel],
            self.root,
            boot.init,
            boot.append,
            boot.state,
        )

    def _start(
        self,
        boot: Boot,
        tests: list[Test],
        folder: Path,
        loud: bool,
        outcomes: list[Outcome],
    ) -> None:
        """One start of the machine. Adds outcomes: at least that of the first test. Raises
        AbortedError, with an outcome for each test that was through."""
        folder.mkdir(parents=True, exist_ok=True)
        payload = folder / "payload.tar"
        patterns = {p for t in tests for p in t.scenario.files}
        files = sorted(f for p in patterns for f in ROOT.glob(p))
        plan = {"topology": boot.topology, "tests": [t.plan() for t in tests]}
        self.payload.write(payload, plan, files)
        by_id = {t.id: t for t in tests}
        current: Test | None = None
        begun = time.monotonic()

        def limit() -> float:
            return current.scenario.limit + _MARGIN if current else _START

        why = "the machine powered off"
        with Machine(self.settings(boot), folder, payload) as machine:
            try:
                for message in machine.messages(limit):
                    if "ready" in message:
                        say(f"{boot.name} is up after {time.monotonic() - begun:.1f} s")
                        begun = time.monotonic()
                    elif "begin" in message:
                        current = by_id[message["begin"]]
                        begun = time.monotonic()
                    elif "end" in message:
                        assert current
                        seen = Outcome(
                            current, message["status"], message["seconds"], message["output"]
                        )
                        outcomes.append(seen)
                        say(f"{seen.status:7} {current.id} ({seen.seconds:.1f} s)")
                        if loud:
                            print(seen.output, flush=True)
                        current = None
                    elif "finished" in message and len(outcomes) == len(tests):
                        return
            except HungError as hung:
                why = str(hung)
        if current or not outcomes:
            # A test in which the machine went away, or a start that led to none.
            current = current or tests[0]
            console = (folder / "console.log").read_text(errors="replace")
            text = f"{why}; the end of its console:\n{console[-6000:]}\n"
            outcomes.append(Outcome(current, "failed", time.monotonic() - begun, text))
            say(f"failed  {current.id}: {why}")
