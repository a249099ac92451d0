# SPDX-License-Identifier: Apache-2.0
"""A client that does to the memory it was given whatever it can."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from attacks import wire
from attacks.honest import Scene, scene, soon


@pytest.fixture
def attacked() -> Iterator[Scene]:
    with scene() as one:
        yield one


@pytest.fixture
def speaker(attacked: Scene) -> Iterator[wire.Speaker]:
    with wire.Speaker(attacked.socket) as one:
        one.hello()
        yield one


def use(attacked: Scene, speaker: wire.Speaker, table: wire.Table) -> None:
    """All operations once, whatever they answer. Pages that it may evict, it evicts."""
    for op, payload in [
        (wire.RESERVE, table.reserve_request(1)),
        (wire.EVICT, struct.pack("<IIQ", table.number, 0, 5)),
        (wire.VERIFY, table.number_request()),
        (wire.STATS, table.number_request()),
    ]:
        speaker.ask(op, payload).close()
    attacked.pages = attacked.table.pages()


def test_a_table_full_of_noise(
    attacked: Scene, speaker: wire.Speaker, rng: np.random.Generator
) -> None:
    table = speaker.attach("p", "honest")
    held = attacked.table.reserve(4)
    for _ in range(5):
        table.memory[:] = rng.bytes(len(table.memory))
        use(attacked, speaker, table)
        attacked.daemon.clients()
    # Every slot counts as pinned by it: what others may lose is room, not pages.
    attacked.commit(held)
    attacked.restart()
    table.close()


def test_all_ones_in_a_table(attacked: Scene, speaker: wire.Speaker) -> None:
    table = speaker.attach("p", "honest")
    table.memory[:] = b"\xff" * len(table.memory)
    use(attacked, speaker, table)
    assert speaker.status(wire.DETACH, table.number_request()) == 0
    table.close()
    attacked.check()


@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 20000])
def test_a_table_cut_short(attacked: Scene, speaker: wire.Speaker, size: int) -> None:
    table = speaker.attach("p", "honest")
    held = table.reserve(2)
    os.ftruncate(table.table_fd, size)
    use(attacked, speaker, table)
    attacked.daemon.clients()
    attacked.check()
    assert speaker.status(wire.ABORT, struct.pack("<IIQ", table.number, 2, 0) + b"".join(
        wire.HELD_ITEM.pack(r.slot, 0, r.token) for r in held)) == 0  # fmt: skip
    attacked.restart()
    table.close()


def test_a_table_made_longer(attacked: Scene, speaker: wire.Speaker) -> None:
    table = speaker.attach("p", "honest")
    os.ftruncate(table.table_fd, 1 << 40)
    use(attacked, speaker, table)
    attacked.check()
    assert speaker.status(wire.DETACH, table.number_request()) == 0
    table.close()


def test_a_ring_that_lies(attacked: Scene, speaker: wire.Speaker) -> None:
    table = speaker.attach("p", "honest")
    for head in (2**64 - 1, 2**63, 1 << 40, 0):
        struct.pack_into("<Q", table.memory, 128, head)
        struct.pack_into("<4I", table.memory, 8192, 0xFFFFFFFF, 0x7FFFFFFF, table.capacity, 3)
        use(attacked, speaker, table)
    table.close()


def test_tokens_forged_in_the_table(attacked: Scene, speaker: wire.Speaker) -> None:
    """They are its own notes: the daemon's decide."""
    table = speaker.attach("p", "honest")
    held = attacked.table.reserve(1)[0]
    struct.pack_into("<Q", table.memory, table.tokens_at + 8 * held.slot, held.token)
    request = table.commit_request([held], [wire.key(999)])
    assert speaker.status(wire.COMMIT, request) == wire.RESERVATION
    attacked.commit([held])
    table.close()


def test_an_unrevoked_table(attacked: Scene) -> None:
    """A client that takes the mark away gets nothing from it."""
    with wire.Speaker(attacked.socket) as own:
        me = own.hello()
        table = own.attach("p", "honest")
        attacked.restart()
        assert table.revoked()
        struct.pack_into("<I", table.memory, 64, 0)
        with wire.Speaker(attacked.socket) as back:
            assert back.hello(me) == me
            assert back.status(wire.RESERVE, table.reserve_request(1)) == wire.STALE
        table.close()


def test_what_is_given_to_read_cannot_be_written(
    attacked: Scene, speaker: wire.Speaker
) -> None:
    table = speaker.attach("p", "honest", flags=wire.READ_ONLY)
    assert table.access == 1
    for fd in (table.index_fd, *table.data_fds):
        with pytest.raises((PermissionError, ValueError)):
            mmap.mmap(fd, 4096, access=mmap.ACCESS_WRITE)
        with pytest.raises(OSError, match="Invalid argument"):
            os.ftruncate(fd, 0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(fd, b"x")
    table.close()
    writer = speaker.attach("p", "honest")
    with pytest.raises((PermissionError, ValueError)):
        mmap.mmap(writer.index_fd, 4096, access=mmap.ACCESS_WRITE)
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(writer.index_fd, 1 << 30)
    writer.close()


def test_locks_on_given_files(attacked: Scene, speaker: wire.Speaker) -> None:
    """They are open files of the client's own: it cannot give up the daemon's lock."""
    table = speaker.attach("p", "honest")
    for fd in table.data_fds:
        fcntl.flock(fd, fcntl.LOCK_UN)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    table.close()


def test_a_table_kept_after_detach(attacked: Scene, speaker: wire.Speaker) -> None:
    table = speaker.attach("p", "honest")
    assert speaker.status(wire.DETACH, table.number_request()) == 0
    for slot in range(min(table.capacity, 1000)):
        table.set_count(slot, 1)
    for op, payload in [
        (wire.RESERVE, table.reserve_request(1)),
        (wire.STATS, table.number_request()),
        (wire.COMMIT, table.commit_request([], [])),
    ]:
        assert speaker.status(op, payload) == wire.NOT_FOUND
    evicted = attacked.speaker.ask(
        wire.EVICT, struct.pack("<IIQ", attacked.table.number, 0, 1000)
    )
    assert struct.unpack("<Q", evicted.payload)[0] == attacked.pages  # its counts do not count
    attacked.pages = 0
    table.close()


def in_child(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_id_of_another_process(attacked: Scene, speaker: wire.Speaker) -> None:
    with wire.Speaker(attacked.socket) as own:
        identity = own.hello()

        def steal() -> None:
            with wire.Speaker(attacked.socket) as thief:
                assert thief.status(wire.HELLO, wire.hello(identity)) == wire.ACCESS

        assert in_child(steal) == 0
        assert own.status(wire.POOLS) == 0


def test_what_the_dead_pinned_is_free(attacked: Scene) -> None:
    assert soon(lambda: attacked.daemon.clients().clients == 1)
    before = attacked.daemon.clients()

    def die() -> None:
        one = wire.Speaker(attacked.socket)
        one.hello()
        table = one.attach("p", "honest")
        table.reserve(3)
        for slot in range(table.capacity):
            table.set_count(slot, 9)
        os.kill(os.getpid(), 9)

    assert in_child(die) == -9
    assert soon(lambda: attacked.daemon.clients() == before)
