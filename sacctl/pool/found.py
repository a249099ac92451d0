# SPDX-License-Identifier: Apache-2.0
"""What is there already of an emulated pool that is to be made."""

from __future__ import annotations

import os
from pathlib import Path

from sacctl.errors import CtlError, RefusedError, from_os
from sacctl.pool import superblock
from sacctl.pool.destroy import removal
from sacctl.pool.places import Places, folder_of, ours
from sacctl.pool.record import Record
from sacctl.pool.steps import Step

__all__ = ["is_there", "remains"]


def is_there(seen: Record) -> bool:
    """Whether the files of a pool are there. Memory does not outlive a reboot, records do."""
    try:
        found = superblock.read_file(seen.meta)
    except OSError as error:
        raise from_os(error, f"cannot read {seen.meta}") from error
    if found is None and os.path.lexists(seen.meta):
        raise CtlError(
            f"{seen.meta} holds no valid superblock: the pool is damaged",
            object=seen.name,
            hint=f"sacctl pool destroy {seen.name}, then create it anew",
        )
    if found is not None and found.uuid != seen.uuid:
        raise CtlError(
            f"{seen.meta} is of another pool (uuid {found.uuid}) than the record says",
            object=seen.name,
            hint=f"move it away, or remove {seen.name}.toml from the pool records",
        )
    return found is not None


def remains(places: Places, record: Record, seen: Record | None) -> list[Step]:
    """Steps that clear the folders of a creation that was cut off and whose record has gone.

    Raises RefusedError where a whole pool, or nobody knows whose files, lie there.
    """
    folder = folder_of(record.meta)
    try:
        files = {file.name for file in Path(folder).iterdir() if ours(file.name)}
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os(error, f"cannot look into the folder {folder}") from error
    if seen is not None:
        known = {Path(path).name for path in (seen.meta, *seen.data)}
        files -= {*known, "meta.new"} if folder_of(seen.meta) == folder else set()
    if not files:
        return []
    if "meta.new" not in files or "meta" in files:
        raise RefusedError(
            f"{folder} holds the files of a pool that has no record here: "
            f"{', '.join(sorted(files))}",
            object=folder,
            hint=f"another name or --path; or, if nobody needs it, rm -r {folder}",
        )
    data = tuple(sorted(f"{folder}/{name}" for name in files if name.startswith("data.")))
    rest = record.with_(data=data or record.data, sizes=record.sizes[:1] * max(1, len(data)))
    return removal(places, rest, folders=False)
