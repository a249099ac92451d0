# SPDX-License-Identifier: Apache-2.0
"""Memory that dies under a pool: poison, events, a device pulled out and put back. Only pages
that lie there are lost; daemon and clients go on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vm.guest import cxl
from vm.guest.kit import equal, host, sacctl, sh, until
from vm.guest.product import Pages, daemon, pool, record, room

TOPOLOGIES = ("1hb1",)
LIMIT = 400
DEVICE = "/machine/peripheral/mem0"  # of the host; serial 0x100
INSTANCES = Path("/sys/kernel/tracing/instances")


def devices() -> str:
    return ",".join(device.name for device in cxl.devices().values())


def dpa_of(pages: Pages) -> int:
    """Where a piece of the first page lies in device 0."""
    for piece in range(8):
        places = host.find(0, pages.head(0, piece))
        if places:
            return places[0] // 64 * 64
    raise AssertionError("no piece of the page is in device 0")


def codes(*, code: int | None = None) -> set[str]:
    found = sacctl("health", "-o", "json", code=code).json["findings"]
    return {finding["code"] for finding in found}


@contextmanager
def two() -> Iterator[tuple[Pages, Pages]]:
    """A pool with pages in two namespaces, which have no block in common."""
    with pool("kv", "--devices", devices(), *room()):
        first, second = Pages("kv", "first"), Pages("kv", "second", seed=10_000)
        for pages in (first, second):
            pages.put()
            equal(pages.found(), 4, "pages found")
        yield first, second
        for pages in (first, second):
            pages.close()


def test_poison_takes_its_block_only() -> None:
    with daemon(), two() as (first, second):
        assert not {"SAC513", "SAC203"} & codes(), "nothing is poisoned yet"
        at = dpa_of(first)
        host.qmp("cxl-inject-poison", path=DEVICE, start=at, length=64)
        assert "SAC513" in codes(), "health reads the lists as root"
        equal(first.found(), 4, "health changes nothing")
        done = sacctl("device", "monitor", "--once", "-o", "json").json
        equal([p["dpa"] for p in done["poison"]], [at], "poison")
        equal(len(done["quarantined"]), 1, "places taken out of use")
        assert done["quarantined"][0]["pages"] >= 1
        equal(first.found(), 0, "pages in the block")
        equal(second.found(), 4, "pages elsewhere")
        equal(record("kv")["dead_blocks"], 1, "blocks out of use")
        assert "SAC203" in codes()
        first.put()
        equal(first.found(), 4, "pages put anew, elsewhere")
        again = sacctl("device", "monitor", "--once", "-o", "json").json
        equal(record("kv")["dead_blocks"], 1, "doing it again changes nothing")
        equal(len(again["poison"]), 1, "the device still knows")
        sh("cxl", "list", "-L", "-m", cxl.devices()[0].name, code=None)
        left = [trace.name for trace in INSTANCES.iterdir() if trace.name.startswith("sac")]
        equal(left, [], "traces left behind")


def test_the_monitor_hears_and_outlives_the_daemon() -> None:
    with daemon() as it, two() as (first, second):
        # A device still lists what was poisoned before: out of use since the pool was made.
        before = record("kv")["dead_blocks"]
        monitor = subprocess.Popen(["sacctl", "device", "monitor"])
        try:
            until("the trace", lambda: (INSTANCES / "sac").exists(), 60)
            event = {"path": DEVICE, "log": "failure", "flags": 1, "descriptor": 1, "type": 0}
            host.qmp(
                "cxl-inject-general-media-event",
                **{**event, "dpa": dpa_of(first), "transaction-type": 1},
            )
            until(
                "the block to be out of use",
                lambda: record("kv")["dead_blocks"] == before + 1,
                60,
            )
            equal(first.found(), 0, "pages in the block")
            equal(second.found(), 4, "pages elsewhere")
            it.kill()
            host.qmp(
                "cxl-inject-dram-event",
                **{**event, "dpa": dpa_of(second), "transaction-type": 1},
            )
            it.start()
            until(
                "both blocks to be out of use",
                lambda: record("kv")["dead_blocks"] == before + 2,
                90,
            )
            equal(second.found(), 0, "pages in the second block")
        finally:
            monitor.send_signal(signal.SIGTERM)
            monitor.wait(30)
        equal(monitor.returncode, 0, "the monitor's exit code")
        assert not (INSTANCES / "sac").exists(), "the trace stays behind"


def test_a_device_pulled_out_and_put_back() -> None:
    with (
        daemon(),
        pool("other", "--emulate", "32M"),
        pool("kv", "--devices", devices(), *room()),
    ):
        pages, others = Pages("kv", "chat"), Pages("other", "chat")
        for one in (pages, others):
            one.put()
            equal(one.found(), 4, "pages found")
        host.unplug(0)
        until("the pool to be lost", lambda: record("kv")["state"] == "lost", 60)
        assert {"SAC210", "SAC501"} <= codes(), "health says what is missing"
        equal(lost(pages), 0, "pages found, by the same process")
        equal(others.found(), 4, "pages of the other pool")
        host.plug(0)
        until("the device", lambda: len(cxl.devices()) == 1, 60)
        sacctl("pool", "assemble", "kv", "--wait", "30", limit=300)
        equal(record("kv")["state"], "serving", "state")
        equal(lost(pages), 0, "pages of before: their memory was away, nothing vouches for it")
        until("the client to attach anew", lambda: put(pages), 60)
        equal(pages.found(), 4, "pages put anew by the same process")
        assert not {"SAC210", "SAC501", "SAC507", "SAC508"} & codes()
        for one in (pages, others):
            one.close()


def test_a_driver_taken_away() -> None:
    """The dax device stays, and is not bound again while anybody has it open from before:
    that would break the kernel."""
    with daemon() as it, pool("kv", "--devices", devices(), *room()):
        pages = Pages("kv", "chat")
        pages.put()
        name = Path(record("kv")["extents"][0]["path"]).name
        Path("/sys/bus/dax/drivers/device_dax/unbind").write_text(name)
        until("the pool to be lost", lambda: record("kv")["state"] == "lost", 60)
        equal(lost(pages), 0, "pages found, by the same process")
        assert "SAC508" in codes()
        refused = sacctl("pool", "assemble", "kv", code=4, limit=300)
        assert "is in use" in refused.err, refused.err
        pages.close()
        it.stop()
        it.start()
        sacctl("pool", "assemble", "kv", limit=300)
        again = Pages("kv", "chat")
        again.put()
        equal(again.found(), 4, "pages put anew")
        again.close()


def test_doctor() -> None:
    with daemon(), pool("kv", "--devices", devices(), *room()):
        file = Path("/tmp/report.tar.gz")
        sacctl("doctor", "--output-file", str(file))
        equal(oct(file.stat().st_mode & 0o777), "0o600", "mode")
        sh("tar", "tzf", str(file))
        found = sacctl("doctor", "-o", "json").json
        equal(len(found["devices"]["memdevs"]), 1, "devices")
        equal(found["pools"][0]["name"], "kv", "pool")
        assert found["kernel"], "the kernel's log about CXL"
        assert os.uname().release in found["versions"]["kernel"]
        file.unlink()


def lost(pages: Pages) -> int:
    """How many pages are found; an error of libsac is none, anything else is a fault."""
    from libsac.errors import SacError

    try:
        return pages.found()
    except SacError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 0


def put(pages: Pages) -> bool:
    from libsac.errors import SacError

    try:
        pages.put()
    except SacError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return False
    return True
