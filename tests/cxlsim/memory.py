# SPDX-License-Identifier: Apache-2.0
"""Memory blocks: what kmem adds, who puts it online, and what can go again."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cxlsim.answers import Refused

if TYPE_CHECKING:
    from cxlsim.kernel import Kernel

__all__ = ["POLICIES", "Block", "Memory"]

POLICIES = ("offline", "online", "online_kernel", "online_movable")
_RAM = 1 << 30  # the machine's own memory, at address 0


@dataclass(eq=False)
class Block:
    """zone: where it is or was last online. stuck: it cannot go offline. added: by kmem."""

    number: int
    node: int
    state: str
    zone: str
    stuck: bool = False
    added: bool = True


class Memory:
    def __init__(self, kernel: Kernel, policy: str, block_bytes: int) -> None:
        if policy not in POLICIES:
            raise ValueError(f"auto_online {policy!r}")
        self.kernel = kernel
        self.policy = policy
        self.block_bytes = block_bytes
        own = range(max(1, _RAM // block_bytes))
        self.blocks = {n: Block(n, 0, "online", "DMA32", stuck=True, added=False) for n in own}
        self.leaked: list[tuple[int, int]] = []
        self.firmware: list[tuple[int, int]] = []  # System RAM from boot, in CXL windows

    def set_policy(self, value: str) -> None:
        wanted = value.removesuffix("\n")
        if wanted not in POLICIES:
            raise Refused(errno.EINVAL)
        self.policy = wanted

    def is_ram(self, start: int, size: int) -> bool:
        """Whether any of the range is System RAM."""
        return any(
            a < start + size and start < a + n for a, n in [*self.leaked, *self.firmware]
        )

    def held(self, ranges: list[tuple[int, int]]) -> bool:
        """Whether memory that could not be removed lies there."""
        return any(
            a < start + size and start < a + n for start, size in ranges for a, n in self.leaked
        )

    def lost(self, ranges: list[tuple[int, int]]) -> bool:
        """Whether such memory is online still."""
        return self.held(ranges) and any(b.state == "online" for b in self.of(ranges))

    def _whole(self, start: int, size: int) -> range:
        """Numbers of the blocks that lie in the range with all they have."""
        return range(-(-start // self.block_bytes), (start + size) // self.block_bytes)

    def add(self, ranges: list[tuple[int, int]], node: int, name: str) -> None:
        numbers = [n for start, size in ranges for n in self._whole(start, size)]
        if not numbers:
            raise Refused(errno.EINVAL, f"{name}: smaller than a memory block")
        for n in numbers:
            zone = "Movable" if self.policy == "online_movable" else "Normal"
            state = "offline" if self.policy == "offline" else "online"
            self.blocks[n] = Block(n, node, state, zone, stuck=zone == "Normal")

    def of(self, ranges: list[tuple[int, int]]) -> list[Block]:
        return [
            self.blocks[n]
            for start, size in ranges
            for n in self._whole(start, size)
            if n in self.blocks
        ]

    def remove(self, ranges: list[tuple[int, int]]) -> None:
        """kmem lets go: a range with a block that is online stays, all of it, until reboot."""
        for start, size in ranges:
            blocks = self.of([(start, size)])
            if any(b.state != "offline" for b in blocks):
                self.kernel.say(f"{start:#x} cannot be hotremoved until the next reboot")
                self.leaked.append((start, size))
                continue
            for block in blocks:
                del self.blocks[block.number]

    def set_state(self, block: Block, value: str) -> None:
        wanted = value.removesuffix("\n")
        if wanted not in POLICIES:
            raise Refused(errno.EINVAL)
        if (wanted == "offline") == (block.state == "offline"):
            raise Refused(errno.EINVAL, "it is so already")
        if wanted == "offline":
            if block.stuck:
                raise Refused(errno.EBUSY)
            block.state = "offline"
            return
        block.state = "online"
        block.zone = "Movable" if wanted == "online_movable" else "Normal"
        block.stuck = block.zone == "Normal"

    def set_online(self, block: Block, value: str) -> None:
        if value[:1] not in ("0", "1"):
            raise Refused(errno.EINVAL)
        wanted = "online" if value[0] == "1" else "offline"
        if wanted == block.state:  # nothing to do, unlike for state
            return
        self.set_state(block, wanted)

    def zones(self, block: Block) -> str:
        """valid_zones: where it is, or where it may go."""
        if block.state == "online":
            return block.zone if block.number else "none"
        return "Normal Movable"

    @property
    def nodes(self) -> dict[int, list[Block]]:
        found: dict[int, list[Block]] = {0: []}
        for block in self.blocks.values():
            found.setdefault(block.node, []).append(block)
        return found
