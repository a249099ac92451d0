# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the format on memory, from docs/format.md alone.

Nothing here uses the library: attacks change a pool's files with it and seal them again.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

META_SLAB = 64 << 10
DATA_SLAB = 2 << 20
META = 0xFFFFFFFF  # in place of an extent's position: the metadata extent
FREE, DIRTY, SYSTEM, NAMESPACE, HEADERS, BODY, TAIL = range(7)


def _table() -> list[int]:
    out = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        out.append(n)
    return out


_TABLE = _table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of data, going on from the CRC of what came before it."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


SUPERBLOCK = {
    "magic": (0, "8s"),
    "major": (8, "I"),
    "minor": (12, "I"),
    "pool": (16, "16s"),
    "sequence": (32, "Q"),
    "kind": (40, "I"),
    "position": (44, "I"),
    "bytes": (48, "Q"),
    "slab_bytes": (56, "Q"),
    "incarnation": (64, "Q"),
    "boot_id": (72, "16s"),
    "flags": (88, "I"),
    "extent_count": (92, "I"),
    "generation_limit": (96, "Q"),
    "hash_seed": (104, "Q"),
    "meta_slabs": (112, "Q"),
    "meta_table": (120, "Q"),
    **{f"extent{i}_bytes": (256 + 48 * i, "Q") for i in range(64)},
    **{f"extent{i}_slabs": (264 + 48 * i, "Q") for i in range(64)},
    **{f"extent{i}_table": (272 + 48 * i, "Q") for i in range(64)},
}
NAMESPACE_BLOCK = {
    "magic": (0, "8s"),
    "major": (8, "I"),
    "minor": (12, "I"),
    "pool": (16, "16s"),
    "uuid": (32, "16s"),
    "sequence": (48, "Q"),
    "id": (56, "I"),
    "flags": (60, "I"),
    "name": (64, "64s"),
    "model": (128, "128s"),
    "key_scheme": (256, "I"),
    "page_tokens": (260, "I"),
    "plane_count": (264, "I"),
    "header_pitch": (268, "I"),
    "max_bytes": (272, "Q"),
    "body_bytes": (280, "Q"),
    "tail_bytes": (288, "Q"),
    "body_slabs": (296, "I"),
    "body_pages": (300, "I"),
    "tail_slabs": (304, "I"),
    "tail_pages": (308, "I"),
    "chunk_slots": (312, "I"),
    "state": (316, "I"),
    "layout_hash": (320, "32s"),
    "plane0_name": (512, "32s"),
    "plane0_heads": (616, "I"),
    "plane0_row_bytes": (624, "I"),
}
HEADER = {
    "generation": (0, "Q"),
    "state": (8, "I"),
    "part": (12, "I"),
    "key": (16, "32s"),
    "parent": (48, "32s"),
    "slot": (80, "I"),
    "flags": (84, "I"),
    "data_crc": (88, "I"),
}


class Block:
    """Named fields at a place of a file, and the CRC at their end."""

    def __init__(
        self, memory: mmap.mmap, at: int, size: int, fields: dict[str, tuple[int, str]]
    ) -> None:
        self.memory = memory
        self.at = at
        self.size = size
        self.fields = fields

    def __getitem__(self, name: str) -> Any:
        offset, kind = self.fields[name]
        return struct.unpack_from("<" + kind, self.memory, self.at + offset)[0]

    def __setitem__(self, name: str, value: Any) -> None:
        offset, kind = self.fields[name]
        struct.pack_into("<" + kind, self.memory, self.at + offset, value)

    @property
    def raw(self) -> bytes:
        return self.memory[self.at : self.at + self.size]

    @raw.setter
    def raw(self, value: bytes) -> None:
        self.memory[self.at : self.at + self.size] = value

    def crc(self) -> int:
        return crc32c(self.raw[:-4])

    @property
    def valid(self) -> bool:
        return self.crc() == int.from_bytes(self.raw[-4:], "little")

    def seal(self) -> None:
        self.raw = self.raw[:-4] + struct.pack("<I", self.crc())

    def flip(self, byte: int) -> None:
        self.memory[self.at + byte] ^= 0x10


class Header(Block):
    """A page header; its CRC begins with the namespace's uuid and ends with the token ids."""

    def __init__(self, memory: mmap.mmap, at: int, uuid: bytes, page_tokens: int) -> None:
        super().__init__(memory, at, 128, HEADER)
        self.uuid = uuid
        self.page_tokens = page_tokens

    @property
    def token_ids(self) -> tuple[int, ...]:
        return struct.unpack_from(f"<{self.page_tokens}I", self.memory, self.at + 128)

    def crc(self) -> int:
        crc = crc32c(self.raw[:124], crc32c(self.uuid))
        if self["flags"] & 2:
            ids = self.memory[self.at + 128 : self.at + 128 + 4 * self.page_tokens]
            crc = crc32c(ids, crc)
        return crc


