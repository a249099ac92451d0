# SPDX-License-Identifier: Apache-2.0
"""What the commands on pools say of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sacctl.cli.context import App
from sacctl.errors import CtlError, DeniedError, NotFoundError, PartlyError

if TYPE_CHECKING:
    from sacctl.pool.cxl_destroy import CxlDestroyed

__all__ = ["answer", "lost", "ours", "refuse_leak", "shown"]


def shown(state: App, name: str) -> dict[str, Any]:
    """The answer of pool.show, or what the record says where the daemon knows nothing."""
    from sacctl.cli.offline import offline, own_records
    from sacctl.pool.boot import boot_id

    link = state.try_link()
    if link is not None:
        try:
            return _with_room(state, link.call("pool.show", name=name))
        except NotFoundError:
            if own_records(state).find(name) is None:
                raise
    record = own_records(state).get(name)
    found = offline(record, link is not None, boot_id(state.sysfs))
    return _with_room(state, {"pool": found, "namespaces": []})


def _with_room(state: App, answer: dict[str, Any]) -> dict[str, Any]:
    """Adds how much of a pool's room for isolated namespaces is free now."""
    cxl = answer["pool"].get("cxl")
    if cxl and cxl["room_bytes"]:
        from sacctl.cxl.read import read
        from sacctl.pool.cxl_room import room_left

        topology = read(state.sysfs)
        region = topology.region(cxl["regions"][0]["region"])
        if region is not None:
            cxl["room_free_bytes"] = room_left(topology, region)
    return answer


def answer(state: App, schema: str, made: Any, values: dict[str, Any]) -> None:
    """Emits the pool as it is now. made.pool is empty where no daemon was handed it.

    Raises PartlyError where the pool's metadata lies on poison that the devices list.
    """
    from sacctl.cli.offline import offline
    from sacctl.cli.pool_poison import out_of_use
    from sacctl.render.pools import pool_parts

    found, served = made.pool or offline(made.record, False), made.served
    poisoned = served and made.record.cxl is not None and out_of_use(state)
    if not served or not made.pool or poisoned:
        # A daemon that has started meanwhile takes the pool by its record; and one that had
        # it already was not handed it.
        with suppress(CtlError):
            found = shown(state, made.record.name)["pool"]
            served = found["state"] == "serving"
    values = {**values, "served": served}
    state.emit(schema, {"pool": found, **values}, lambda: pool_parts(found))
    if not served:
        text = f"pool {found['name']} is not served: {found['reason']}. next: {found['hint']}"
        if found["hint"] == "sacctl daemon run":
            text += " (one that is just starting takes the pool by itself)"
        state.say(text)
    elif found["read_only"]:
        raise PartlyError(
            f"pool {found['name']} is made, and takes no writes: {found['read_only']}",
            object=found["name"],
            hint=f"sacctl pool destroy {found['name']}, have the device clear its poison "
            "(sacctl health --explain SAC212), and create the pool again",
        )


class ours:  # noqa: N801 -- reads as a word: with ours(...)
    """Says whose a pool is that has no record here and that the daemon serves."""

    def __init__(self, state: App, name: str) -> None:
        self._state, self._name = state, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        link = self._state.try_link() if isinstance(error, NotFoundError) else None
        if link is None:
            return
        served = [p for p in link.call("pool.list")["pools"] if p["name"] == self._name]
        if served:
            folder = self._state.settings.pools.dir
            raise DeniedError(
                f"pool {self._name} has no record in {folder}: its files are of user "
                f"{served[0]['owner_uid']}",
                object=self._name,
                hint="run this as that user",
            ) from error


def refuse_leak(state: App, what: str, gone: CxlDestroyed) -> None:
    """Says what of a destroyed pool stays in memory. Raises PartlyError where anything does."""
    for left in gone.left:
        state.say(f"note: {left}")
    if gone.left:
        raise PartlyError(
            f"{what} is destroyed, and not all of its memory was scrubbed",
            object=gone.record.name,
            hint="keep these devices, or zero them by hand: whoever gets them next can read "
            "what they hold",
        )


def lost(state: App, name: str) -> str:
    """What goes with the pool, for the question."""
    from sacctl.render.quantities import list_of, size

    found = shown(state, name)
    there, spaces = found["pool"], found["namespaces"]
    held = sum(space["assigned_bytes"] for space in spaces)
    total = there["data_bytes"] or sum(extent["bytes"] for extent in there["extents"])
    if not spaces:
        return f"pool {name} of {size(total)}"
    names = list_of([space["name"] for space in spaces])
    many = "1 namespace" if len(spaces) == 1 else f"{len(spaces)} namespaces"
    return f"pool {name} of {size(total)} with {many} of {size(held)} ({names})"
