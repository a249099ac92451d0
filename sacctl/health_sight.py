# SPDX-License-Identifier: Apache-2.0
"""What the checks of health look at, and how a finding is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sacctl.health_codes import CHECKS
from sacctl.records import (
    ClientRecord,
    DaemonRecord,
    FindingRecord,
    NamespaceRecord,
    PoolRecord,
)

if TYPE_CHECKING:
    from sacctl.cxl.condition import Condition

__all__ = ["Findings", "Sight", "finding"]

Findings = Iterator[FindingRecord]


@dataclass(frozen=True, slots=True)
class Sight:
    """What the checks look at.

    Attributes:
        free_metadata: bytes, by pool.
        open_files_limit: of the daemon; 0: not known.
        room: bytes left in the file system of a path, None where that is not known.
        devices: what is wrong with the devices of the pools.
    """

    daemon: DaemonRecord
    pools: Sequence[PoolRecord] = ()
    namespaces: Sequence[NamespaceRecord] = ()
    clients: Sequence[ClientRecord] = ()
    free_metadata: Mapping[str, int] = field(default_factory=dict)
    open_files_limit: int = 0
    room: Callable[[str], int | None] = lambda path: None
    devices: Sequence[Condition] = ()


def finding(code: str, on: str, message: str, hint: str = "") -> FindingRecord:
    return {
        "code": code,
        "severity": CHECKS[code].severity,
        "object": on,
        "message": message,
        "hint": hint or f"sacctl health --explain {code}",
    }