@dataclass(frozen=True)
class Slab:
    owner: int
    role: int
    position: int


class Region:
    """The files of a pool under a path, mapped writable. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = _map(path / "meta")
        self.data: list[mmap.mmap] = []
        while (path / f"data.{len(self.data)}").is_file():
            self.data.append(_map(path / f"data.{len(self.data)}"))
        # As it was before the attack; which copy counts does not change by looking on.
        self.superblock = self.copies()[0]
        self.pool: bytes = self.superblock["pool"]

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        for memory in (self.meta, *self.data):
            memory.close()

    # ---- superblocks -------------------------------------------------------------------

    def copies(self, extent: int = META) -> list[Block]:
        """Both copies of an extent's superblock, the one that counts first."""
        memory = self.meta if extent == META else self.data[extent]
        both = [Block(memory, at, 4096, SUPERBLOCK) for at in (0, 4096)]
        return sorted(both, key=lambda b: (b.valid, b["sequence"]), reverse=True)

    # ---- slab tables -------------------------------------------------------------------

    def slab_count(self, extent: int) -> int:
        field = "meta_slabs" if extent == META else f"extent{extent}_slabs"
        return int(self.superblock[field])

    def slab_at(self, extent: int, index: int) -> int:
        """Offset of the entry in the metadata file."""
        field = "meta_table" if extent == META else f"extent{extent}_table"
        return int(self.superblock[field]) + 8 * index

    def slab(self, extent: int, index: int) -> Slab:
        entry = struct.unpack_from("<Q", self.meta, self.slab_at(extent, index))[0]
        assert entry == 0 or entry & 0xFFFF == self.slab_crc(extent, index, entry >> 16)
        return Slab(entry >> 16 & 0xFFFF, entry >> 32 & 0xF, entry >> 36)

    def slab_crc(self, extent: int, index: int, payload: int) -> int:
        place = struct.pack("<IQQ", extent, index, payload)
        return crc32c(self.pool + place) & 0xFFFF

    def set_slab(self, extent: int, index: int, slab: Slab) -> None:
        payload = slab.owner | slab.role << 16 | slab.position << 20
        entry = payload << 16 | self.slab_crc(extent, index, payload)
        struct.pack_into("<Q", self.meta, self.slab_at(extent, index), entry if payload else 0)

    def slabs(self, extent: int) -> Iterator[tuple[int, Slab]]:
        for i in range(self.slab_count(extent)):
            yield i, self.slab(extent, i)

    def owned(self, owner: int, role: int) -> list[tuple[int, int, int]]:
        """(position, extent, index) of a namespace's slabs of one role, sorted."""
        extents = [META] if role in (NAMESPACE, HEADERS) else range(len(self.data))
        return sorted(
            (slab.position, extent, index)
            for extent in extents
            for index, slab in self.slabs(extent)
            if slab.owner == owner and slab.role == role
        )

    # ---- namespaces and pages ----------------------------------------------------------

    def namespace(self, name: str) -> Block:
        """The copy that counts of the superblock of a namespace."""
        for index, slab in self.slabs(META):
            if slab.role != NAMESPACE:
                continue
            for block in self.namespace_copies(index):
                if block.valid and block["name"].rstrip(b"\0").decode() == name:
                    return block
        raise KeyError(name)

    def namespace_copies(self, index: int) -> list[Block]:
        at = index * META_SLAB
        both = [Block(self.meta, at + n, 32768, NAMESPACE_BLOCK) for n in (0, 32768)]
        return sorted(both, key=lambda b: (b["magic"][:3] == b"SAC", b["sequence"]))[::-1]

    def headers(self, ns: Block) -> dict[int, Header]:
        """The headers of all slots, whatever they hold."""
        slabs = [index for _, _, index in self.owned(ns["id"], HEADERS)]
        pitch = ns["header_pitch"]
        each = META_SLAB // pitch
        out = {}
        for slot in self.slots(ns):
            at = slabs[slot // each] * META_SLAB + slot % each * pitch
            out[slot] = Header(self.meta, at, ns["uuid"], ns["page_tokens"])
        return out

    def pages(self, ns: Block) -> dict[tuple[int, bytes], Header]:
        """The valid headers of a namespace by part and key."""
        return {
            (header["part"], header["key"]): header
            for header in self.headers(ns).values()
            if header["state"] == 1 and header.valid
        }

    def slots(self, ns: Block) -> Iterator[int]:
        for role, pages in ((BODY, "body_pages"), (TAIL, "tail_pages")):
            for chunk in sorted({position for position, _, _ in self.owned(ns["id"], role)}):
                first = chunk * ns["chunk_slots"]
                yield from range(first, first + ns[pages])


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)
