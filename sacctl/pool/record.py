# SPDX-License-Identifier: Apache-2.0
"""Pool records: one TOML file a pool, NAME.toml in the folder of pools (pools.d).

A record says which files belong to a pool. It is written before the first of them is made
and removed after the last of them has gone, so that whatever a kill leaves is in a record.
"""

from __future__ import annotations

import os
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sacctl.errors import CtlError, NotFoundError, from_os
from sacctl.files import forget_new, read_regular, write_whole
from sacctl.paths import ram_dir
from sacctl.pool import toml
from sacctl.pool.cxl_record import CxlPart
from sacctl.pool.fields import Fields
from sacctl.pool.names import NAME, check_name

__all__ = ["KINDS", "STATES", "Record", "Records", "check_name", "render"]

KINDS = ("emulated", "cxl")
STATES = ("creating", "ready", "extending", "assembling", "destroying")
_SUFFIX = ".toml"
SUPERBLOCK = 2 << 20  # bytes of each extent: its first slab
_MOST_BYTES = 1 << 20  # of a record: 64 extents with long paths are a third of it


@dataclass(frozen=True, slots=True)
class Record:
    """A pool as its record says. Sizes in bytes.

    Attributes:
        state: "ready"; "creating" and "destroying" are what a kill leaves, and "extending":
            whether the last of data is part of the pool yet, its superblock says.
        uuid: lower-case hex; "" while the pool is being made.
        created: ISO 8601, UTC.
        meta, data: paths of the extents.
        sizes: of the data extents as they were asked for; the files are a little larger.
        huge: page size of the hugetlbfs that data lies on: "", "2M" or "1G".
        uid: owner of the files.
        folders: that sacctl made for its pools, outer first; they go with the pool when they
            are empty.
        path: the folder given by --path, or "".
        cxl: of a pool of kind "cxl": its regions.
    """

    name: str
    uuid: str
    created: str
    meta: str
    data: tuple[str, ...]
    sizes: tuple[int, ...]
    huge: str = ""
    uid: int = 0
    kind: str = "emulated"
    state: str = "ready"
    folders: tuple[str, ...] = ()
    path: str = ""
    cxl: CxlPart | None = None

    def with_(self, **changes: Any) -> Record:
        """A copy with other values."""
        return replace(self, **changes)

    def data_bytes(self) -> tuple[int, ...]:
        """Of each data extent, what namespaces can be given. Sizes of extents in CXL memory
        have the slab of the superblock in them; other files are larger by it than asked for."""
        if self.cxl is None:
            return self.sizes
        return tuple(max(0, size - SUPERBLOCK) for size in self.sizes)

    def to_dict(self) -> dict[str, Any]:
        """As in the TOML file and in ADMIN requests; :meth:`from_dict` is the way back."""
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "uuid": self.uuid,
            "created": self.created,
            "uid": self.uid,
            "huge": self.huge,
            "path": self.path,
            "meta": self.meta,
            "data": list(self.data),
            "sizes": list(self.sizes),
            "folders": list(self.folders),
        } | ({} if self.cxl is None else {"cxl": self.cxl.to_dict()})

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "pool record") -> Record:
        """Checks and takes a record apart; unknown keys are left out, for they are a newer
        version's. Raises CtlError that names ``where`` and the key."""
        table = Fields(values, where)
        fail = table.fail
        if not values.get("sizes"):
            raise fail("sizes", "is missing or empty")
        part = table.values.get("cxl")
        record = cls(
            name=table.text("name"),
            kind=table.text("kind"),
            state=table.text("state", "ready"),
            uuid=table.text("uuid"),
            created=table.text("created"),
            uid=table.number("uid", 0),
            huge=table.text("huge", ""),
            path=table.text("path", ""),
            meta=table.text("meta"),
            data=table.texts("data"),
            sizes=table.numbers("sizes"),
            folders=table.texts("folders", []),
            cxl=None if part is None else CxlPart.read(Fields(part, where, "cxl.")),
        )
        if not NAME.fullmatch(record.name):
            raise fail("name", f"is '{record.name}', which no pool can be called")
        if record.kind not in KINDS:
            raise fail("kind", f"is '{record.kind}'; this version knows {', '.join(KINDS)}")
        if (record.kind == "cxl") != (record.cxl is not None):
            raise fail("cxl", f"is {'missing' if part is None else 'there'} in a pool of kind "
                       f"'{record.kind}'")  # fmt: skip
        if record.state not in STATES:
            raise fail("state", f"is '{record.state}'; it must be one of {', '.join(STATES)}")
        if record.huge not in ("", "2M", "1G"):
            raise fail("huge", f"is '{record.huge}'; it must be empty, 2M or 1G")
        if record.uuid and not re.fullmatch(r"[0-9a-f]{32}", record.uuid):
            raise fail("uuid", "is not 32 hexadecimal digits")
        if len(record.data) != len(record.sizes):
            raise fail("sizes", f"has {len(record.sizes)} entries for {len(record.data)} files")
        if record.cxl and record.cxl.mode == "devdax":
            if len(record.cxl.regions) != len(record.data):
                raise fail("cxl.regions", f"are {len(record.cxl.regions)} for "
                           f"{len(record.data)} extents")  # fmt: skip
            if record.cxl.parent and not NAME.fullmatch(record.cxl.parent):
                raise fail("cxl.parent", f"is '{record.cxl.parent}', which no pool is called")
        if record.cxl and record.cxl.mount:
            # Below the root of a simulated machine it ends so.
            place = record.cxl.mount
            if not place.endswith(str(ram_dir(record.name))):
                raise fail("cxl.mount", f"is '{place}'; it must be {ram_dir(record.name)}")
            if any(str(Path(path).parent) != place for path in (record.meta, *record.data)):
                raise fail("meta, data", f"are not all in {place}, as cxl.mount says")
        for path in (record.meta, *record.data, *record.folders):
            if not path.startswith("/") or ".." in Path(path).parts:
                raise fail("meta, data, folders", f"hold '{path}', which is no absolute path")
        return record


