# SPDX-License-Identifier: Apache-2.0
"""What `sacctl device` says of real devices, against `cxl list`, which reads them its own
way; as root and as a user; and with a device that is taken away from its driver."""

from __future__ import annotations

import json
from typing import Any

from vm.guest import cxl
from vm.guest.kit import equal, sacctl, sh, topology, until

TOPOLOGIES = {"6.12": ("2hb2",), "7.3": ("sw4",)}

_WINDOWS = {"2hb2": "decoder0.2", "sw4": "decoder0.0"}


def test_devices_as_cxl_list_has_them() -> None:
    ours = sacctl("device", "topology", "-o", "json").json
    agree(ours)
    for device in ours["devices"]:
        equal((device["verdict"], device["health"]), ("usable", "ok"), device["name"])
    found = cxl.devices()
    region = cxl.create(_WINDOWS[topology()], list(found.values()))
    dax = cxl.dax_of(region)
    cxl.bind(dax)
    ours = sacctl("device", "topology", "-o", "json").json
    agree(ours)
    (shown,) = ours["regions"]
    equal(shown["devices"], [device.name for device in found.values()], "positions")
    for device in ours["devices"]:
        equal(device["verdict"], "in use", device["name"])
        equal(device["hint"], f"sacctl pool adopt NAME {region}", device["name"])
    shown = sacctl("device", "show", "0x100", "-o", "json", limit=120).json
    equal([one["name"] for one in shown["dax"]], [dax], "dax devices")
    sacctl("device", "topology")
    cxl.destroy(region)


def agree(ours: dict[str, Any]) -> None:
    """Names, sizes, decoders and regions are those that cxl list finds."""
    theirs: dict[str, dict[str, Any]] = {}
    for what, key in (("-M", "memdev"), ("-D", "decoder"), ("-R", "region")):
        listed = json.loads(sh("cxl", "list", what).out or "[]")
        for one in listed:  # where there are several kinds, each has a list of its own
            inner = next((v for k, v in one.items() if k.endswith("decoders")), None)
            for each in inner if inner is not None else [one]:
                if key in each:
                    theirs[each[key]] = each
    names = {n for n in theirs if n.startswith("mem")}
    equal({d["name"] for d in ours["devices"]}, names, "devices")
    for device in ours["devices"]:
        other = theirs[device["name"]]
        equal(int(device["serial"], 16), other["serial"], "serial")
        equal(device["pci"], other["host"], "PCI address")
        equal(device["ram_bytes"], other["ram_size"], "capacity")
    for window in ours["windows"]:
        other = theirs[window["name"]]
        equal(window["bytes"], other["size"], "size of a window")
        equal(window["start"], other["resource"], "address of a window")
        equal(window["ways"], other["nr_targets"], "targets of a window")
    for region in ours["regions"]:
        other = theirs[region["name"]]
        equal(region["bytes"], other["size"], "size of a region")
        equal(region["start"], other["resource"], "address of a region")
        equal(region["ways"], other["interleave_ways"], "ways")
        equal(region["granularity"], other["interleave_granularity"], "granularity")
        equal(region["committed"], other["decode_state"] == "commit", "committed")


def test_poison_is_roots_to_see() -> None:
    first = cxl.devices()[0]
    cxl.must(f"/sys/kernel/debug/cxl/{first.name}/inject_poison", "0x1000")
    shown = sacctl("device", "show", first.name, "-o", "json", limit=120).json["device"]
    equal([(p["dpa"], p["bytes"]) for p in shown["poison"]], [(0x1000, 64)], "poison")
    equal(shown["health"], "poison", "health")
    # To others the program shows nothing: we must not say that there is none.
    done = as_nobody("device", "show", first.name, "-o", "json", "-v")
    assert "poison" not in done["device"], done["device"]["poison"]
    assert "only root" in done["note"], done["note"]
    cxl.must(f"/sys/kernel/debug/cxl/{first.name}/clear_poison", "0x1000")
    shown = sacctl("device", "show", first.name, "-o", "json", limit=120).json["device"]
    equal(shown["poison"], [], "poison after it was cleared")


def as_nobody(*words: str) -> dict[str, Any]:
    line = " ".join(("SAC_CONFIG= sacctl", *words))
    found: dict[str, Any] = sh("su", "-s", "/bin/sh", "nobody", "-c", line, limit=120).json
    return found


def test_a_user_sees_all_but_addresses() -> None:
    root = sacctl("device", "topology", "-o", "json").json
    user = as_nobody("device", "topology", "-o", "json")
    equal(user["devices"], root["devices"], "devices")
    equal(user["skipped"], [], "skipped")
    for one, other in zip(user["windows"], root["windows"], strict=True):
        equal(one["start"], None, "address of a window")
        equal(one | {"start": other["start"]}, other, "window")


def test_a_device_without_its_driver() -> None:
    pci = cxl.devices()[0].pci
    cxl.must("/sys/bus/pci/drivers/cxl_pci/unbind", pci)
    done = sacctl("device", "list", "-o", "json").json
    equal([one["name"] for one in done["skipped"]], [pci], "skipped")
    assert "cxl_pci has not taken it" in done["skipped"][0]["why"], done["skipped"]
    sacctl("device", "show", pci, code=3)
    cxl.must("/sys/bus/pci/drivers/cxl_pci/bind", pci)
    until("the device", lambda: 0 in cxl.devices())
    back = sacctl("device", "show", pci, "-o", "json", limit=120).json["device"]
    equal((back["serial"], back["verdict"]), ("0x100", "usable"), "the device that is back")
