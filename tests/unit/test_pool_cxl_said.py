# SPDX-License-Identifier: Apache-2.0
"""What plans, refusals and notes of pools of CXL devices say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit.cxl_house import CxlHouse, M
from unit.test_cli_pool_cxl import Boot, boot, run
from unit.test_pool_cxl_survivors import serials, two_regions

from sacctl.cxl.read import read
from sacctl.cxl.regiondestroy import destroy
from sacctl.errors import RefusedError
from sacctl.pool.cxl_taken import pools_named, whose
from sacctl.pool.record import Record

__all__ = ["boot"]  # the fixture


@pytest.mark.parametrize("topology", ["2hb4", "1hb4", "sw4"])
@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("daemon", [False, True])
def test_a_plan_takes_away_what_the_deed_takes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str, ways: int, daemon: bool
) -> None:
    """Also the regions that are whole and lie above the one that is to be made again."""
    with CxlHouse(tmp_path, monkeypatch, topology) as house:
        record = two_regions(house)
        gone = serials(record, ways)[0]
        if daemon:
            house.daemon.pools["kv"]["extents"] = [{"lost": "gone"}]
        else:
            house.daemon.stop()
        house.machine.unplug(gone)
        house.machine.plug(gone)
        planned = house.assemble(dry_run=True, daemon=daemon).steps
        done: list[str] = []
        house.assemble(daemon=daemon, say=done.append)
        *clearing, _ = planned
        assert done[: len(clearing)] == clearing
        last = [step for step in done if step.endswith("/delete_region")]
        assert [step for step in clearing if step.endswith("/delete_region")] == last


def test_destroyed_without_a_device(boot: Boot) -> None:
    machine = boot("2hb2")
    run("pool", "create", "kv", "--devices", "0x100,0x101")
    machine.unplug(0x101)
    said = run("pool", "destroy", "kv", "--yes", code=4).stderr
    assert "serial:0x101 is not there" in said
    assert "--allow-leak" in said
    run("pool", "destroy", "kv", "--yes", "--dry-run", code=4)
    done = run("-o", "json", "pool", "destroy", "kv", "--yes", "--allow-leak", code=7)
    assert any("serial:0x100: not scrubbed" in left for left in json.loads(done.stdout)["left"])
    assert "not all of its memory was scrubbed" in done.stderr
    assert "no pools" in run("pool", "list").stderr


def pools(house: CxlHouse) -> tuple[Record, Record]:
    """Two on the same devices, one behind the other."""
    return (
        house.create(name="a", bytes=512 * M).record,
        house.create(name="b", bytes=512 * M).record,
    )


def test_what_is_in_the_way_is_named_by_its_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch, "1hb2", size=512 * M) as house:
        a, b = pools(house)
        assert a.cxl is not None
        assert b.cxl is not None
        mine, above = a.cxl.regions[0].region, b.cxl.regions[0].region
        with pytest.raises(RefusedError, match=f"before {above} of pool 'b'") as caught:
            house.destroy(name="a")
        assert caught.value.hint == "sacctl pool destroy b first"
        topology = read(house.machine.sysfs)
        with pytest.raises(RefusedError) as caught:
            destroy(house.machine.sysfs, topology, mine, whose=whose(house.records, "other"))
        assert caught.value.hint == f"destroy {above} first"


def test_a_plan_that_another_pool_is_in_the_way_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CxlHouse(tmp_path, monkeypatch) as house:
        record = house.create().record
        assert record.cxl is not None
        region, boot_id = record.cxl.regions[0].region, record.cxl.boot
        with (
            pytest.raises(RefusedError, match="no") as caught,
            pools_named(house.records, boot_id),
        ):
            raise RefusedError("no", object=region, hint=f"destroy {region} first")
        assert caught.value.hint == (
            f"destroy {region} first; {region} is pool 'kv': sacctl pool destroy kv"
        )