class Records:
    """The records in one folder. Its methods read the files anew each time.

    lock: a descriptor of the folder that is locked for a change through this object, -1 while
    there is none (TakeRecords).
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.lock = -1

    def path(self, name: str) -> Path:
        return self.folder / (check_name(name) + _SUFFIX)

    def names(self) -> list[str]:
        """Names that have a record, sorted. No folder: none. Raises CtlError."""
        try:
            files = [file.name for file in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise from_os(error, "cannot read the folder of pool records") from error
        stems = (f[: -len(_SUFFIX)] for f in files if f.endswith(_SUFFIX))
        return sorted(stem for stem in stems if NAME.fullmatch(stem))

    def find(self, name: str) -> Record | None:
        """The record, None where there is none. Raises CtlError for one that is not whole."""
        path = self.path(name)
        try:
            values = tomllib.loads(read_regular(path, _MOST_BYTES).decode())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise from_os(error, "cannot read the pool record") from error
        # Of numbers that are too long, or arrays too deep, the parser says so in its own way.
        except (ValueError, RecursionError) as error:
            raise CtlError(
                f"{path} is no TOML file: {error}",
                object=str(path),
                hint="mend it by hand, or remove it and create the pool again",
            ) from error
        record = Record.from_dict(values, str(path))
        if record.name != name:
            raise CtlError(
                f"{path} is the record of a pool '{record.name}': file and name must agree",
                object=str(path),
                hint="rename the file, or mend the name in it",
            )
        return record

    def get(self, name: str) -> Record:
        """The record. Raises NotFoundError, naming the pools there are."""
        record = self.find(name)
        if record is None:
            known = ", ".join(self.names())
            raise NotFoundError(
                f"there is no pool '{name}'" + (f"; there are {known}" if known else ""),
                object=name,
                hint="sacctl pool list",
            )
        return record

    def all(self) -> list[Record]:
        """All records, by name. Raises CtlError for one that is not whole."""
        found = (self.find(name) for name in self.names())
        return [record for record in found if record is not None]

    def write(self, record: Record) -> None:
        """Puts the record in place, whole or not at all; 0644. Raises CtlError.

        One writer at a time: sacctl's hold the lock on the folder, the daemon's are its own.
        """
        path = self.path(record.name)
        try:
            write_whole(path, render(record).encode(), 0o644, sync=True)
            self._sync()
        except OSError as error:
            raise from_os(error, f"cannot write the pool record {path}") from error

    def remove(self, name: str) -> None:
        """Removes the record; none there is no error. Raises CtlError."""
        path = self.path(name)
        try:
            path.unlink(missing_ok=True)
            forget_new(path)
            self._sync()
        except OSError as error:
            raise from_os(error, f"cannot remove the pool record {path}") from error

    def _sync(self) -> None:
        with suppress(FileNotFoundError):
            fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def render(record: Record) -> str:
    """The record as TOML."""
    values = record.to_dict()
    part = values.pop("cxl", None)
    lines = [
        "# Written by sacctl. What is named here belongs to the pool.\n",
        toml.keys(values),
    ]
    if part is not None:
        regions = part.pop("regions")
        lines += ["\n[cxl]\n", toml.keys(part)]
        for region in regions:
            lines += ["\n[[cxl.regions]]\n", toml.keys(region)]
    return "".join(lines)
