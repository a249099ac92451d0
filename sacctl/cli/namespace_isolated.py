# SPDX-License-Identifier: Apache-2.0
"""What ``sacctl namespace`` does with isolated namespaces, and with owners."""

from __future__ import annotations

import grp
import pwd
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sacctl.cli.context import App
from sacctl.cli.undoable import undoable
from sacctl.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from libsac.layout import Layout

__all__ = ["create_isolated", "destroyed_isolated", "ids"]


def ids(owner: str) -> dict[str, int]:
    """{"uid", "gid"} of USER or USER:GROUP, names or numbers. Raises UsageError."""
    user, _, group = owner.partition(":")
    found: dict[str, int] = {}
    try:
        if user.isdigit():
            found["uid"] = int(user)
            with suppress(KeyError):
                found["gid"] = pwd.getpwuid(int(user)).pw_gid
        else:
            entry = pwd.getpwnam(user)
            found |= {"uid": entry.pw_uid, "gid": entry.pw_gid}
        if group:
            found["gid"] = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise UsageError(
            f"--owner {owner}: there is no such user or group", object=owner
        ) from None
    return found


def create_isolated(
    state: App,
    name: str,
    pool: str | None,
    layout: Layout,
    options: dict[str, Any],
    dry_run: bool,
) -> None:
    """Makes the namespace with its own devices."""
    from sacctl.cli.offline import own_records
    from sacctl.cli.pool_cxl import owner
    from sacctl.cli.pool_poison import out_of_use
    from sacctl.pool.cxl_isolated import create, pool_of

    quota = options.pop("quota") or 0
    if not quota:
        raise UsageError(
            "--isolated needs --quota: how much its devices are to hold",
            hint=f"sacctl namespace create {name} --isolated --quota 8G ...",
        )
    parent = pool or _parent(state)
    with undoable(state) as say:
        made = create(
            parent,
            name,
            quota,
            {**options, "layout": layout.to_dict(), "quota": quota},
            state.sysfs,
            own_records(state),
            state.link(),
            owner=owner(state),
            dry_run=dry_run,
            say=say,
        )
    if dry_run:
        state.plan(made.steps)
        return
    where = pool_of(parent, name)
    out_of_use(state)
    answer = state.call("namespace.show", pool=where, name=name)
    from sacctl.render.pools import namespace_parts

    space = answer["namespace"]
    values = {"namespace": space, "created": True, "steps": made.steps}
    state.emit("namespace.create", values, lambda: namespace_parts(space))
    state.say(f'clients find it in pool {where}: libsac.connect("{where}").namespace("{name}")')


def _parent(state: App) -> str:
    """The only pool that leaves room. Raises NotFoundError, UsageError."""
    from sacctl.cli.offline import own_records

    found = [
        record.name for record in own_records(state).all() if record.cxl and record.cxl.room
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFoundError(
            "no pool leaves room for isolated namespaces",
            hint="sacctl pool create NAME --devices ... --isolated-room SIZE",
        )
    raise UsageError(
        f"there are {len(found)} such pools: {', '.join(found)}", hint="--pool NAME"
    )


def destroyed_isolated(state: App, where: str, name: str, yes: bool, dry_run: bool) -> bool:
    """Whether the namespace is an isolated one, which then has been destroyed (or planned)."""
    from sacctl.cli.offline import own_records
    from sacctl.cli.pool_answers import refuse_leak
    from sacctl.cli.pool_cxl import destroy
    from sacctl.pool.cxl_isolated import find

    records = own_records(state)
    parent = where.removesuffix(f".{name}")
    record = find(records, parent, name)
    if record is None:
        return False
    if dry_run:
        state.plan(destroy(state, record.name, dry_run=True).steps)
        return True
    state.confirm(f"Destroy the isolated namespace {record.name}/{name}?", yes)
    gone = destroy(state, record.name)
    values = {"pool": record.name, "namespace": name, "steps": gone.steps}
    state.emit("namespace.destroy", values, list)
    refuse_leak(state, f"namespace {record.name}/{name}", gone)
    state.say(f"namespace {record.name}/{name} is destroyed, and its room given back")
    return True
