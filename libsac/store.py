# SPDX-License-Identifier: Apache-2.0
"""Namespaces: the store of KV pages as an engine uses it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libsac import _core
from libsac.arguments import key_bytes, milliseconds, salt_bytes, unsigned
from libsac.errors import ArgumentError, NotFoundError
from libsac.events import Events
from libsac.gather import gather
from libsac.keys import Keys, token_ids
from libsac.layout import Layout
from libsac.pages import Prefix, Put, Sequence
from libsac.waiting import wait_for_room

__all__ = ["KEY_SCHEMES", "POLICIES", "Namespace", "NamespaceInfo", "NamespaceStats"]

KEY_SCHEMES = ("sac", "engine")  # position: sac_key_scheme of include/sac.h
POLICIES = ("lru",)  # position: of eviction, docs/format.md
LAST_TAILS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """What a namespace is. Sizes in bytes.

    Attributes:
        body_bytes, tail_bytes: of one page's parts. tail_pages: last pages of a prefix that
            need their tail.
        quota_bytes: 0 where there is none. assigned_bytes: of slabs it holds, but for those on
            dead memory, which the quota does not count. index_bytes: of memory of its index.
        capacity_pages: that fit under the quota, were the pool its alone.
        uid, gid: owner and group. mode: who may use it, bits as of a file: r to read, w to
            put, evict, verify and drop.
        policy: what leaves first when it is full.
    """

    name: str
    model: str
    checksum: bool
    token_ids: bool
    key_scheme: str
    page_tokens: int
    body_bytes: int
    tail_bytes: int
    tail_pages: int
    layout_hash: bytes
    quota_bytes: int
    assigned_bytes: int
    index_bytes: int
    capacity_pages: int
    uid: int
    gid: int
    mode: int
    policy: str


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """Counters since the pool was opened, and what is there now. The core counts them.

    A part is a page's body or its tail.

    Attributes:
        pages, tails: parts committed now. reserved: parts being written.
        quarantined: parts of expired reservations and of dead memory.
        pinned: parts with at least one pin.
        lookups, hits: keys asked and found.
        commits: parts made visible. duplicates: commits that another writer had won.
        aborts: parts given up. evictions: parts evicted.
        rows_gathered, bytes_gathered: copied out by gather. bytes_written: copied in.
        checks_failed: pages dropped because they did not verify.
    """

    pages: int
    tails: int
    reserved: int
    quarantined: int
    pinned: int
    lookups: int
    hits: int
    commits: int
    duplicates: int
    aborts: int
    evictions: int
    rows_gathered: int
    bytes_gathered: int
    bytes_written: int
    checks_failed: int


def _checked(keys: object) -> Keys:
    if not isinstance(keys, Keys):
        raise ArgumentError(
            f"keys must be a libsac.Keys, made by keys() or engine_keys(), not "
            f"{type(keys).__name__}"
        )
    return keys


class Namespace:
    """Named pages of one layout. Thread-safe; made by ``Pool.namespace``.

    Attributes:
        layout: its Layout.
    """

    def __init__(self, native: _core.Namespace, pool: object) -> None:
        self._native = native
        self._pool = pool  # keeps it open while the namespace is used
        self._movers: dict[int, Any] = {}  # of libsac.gpu, by GPU
        info = native.info()
        self._name = str(info["name"])
        self._token_ids = bool(info["token_ids"])
        self._key_scheme = str(info["key_scheme"])
        self.layout = Layout._from_native(int(info["page_tokens"]), native.planes())
        self._has_tail = self.layout.tail_bytes > 0
        self._numbers = {plane.name: i for i, plane in enumerate(self.layout.planes)}

    def _end(self) -> None:
        """The pool was closed: lets go of its memory."""
        for mover in self._movers.values():
            mover.close()
        self._movers.clear()
        self._native.close()

    @property
    def name(self) -> str:
        return self._name

    def keys(
        self, tokens: Any, salt: bytes = b"", parent: bytes | NDArray[np.uint8] | None = None
    ) -> Keys:
        """One key for each full page of tokens; a rest shorter than a page has none.

        Args:
            tokens: ids, 0..2^32-1: an iterable, a range or an integer array.
            salt: users with different salts never share a page. Not with a parent.
            parent: key of the page before the first (32 bytes), to go on from there.

        Raises ArgumentError, also for a namespace of engine keys.
        """
        ids, salt = token_ids(tokens), salt_bytes(salt)
        if parent is not None:
            if salt:
                raise ArgumentError("give a salt or a parent: the parent has its salt already")
            parent = key_bytes(parent, "parent")
        values = self._native.keys(ids, salt, parent)
        above = self._native.root(salt) if parent is None else parent
        return Keys.chain(values, above, ids[: len(values) * self.layout.page_tokens])

    def engine_keys(
        self, hashes: Iterable[bytes], parents: Iterable[bytes] | None = None
    ) -> Keys:
        """An engine's own 32-byte hashes as keys; without parents each follows the one before.

        Raises ArgumentError where a hash has not 32 bytes or the counts differ.
        """
        if self._key_scheme != "engine":
            raise ArgumentError(
                f"namespace '{self._name}' makes its own keys: use keys(), or create one with "
                'key_scheme="engine"'
            )
        return Keys.of_engine(hashes, parents)

    def lookup(self, keys: Keys) -> NDArray[np.bool_]:
        """(n,) bool: which pages are there. Pins nothing, takes no lock."""
        return self._native.lookup(_checked(keys).values)

    def longest(self, keys: Keys) -> int:
        """Pages of the longest prefix of keys whose planes are all there. Pins nothing."""
        return self._native.longest(_checked(keys).values)

    def pin(self, keys: Keys) -> Prefix:
        """Pins the longest prefix of keys whose planes are all there; perhaps 0 pages.

        Pinned pages are not evicted until the prefix is closed.
        """
        return Prefix(_core.pin(self._native, _checked(keys).values), self)

    def put(
        self,
        keys: Keys,
        *,
        timeout: float = 0.0,
        deadline: float = 60.0,
        tokens: Any = None,
        first_tail: int | None = None,
    ) -> Put:
        """Reserves room for the pages that are not there, to be written and committed.

        Args:
            timeout: seconds to wait for room when everything is pinned.
            deadline: seconds the writer has; later its commit is refused.
            tokens: ids of the pages, for a namespace that keeps them and keys that do not
                know them.
            first_tail: pages from here on get their window and state planes too; None: the
                last ``tail_pages`` of keys.

        Raises NoSpaceError, saying who holds the space. Nothing is reserved then.
        """
        wait, allowed = milliseconds(timeout, "timeout"), milliseconds(deadline, "deadline")
        if allowed == 0:
            raise ArgumentError("deadline is 0; a writer needs some time")
        _checked(keys)
        first = LAST_TAILS
        if first_tail is not None:
            first = min(unsigned(first_tail, "first_tail"), len(keys))
        ids = None
        if self._token_ids:
            ids = keys.tokens if tokens is None else token_ids(tokens)
        native = wait_for_room(
            wait,
            lambda ms: _core.put(
                self._native, keys.values, keys.parents, ids, allowed, ms, first
            ),
        )
        return Put(native, self)

    def sequence(self, tokens: Any = (), salt: bytes = b"") -> Sequence:
        """A growing sequence, beginning with the longest stored prefix of tokens.

        ``sequence.tokens`` says how many were found; the others are not appended.
        """
        return Sequence(_core.sequence(self._native, token_ids(tokens), salt_bytes(salt)), self)

    def gather(
        self,
        plane: str,
        layer: int,
        prefixes: Many[Prefix | Sequence],
        tokens: Any = None,
        *,
        rows: Any = None,
        head: int | None = None,
        out: Any = None,
        threads: int = 0,
        stream: bool = False,
    ) -> Any:
        """Rows of several prefixes in one call: (batch, k, row_bytes) uint8.

        Args:
            prefixes: one a request.
            tokens: (batch, k) int32 or int64 token numbers; where the plane has heads and
                no head is given, (batch, heads, k), and the result is (batch, heads, k,
                row_bytes). -1 gives a row of zeros.

        Else as ``Prefix.gather``.
        """
        if tokens is None and rows is None:
            raise ArgumentError("a batched gather needs tokens or rows")
        if isinstance(prefixes, (Prefix, Sequence)) or not all(
            isinstance(p, (Prefix, Sequence)) for p in prefixes
        ):
            raise ArgumentError("prefixes must be a list of prefixes or sequences")
        return gather(
            self, list(prefixes), True, plane, layer, tokens, rows, head, out, threads, stream
        )

    def events(self) -> Events:
        """A reader of page events from now on."""
        return Events(self._native)

    def evict(self, count: int) -> int:
        """Evicts up to count page parts by the namespace's policy; returns how many. A body
        takes its tail along, which is not counted."""
        return self._native.evict(unsigned(count, "count"))

    def verify(self) -> tuple[int, int]:
        """Checks headers, and data checksums where kept: (checked, dropped) page parts.

        Pages that fail are dropped, also while pinned: their readers get StaleError.
        """
        checked, dropped = self._native.verify()
        return checked, dropped

    @property
    def info(self) -> NamespaceInfo:
        """Sizes and settings."""
        return NamespaceInfo(**self._native.info())

    def stats(self) -> NamespaceStats:
        """Counters, as they are now."""
        return NamespaceStats(**self._native.stats())

    def __repr__(self) -> str:
        if self._native.closed:
            return f"<Namespace '{self._name}': closed>"
        size, planes = self.layout.page_tokens, ", ".join(self._numbers)
        return f"<Namespace '{self._name}': pages of {size} tokens, planes {planes}>"

    def _plane(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            raise NotFoundError(
                f"namespace '{self._name}' has no plane '{name}'; it has "
                + ", ".join(self._numbers),
                object=str(name),
            )
        return number
