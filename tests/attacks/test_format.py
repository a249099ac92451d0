# SPDX-License-Identifier: Apache-2.0
"""What the library writes is what docs/format.md says, read by attacks/region.py."""

from __future__ import annotations

from pathlib import Path

from attacks.region import BODY, HEADERS, META, NAMESPACE, SYSTEM, TAIL, Region, crc32c
from attacks.victim import EXTENTS, LAYOUTS, PAGES, SIZE, intact, keys_of, tokens
from conformance.content import RICH, page
from unit import reference_keys

import libsac


def test_crc() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_superblocks(path: Path) -> None:
    with Region(path) as region:
        newest, older = region.copies()
        assert newest.valid
        assert older.valid
        assert newest["sequence"] == older["sequence"] + 1
        assert newest["magic"] == b"SACPOOL\0"
        assert (newest["major"], newest["minor"], newest["kind"]) == (1, 2, 1)
        assert newest["flags"] == 1
        assert newest["incarnation"] == 1
        assert newest["extent_count"] == len(region.data) == EXTENTS
        assert newest["bytes"] == len(region.meta)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        assert newest["boot_id"].hex() == boot
        for i, data in enumerate(region.data):
            own = region.copies(i)[0]
            assert own.valid
            assert (own["kind"], own["position"]) == (2, i)
            assert own["pool"] == newest["pool"]
            assert own["bytes"] == newest[f"extent{i}_bytes"] == len(data)
            assert newest[f"extent{i}_slabs"] == len(data) // (2 << 20)
            assert region.slab(i, 0).role == SYSTEM
        assert region.slab(META, 0).role == SYSTEM
        assert sum(map(len, region.data)) == SIZE + EXTENTS * (2 << 20)


def test_slabs_and_namespaces(path: Path) -> None:
    with Region(path) as region:
        for name, layout in LAYOUTS.items():
            block = region.namespace(name)
            assert block.valid
            assert block["layout_hash"] == reference_keys.layout_hash(layout)
            assert block["body_bytes"] == layout.page_bytes
            assert block["tail_bytes"] == layout.tail_bytes
            assert block["chunk_slots"] == max(block["body_pages"], block["tail_pages"])
            assert block["flags"] == (3 if name == "a" else 0)
            assert len(region.owned(block["id"], NAMESPACE)) == 1
            positions = [p for p, _, _ in region.owned(block["id"], HEADERS)]
            assert positions == list(range(len(positions)))
            bodies = [p for p, _, _ in region.owned(block["id"], BODY)]
            assert all(bodies.count(p) == block["body_slabs"] for p in bodies)
            assert bool(region.owned(block["id"], TAIL)) == (layout.tail_bytes > 0)


def test_page_headers_and_rows(path: Path) -> None:
    with libsac.embedded(None, path) as pool:
        keys = {name: keys_of(pool, name) for name in LAYOUTS}
    with Region(path) as region:
        limit = region.superblock["generation_limit"]
        generations = []
        for name, layout in LAYOUTS.items():
            ns = region.namespace(name)
            pages = region.pages(ns)
            bodies = [key for part, key in pages if part == 0]
            assert len(bodies) == PAGES[name]
            assert len(pages) - len(bodies) == min(layout.tail_pages, PAGES[name])
            for i, key in enumerate(keys[name].values):
                header = pages[0, key.tobytes()]
                assert header["parent"] == keys[name].parents[i].tobytes()
                assert header["flags"] == (3 if name == "a" else 0)
                if name == "a":
                    size = layout.page_tokens
                    assert header.token_ids == tuple(tokens(name)[i * size : (i + 1) * size])
                generations.append(header["generation"])
        assert len(set(generations)) == len(generations)
        assert all(1 <= g < limit for g in generations)
        # A row where the layout says that it lies, and the checksum over all rows.
        ns = region.namespace("a")
        key = keys["a"].values[5].tobytes()
        header = region.pages(ns)[0, key]
        chunk, within = divmod(header["slot"], ns["chunk_slots"])
        (start,) = [(e, i) for p, e, i in region.owned(ns["id"], BODY) if p == chunk]
        base = start[1] * (2 << 20) + within * ns["body_bytes"]
        body = region.data[start[0]][base : base + ns["body_bytes"]]
        crc = 0
        for plane in RICH.planes:
            if plane.is_tail:
                continue
            at = RICH.plane_offset(plane.name)
            for layer in plane.layers:
                for row in page(key, plane, layer).reshape(-1, plane.row_bytes):
                    assert body[at : at + plane.row_bytes] == row.tobytes()
                    crc = crc32c(row.tobytes(), crc)
                    at += plane.row_pitch
        assert crc == header["data_crc"]


def test_what_region_writes_the_library_reads(path: Path) -> None:
    with Region(path) as region:
        for block in (region.superblock, region.namespace("a"), region.namespace("b")):
            block.seal()
        for name in LAYOUTS:
            for header in region.pages(region.namespace(name)).values():
                header.seal()
        for extent in (META, 0, 1):
            for index, slab in list(region.slabs(extent)):
                region.set_slab(extent, index, slab)
    with libsac.embedded(None, path) as pool:
        intact(pool)
