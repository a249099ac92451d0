# SPDX-License-Identifier: Apache-2.0
"""A simulated machine: what a test holds in its hand."""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cxlsim.firmware import SITUATIONS, arrange
from cxlsim.kernel import Kernel, Options
from cxlsim.media import Media
from cxlsim.parts import Memdev
from cxlsim.server import Server
from cxlsim.shape import SHAPES, build
from cxlsim.tree import Tree
from sacctl.cxl.sysfs import Sysfs

__all__ = ["Machine"]

Before = Callable[[str, str], None]


class Machine:
    """A folder that looks like a machine with CXL memory, and the kernel behind it.

    Args:
        folder: becomes the machine's "/". What its memory held in an earlier machine there
            is found again.
        topology: a name of cxlsim.SHAPES.
        size: bytes of each device, a multiple of 256 MiB; or a size for each.
        serials: of the devices, 0x100 and up by default; 0 for all of them: [0, 0].
        seed: for the names the kernel gives (memN, endpointN), which are in no order.
        firmware: a situation that is there at boot: cxlsim.SITUATIONS.
        options: as Options: version, kmem, auto_online, block_bytes, invalidates.

    Attributes:
        writes: (path, value, errno) of each write from outside, in order.
        oops: why the kernel has crashed; "" if it has not. A crash that a test does not
            expect fails it: leaving the machine raises AssertionError unless oops was read.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        topology: str = "2hb2",
        size: int | Sequence[int] = 256 << 20,
        *,
        serials: Sequence[int] | None = None,
        seed: int | None = None,
        firmware: str = "",
        **options: Any,
    ) -> None:
        shape = SHAPES[topology]
        count = sum(shape.bridges)
        sizes = [size] * count if isinstance(size, int) else list(size)
        names = [0x100 + n for n in range(count)] if serials is None else list(serials)
        if len(sizes) != count or len(names) != count or any(s % (256 << 20) for s in sizes):
            raise ValueError(f"{topology} has {count} devices, multiples of 256 MiB each")
        self.topology = topology
        self.root = Path(folder).absolute()
        self.root.mkdir(parents=True, exist_ok=True)
        self.writes: list[tuple[str, str, int]] = []
        self._fails: dict[int, int] = {}
        self._before: dict[int, Before] = {}
        self._seen_oops = False
        options = _for(firmware, options)
        parts = build(shape, sizes, names, random.Random(seed))
        tree = Tree(self.root)
        tree.clear()
        self.kernel = Kernel(parts, tree, Media(self.root, parts.memdevs), Options(**options))
        self.kernel.show()
        if firmware:
            arrange(self.kernel, firmware)
        self.sysfs = Sysfs(self.root)
        self._server = Server(self.root, self.write, {"unplug": self.unplug, "plug": self.plug})

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()
        if kind is None and self.kernel.oops and not self._seen_oops:
            raise AssertionError(f"the kernel has crashed: {self.kernel.oops}")

    def close(self) -> None:
        """Stops the kernel; the folder stays as it is, and writes to it fail."""
        self._server.close()
        self.kernel.stop()

    @property
    def oops(self) -> str:
        self._seen_oops = True
        return self.kernel.oops

    @property
    def log(self) -> list[str]:
        """The kernel's own log."""
        return self.kernel.log

    # ---------------------------------------------------------------------- writes

    def write(self, path: str, value: str) -> int:
        """A write as from outside: 0 or an errno."""
        with self.kernel.lock:  # so that writes from several threads have an order
            at = len(self.writes)
            before = self._before.pop(at, None)
            if before is not None:
                before(path, value)
            code = self._fails.pop(at, 0) or self.kernel.write(path, value)
            self.writes.append((path, value, code))
            return code

    def fail_at(self, n: int, code: int = errno.EIO) -> None:
        """The n-th write from now (0: the next) fails with the errno and does nothing."""
        self._fails[len(self.writes) + n] = code

    def before(self, n: int, what: Before) -> None:
        """Calls what(path, value) before the n-th write from now is done."""
        self._before[len(self.writes) + n] = what

    # -------------------------------------------------------------------- comparison

    def snapshot(self) -> dict[str, str]:
        """All that the machine shows, and new_id's names: to compare before and after.

        Left out is what a kernel does not put back either: the number that the next region
        gets, the mode of a decoder without capacity, and how one without a region routed its
        last one.
        """
        with self.kernel.lock:
            shown = self.kernel.tree.shown
            found = {
                path: f"{entry.kind} {entry.content}"
                for path, entry in shown.items()
                if not _NEXT.search(path)
            }
            for path in list(found):
                if path.endswith("/mode") and "endpoint" in path:
                    size = shown[path.replace("/mode", "/dpa_size")].content
                    if int(size, 0) == 0:
                        del found[path]
                elif path.endswith("/region") and shown[path].content == "\n":
                    for name in _ROUTE if "endpoint" in path else (*_ROUTE, "start", "size"):
                        found.pop(f"{path.removesuffix('/region')}/{name}", None)
            for driver in self.kernel.dax.drivers:
                found[f"new_id:{driver.name}"] = " ".join(sorted(driver.ids))
            found["leaked"] = str(self.kernel.memory.leaked)
            return found

    # ------------------------------------------------------------------------ devices

    def memdev(self, serial: int | str) -> Memdev:
        """By its serial, its name or its PCI address."""
        for memdev in self.kernel.memdevs:
            if serial in (memdev.serial, memdev.name, memdev.pci):
                return memdev
        raise KeyError(serial)

    def unplug(self, serial: int | str) -> None:
        """Takes the device out of its slot."""
        memdev = self.memdev(serial)
        self.kernel.media.gone.add(memdev)
        self.kernel.change(lambda: self.kernel.unplug(memdev))

    def plug(self, serial: int | str) -> None:
        """Puts it back: with the bytes it had, and new names."""
        memdev = self.memdev(serial)
        self.kernel.media.gone.discard(memdev)
        self.kernel.change(lambda: self.kernel.plug(memdev))

    def break_link(self, serial: int | str, *, speed: str = "16.0", width: int = 8) -> None:
        """Its PCIe link trains at less than it could. speed: in GT/s."""
        memdev = self.memdev(serial)
        memdev.speed, memdev.width = speed, width
        self.kernel.change(lambda: None)

    def aer(self, serial: int | str, kind: str, n: int = 1, name: str = "") -> None:
        """Counts n more errors. kind: "correctable", "nonfatal" or "fatal"."""
        counts = self.memdev(serial).aer.setdefault(kind, {})
        which = name or ("RxErr" if kind == "correctable" else "UnxCmplt")
        counts[which] = counts.get(which, 0) + n
        self.kernel.change(lambda: None)

    def poison(self, serial: int | str, dpa: int) -> None:
        """64 bytes of the device go bad. Nobody hears of it before the list is asked for."""
        self.memdev(serial).poison.add(dpa)

    @property
    def events(self) -> list[str]:
        """What tracepoints would have said."""
        return self.kernel.trace.events

    def trace_instance(self, name: str) -> Path:
        """Makes /sys/kernel/tracing/instances/NAME ready, for who is about to make it: events
        are at its trace_pipe then, as soon as they are switched on there."""
        return self.kernel.trace.instance(name)

    def event(self, line: str) -> None:
        """Any event, in the kernel's words: "cxl_general_media: memdev=mem0 ..."."""
        self.kernel.trace.emit(line)

    def peek(self, serial: int | str, dpa: int, size: int) -> bytes:
        """The device's own bytes, as the host of a virtual machine sees them."""
        with self.kernel.lock:
            return self.kernel.media.peek(self.memdev(serial), dpa, size)

    def stick(self, number: int, stuck: bool = True) -> None:
        """A memory block that cannot go offline (EBUSY), or can again."""
        self.kernel.memory.blocks[number].stuck = stuck


_ROUTE = ("interleave_ways", "interleave_granularity", "target_list")
_NEXT = re.compile(r"/create_(ram|pmem)_region$")


def _for(firmware: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that a situation brings, unless others are given."""
    if firmware and firmware not in SITUATIONS:
        raise ValueError(f"firmware {firmware!r}: {', '.join(SITUATIONS)}")
    return {**(SITUATIONS[firmware].options if firmware else {}), **options}
