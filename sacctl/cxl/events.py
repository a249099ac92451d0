# SPDX-License-Identifier: Apache-2.0
"""Events of CXL devices as the kernel's trace prints them, a line each.

Kernels print more with every version: fields are looked up by name, unknown ones are left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Event", "lost", "parse", "sentence"]

NOWHERE = (1 << 64) - 1  # what the kernel prints for an address that it cannot tell

_LINE = re.compile(r"\s(?P<time>\d+\.\d+): (?P<kind>cxl_[a-z_]+): (?P<rest>.*)$")
_FIELD = re.compile(r"(\w+)(?:=|: )('[^']*'|.*?)(?=:?\s+:?\s*\w+(?:=|: ')|\s*:?\s*$)")
_LOST = re.compile(r"CPU:\d+ \[LOST (?P<count>\d+) EVENTS\]")
_MEDIA = ("cxl_general_media", "cxl_dram")


@dataclass(frozen=True, slots=True)
class Event:
    """Attributes:
    kind: "cxl_poison". time: seconds since the boot, as the trace counts them.
    memdev, pci, serial: of the device. region: "" where the address is in none.
    hpa, dpa: addresses, None where they are not told. bytes: from there on.
    fields: all that was printed, by name.
    """

    kind: str
    time: float
    memdev: str
    pci: str
    serial: int
    region: str = ""
    hpa: int | None = None
    dpa: int | None = None
    bytes: int = 0
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def damaged(self) -> bool:
        """Whether the memory at its address is not to be used any more."""
        if self.kind == "cxl_poison":
            return self.fields.get("trace_type") in ("List", "Inject")
        return self.kind in _MEDIA and "UNCORRECTABLE" in self.fields.get("descriptor", "")

    @property
    def severity(self) -> str:
        """ "info", "warning" or "error": how much it matters to those who use the memory."""
        if self.damaged or self.kind == "cxl_aer_uncorrectable_error":
            return "error"
        told = self.fields.get("log", "").lower()
        if told in ("failure", "fatal"):
            return "error"
        quiet = told == "informational" or self.fields.get("trace_type") == "Clear"
        return "info" if quiet else "warning"


def parse(line: str) -> Event | None:
    """The event of a line; None for what is none of a CXL device. Raises nothing."""
    found = _LINE.search(line)
    if found is None:
        return None
    fields = {key: value.strip("'") for key, value in _FIELD.findall(found["rest"])}
    kind = found["kind"]
    base = 0 if kind == "cxl_poison" else 16  # the others print hexadecimal without 0x
    length = _number(fields.get("dpa_length", ""), 0)
    return Event(
        kind=kind,
        time=float(found["time"]),
        memdev=fields.get("memdev", ""),
        pci=fields.get("host", ""),
        serial=_number(fields.get("serial", ""), 10) or 0,
        region=fields.get("region", ""),
        hpa=_address(fields.get("hpa", ""), base),
        dpa=_address(fields.get("dpa", ""), base),
        # A media event tells where, not how much: what a device reads at once.
        bytes=length or 64,
        fields=fields,
    )


def lost(line: str) -> int:
    """How many events did not fit in the buffer, where the line says so."""
    found = _LOST.match(line.strip())
    return int(found["count"]) if found else 0


def sentence(event: Event) -> str:
    """The event for a person: what, where, on which device."""
    say = event.fields.get
    where = f" at device address {event.dpa:#x}" if event.dpa is not None else ""
    if event.region:
        where += f", in {event.region}"
    if event.hpa is not None:
        where += f" at {event.hpa:#x}"
    if event.kind == "cxl_poison":
        words = {
            "List": "has poison",
            "Inject": "was given poison",
            "Clear": "has no poison any more",
        }
        what = words.get(say("trace_type", ""), "tells of poison")
        source = f" ({say('source', '').lower()})" if say("trace_type") == "List" else ""
        text = f"{what}{where}, {event.bytes} bytes{source}"
    elif event.kind in _MEDIA:
        what = "DRAM" if event.kind == "cxl_dram" else "media"
        grade = "an uncorrected" if event.damaged else "a corrected"
        told = f"{say('type', 'not told')} ({say('log', '').lower()})"
        text = f"reports {grade} {what} error{where}: {told}"
    elif event.kind == "cxl_memory_module":
        text = (
            f"reports '{say('event_type', say('log', ''))}': health "
            f"{say('health_status', '') or 'normal'}, {say('device_temp', '?')} °C, "
            f"{say('life_used', '?')}% of its life used"
        )
    elif event.kind.startswith("cxl_aer_"):
        grade = "an uncorrectable" if "uncorrectable" in event.kind else "a correctable"
        text = f"has {grade} error of its link: {say('status', 'not told')}"
    elif event.kind == "cxl_overflow":
        text = f"has dropped {say('count', 'some')} events of its log: it was full"
    else:
        told = say("log", "")
        text = (
            f"reports {event.kind.removeprefix('cxl_')}{f' ({told.lower()})' if told else ''}"
        )
    serial = f" (serial {event.serial:#x})" if event.serial else ""
    return f"{event.memdev or 'a device'}{serial} {text}"


def _number(text: str, base: int) -> int | None:
    try:
        return int(text, base)
    except ValueError:
        return None


def _address(text: str, base: int) -> int | None:
    value = _number(text, base)
    return None if value is None or value >= NOWHERE else value
