# SPDX-License-Identifier: Apache-2.0
"""Each code is found where it should be and nowhere else; each is explained."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, cast

import pytest

from sacctl import health
from sacctl.cxl.condition import Condition
from sacctl.errors import CtlError, DeniedError, NotFoundError
from sacctl.health import CHECKS, EXIT, Sight, explain, judge, unreachable
from sacctl.records import ClientRecord, DaemonRecord, NamespaceRecord, PoolRecord

SLAB = 2 << 20
DOC = Path(__file__).resolve().parents[2] / "docs" / "health.md"


def daemon(**values: Any) -> DaemonRecord:
    known = {
        "pid": 5, "clients": 1, "max_clients": 100, "heartbeat_age_ms": 10, "open_files": 10,
    }  # fmt: skip
    return cast(DaemonRecord, known | values)


def pool(**values: Any) -> PoolRecord:
    known = {
        "name": "kv", "state": "serving", "reason": "", "hint": "", "huge": "",
        "meta": "/x/meta", "extents": [{"path": "/x/data.0"}], "free_bytes": 10 * SLAB,
        "slab_bytes": SLAB, "page_size_obtained": 4096, "recovered": False,
        "rebooted": False, "dead_blocks": 0, "read_only": "",
    }  # fmt: skip
    return cast(PoolRecord, known | values)


def space(**values: Any) -> NamespaceRecord:
    known = {
        "pool": "kv", "name": "chat", "state": "serving", "reason": "", "quota_bytes": 0,
        "assigned_bytes": SLAB, "pages": 100, "tails": 0, "pinned": 0, "reserved": 0,
        "quarantined": 0,
    }  # fmt: skip
    return cast(NamespaceRecord, known | values)


def client(**values: Any) -> ClientRecord:
    known = {
        "id": "ab" * 16, "name": "engine", "pid": 9, "uid": 0, "connected": True,
        "lost_ms": 0, "evicted": False, "pinned": 0, "reservations": 0,
    }  # fmt: skip
    return cast(ClientRecord, known | values)


GOOD = Sight(
    daemon(), [pool()], [space()], [client()], {"kv": 1 << 20}, 1024, lambda path: 100 * SLAB
)


def test_all_is_well() -> None:
    assert judge(GOOD) == {"status": "ok", "checks": len(CHECKS), "findings": []}
    assert judge(Sight(daemon()))["status"] == "ok"


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("SAC103", "critical", {"daemon": daemon(heartbeat_age_ms=6000)}),
    ("SAC104", "degraded", {"daemon": daemon(open_files=1000)}),
    ("SAC105", "degraded", {"daemon": daemon(clients=95)}),
    ("SAC201", "critical", {"pools": [pool(state="absent", reason="gone")]}),
    ("SAC202", "critical", {"pools": [pool(state="damaged", reason="torn")]}),
    ("SAC203", "degraded", {"pools": [pool(dead_blocks=1)]}),
    ("SAC204", "degraded", {"pools": [pool(free_bytes=0)], "namespaces": [
        space(), space(name="poor", assigned_bytes=0)]}),
    ("SAC205", "degraded", {"pools": [pool(huge="2M")]}),
    ("SAC206", "degraded", {"room": lambda path: SLAB}),
    ("SAC207", "degraded", {"free_metadata": {"kv": 0}}),
    ("SAC208", "ok", {"pools": [pool(recovered=True)]}),
    ("SAC209", "ok", {"pools": [pool(recovered=True, rebooted=True)]}),
    ("SAC210", "critical", {"pools": [pool(state="lost", reason="dax0.0 has gone")]}),
    ("SAC211", "degraded", {"pools": [pool(extents=[
        {"index": 0, "path": "/x/data.0", "lost": "dax0.0 has gone"}])]}),
    ("SAC212", "critical", {"pools": [pool(read_only="metadata is dead")]}),
    ("SAC301", "critical", {"namespaces": [space(state="damaged", reason="torn")]}),
    ("SAC302", "degraded", {"pools": [pool(free_bytes=0)], "namespaces": [
        space(pinned=98)]}),
    ("SAC302", "degraded", {"namespaces": [space(pinned=98, quota_bytes=SLAB)]}),
    ("SAC303", "degraded", {"namespaces": [space(quarantined=2)]}),
    ("SAC401", "degraded", {"clients": [client(connected=False, lost_ms=61_000, pinned=1)]}),
    ("SAC402", "degraded", {"clients": [client(evicted=True)]}),
    ("SAC403", "ok", {"clients": [client(connected=False, lost_ms=61_000)]}),
    # How they come about is in test_health_cxl.py.
    *((code, check.severity if check.severity != "note" else "ok",
       {"devices": [Condition(code, "mem0", "something")]})
      for code, check in CHECKS.items() if code.startswith("SAC5")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "status", "changes"), CASES)
def test_findings(code: str, status: str, changes: dict[str, Any]) -> None:
    found = judge(dataclasses.replace(GOOD, **changes))
    assert [f["code"] for f in found["findings"]] == [code]
    assert found["status"] == status
    finding = found["findings"][0]
    assert finding["severity"] == CHECKS[code].severity
    assert finding["object"]
    assert finding["message"]
    assert finding["hint"]


def test_no_finding_of_what_is_usual() -> None:
    """A full pool whose namespaces all have memory; pins where it can still grow; a client
    that has just lost its connection."""
    assert judge(dataclasses.replace(GOOD, pools=[pool(free_bytes=0)]))["findings"] == []
    assert judge(dataclasses.replace(GOOD, namespaces=[space(pinned=100)]))["findings"] == []
    gone = client(connected=False, lost_ms=2000, pinned=1)
    assert judge(dataclasses.replace(GOOD, clients=[gone]))["findings"] == []


def test_many_starved_namespaces_are_shortened() -> None:
    spaces = [space(name=f"n{i}", assigned_bytes=0) for i in range(9)]
    sight = dataclasses.replace(GOOD, pools=[pool(free_bytes=0)], namespaces=spaces)
    found = judge(sight)["findings"][0]
    assert "n0, n1, n2 and 6 more have nothing" in found["message"]


def test_the_worst_decides() -> None:
    sight = dataclasses.replace(GOOD, pools=[pool(dead_blocks=1), pool(state="absent")])
    assert judge(sight)["status"] == "critical"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (NotFoundError("no daemon", hint="sacctl daemon run"), "SAC101", "unknown"),
        (CtlError("it did not answer", object="/s"), "SAC102", "critical"),
        (DeniedError("may not"), "SAC106", "unknown"),
    ],
)
def test_unreachable(error: CtlError, code: str, status: str) -> None:
    record = unreachable(error)
    assert (record["status"], record["findings"][0]["code"]) == (status, code)


def test_examine_without_a_daemon(tmp_path: Path) -> None:
    record = health.examine(tmp_path / "none")
    assert record["status"] == "unknown"
    assert EXIT[record["status"]] == 30
    assert "sacctl daemon run" in record["findings"][0]["hint"]


def test_every_code_is_explained_tested_and_documented() -> None:
    documented = set(re.findall(r"^\| `(SAC\d+)` \|", DOC.read_text(), re.M))
    assert documented == set(CHECKS)
    tested = {code for code, _, _ in CASES} | {"SAC101", "SAC102", "SAC106"}
    assert tested == set(CHECKS)
    for code, check in CHECKS.items():
        text = explain(code.lower())
        assert text.startswith(f"{code}: {check.title}")
        assert len(text.split("\n\n")) >= 3
    with pytest.raises(NotFoundError, match="no finding SAC399"):
        explain("SAC399")
