# SPDX-License-Identifier: Apache-2.0
"""What is asked for: a pool's name, the sizes of its extents, and where they lie."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from libsac.errors import ArgumentError
from libsac.sizes import format_size, parse_size
from sacctl.errors import UsageError
from sacctl.pool.record import Record, check_name

__all__ = ["SLAB", "Spec", "format_sizes", "parse_sizes"]

SLAB = 2 << 20
META_SLAB = 64 << 10
MOST_EXTENTS = 64
MOST_BYTES = 1 << 50
HUGE = {"": 0, "2M": 2 << 20, "1G": 1 << 30}
# A namespace takes two metadata slabs at least: this much is for 8192 of them. Files are
# sparse, so it costs nothing until it is used.
META_ROOM = 1 << 30


def round_up(size: int, to: int) -> int:
    return -(-size // to) * to


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes of each extent of "4G" or "2x1G", in whole slabs of 2 MiB (rounded up).

    Raises UsageError.
    """
    match = re.fullmatch(r"\s*(?:(\d{1,9})\s*[xX*]\s*)?([^xX*]+)", text)
    if match is None:
        raise UsageError(f"'{text}' is no size of a pool; write 4G, or 2x1G for two extents")
    try:
        size = round_up(parse_size(match[2]), SLAB)
    except ArgumentError as error:
        raise UsageError(f"'{text}' is no size of a pool: {error}") from error
    count = int(match[1]) if match[1] else 1
    if not 1 <= count <= MOST_EXTENTS:
        raise UsageError(f"'{text}' asks for {count} extents; 1 to {MOST_EXTENTS} are allowed")
    if not size:
        raise UsageError(f"'{text}': an extent needs 2M at least")
    if count * size > MOST_BYTES:
        raise UsageError(f"'{text}' is more than {format_size(MOST_BYTES)}")
    return (size,) * count


def format_sizes(sizes: tuple[int, ...]) -> str:
    """As parse_sizes reads them; with a + between where they differ."""
    return "+".join(f"{count}x{format_size(size)}" for size, count in Counter(sizes).items())


@dataclass(frozen=True, slots=True)
class Spec:
    """A pool as it is asked for. Raises UsageError where that cannot be.

    Attributes:
        sizes: bytes of each data extent that namespaces can be given.
        huge: "", or "2M" or "1G": data on a hugetlbfs of that page size.
        path: folder of the files; "" leaves it to sacctl.
    """

    name: str
    sizes: tuple[int, ...]
    huge: str = ""
    path: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= len(self.sizes) <= MOST_EXTENTS:
            raise UsageError(f"{len(self.sizes)} extents; 1 to {MOST_EXTENTS} are allowed")
        if self.huge not in HUGE:
            raise UsageError(f"--huge {self.huge}: the page sizes are 2M and 1G")
        if self.huge and self.path:
            raise UsageError(
                "--huge looks for a hugetlbfs itself and --path names a folder: give one"
            )
        if self.path:
            # Symbolic links on the way are followed once, here; the folder itself is none.
            path = Path(os.path.normpath(Path(self.path).absolute()))
            object.__setattr__(self, "path", str(path.parent.resolve() / path.name))

    @classmethod
    def of(cls, record: Record) -> Spec:
        """What the record's pool was asked for."""
        return cls(record.name, record.sizes, record.huge, record.path)

    def file_bytes(self) -> tuple[int, ...]:
        """Of the data files: a slab more each for the superblock; on pages of 1G whole ones,
        of which the superblock takes its slab."""
        return tuple(file_bytes(size, self.huge) for size in self.sizes)

    def meta_bytes(self) -> int:
        """Of the metadata file, which is sparse: tables, a header for each 4 KiB, and room
        for namespaces and for extents that come later."""
        total = sum(self.file_bytes())
        tables = round_up(total // SLAB * 8, META_SLAB) + MOST_EXTENTS * META_SLAB
        return round_up(tables + total // 32 + META_ROOM, META_SLAB)

    def differences(self, record: Record) -> list[str]:
        """Where the record's pool differs from this, in words."""
        there, found = Spec.of(record), []
        if self.sizes != there.sizes:
            found.append(
                f"size: it has {format_sizes(there.sizes)}, asked is {format_sizes(self.sizes)}"
            )
        if self.huge != there.huge:
            found.append(
                f"huge pages: it has {there.huge or 'none'}, asked is {self.huge or 'none'}"
            )
        if self.path != there.path:
            found.append(
                f"folder: it lies in {Path(record.meta).parent}, asked is "
                f"{self.path or 'the default'}"
            )
        return found


def file_bytes(size: int, huge: str) -> int:
    """Bytes of the file of a data extent of that size."""
    if huge == "1G":
        return round_up(size, HUGE[huge])
    return size + SLAB
