# SPDX-License-Identifier: Apache-2.0
"""tracefs, as far as CXL events go: lines in the kernel's words, to who has asked for them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from cxlsim.parts import Decoder, Memdev

__all__ = ["Tracing", "poison_line"]

_FOLDER = "sys/kernel/tracing"


class Tracing:
    """Instances below /sys/kernel/tracing/instances.

    A real kernel makes an instance's files when its folder is made; here they are made
    beforehand, by ``instance``. What is written to trace_pipe is read once, as there.
    """

    def __init__(self, root: Path) -> None:
        self.events: list[str] = []
        self._root = root / _FOLDER
        self._begun = time.monotonic()
        self._pipes: dict[Path, int] = {}

    def instance(self, name: str) -> Path:
        """The instance's folder, ready for who makes one of that name."""
        at = self._root / "instances" / name
        if at in self._pipes:
            return at
        (at / "events" / "cxl").mkdir(parents=True)
        (at / "events" / "cxl" / "enable").write_text("0\n")
        (at / "buffer_percent").write_text("50\n")
        (at / "trace").write_text("# tracer: nop\n")
        os.mkfifo(at / "trace_pipe", 0o400)
        # Open for both, so that it outlives its readers and opening does not wait.
        self._pipes[at] = os.open(at / "trace_pipe", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return at

    def emit(self, line: str) -> None:
        """An event, such as "cxl_poison: memdev=...", to each instance that has them on."""
        self.events.append(line)
        seconds = time.monotonic() - self._begun
        text = f"{'kernel-1':>16}     [000] ..... {seconds:12.6f}: {line}\n"
        for at, pipe in self._pipes.items():
            with suppress(OSError):
                if (at / "events" / "cxl" / "enable").read_text().startswith("1"):
                    os.write(pipe, text.encode())

    def close(self) -> None:
        for pipe in self._pipes.values():
            os.close(pipe)
        self._pipes.clear()


def poison_line(memdev: Memdev, dpa: int, kind: str) -> str:
    """kind: "List", "Inject" or "Clear"."""
    decoder = next(
        (d for d in memdev.decoders if d.dpa_start <= dpa < d.dpa_start + d.dpa_bytes), None
    )
    live = decoder is not None and decoder.committed and decoder.region is not None
    hpa, region = (1 << 64) - 1, ""
    if decoder is not None and decoder.region is not None and live:
        hpa, region = address(decoder, dpa), decoder.region.name
    return (
        f"cxl_poison: memdev={memdev.name} host={memdev.pci} serial={memdev.serial} "
        f"trace_type={kind} region={region} "
        f"region_uuid=00000000-0000-0000-0000-000000000000 hpa={hpa:#x} dpa={dpa:#x} "
        f"dpa_length=0x40 source={'Internal' if kind == 'List' else 'Injected'} flags= "
        "overflow_time=0"
    )


def address(decoder: Decoder, dpa: int) -> int:
    """The host's address of a device's, in a region of modulo arithmetic."""
    region = decoder.region
    if region is None:
        raise ValueError(f"{decoder.name} is in no region")
    turn, inside = divmod(dpa - decoder.dpa_start, region.granularity)
    stripe = region.granularity * region.ways
    return region.start + turn * stripe + decoder.position * region.granularity + inside
