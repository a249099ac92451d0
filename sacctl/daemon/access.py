# SPDX-License-Identifier: Apache-2.0
"""Who may do what: docs/protocol.md, Access and Administration."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from libsac.store import NamespaceInfo
from sacctl.errors import DeniedError

__all__ = ["Access", "Peer"]

READ, WRITE = 4, 2


@dataclass(frozen=True, slots=True)
class Peer:
    """Who asks, as the kernel says. groups: supplementary ones."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def in_group(self, gid: int) -> bool:
        return gid == self.gid or gid in self.groups


@dataclass(frozen=True, slots=True)
class Access:
    """The rules. admin_gid None: no group of administrators. creators_gid None: who may
    connect may create namespaces. All ``require`` calls raise DeniedError."""

    admin_gid: int | None = None
    creators_gid: int | None = None
    own_uid: int = field(default_factory=lambda: os.geteuid())

    def is_master(self, peer: Peer) -> bool:
        """Root and the daemon's own user may do everything."""
        return peer.uid in (0, self.own_uid)

    def require_master(self, peer: Peer, what: str) -> None:
        if not self.is_master(peer):
            raise DeniedError(f"user {peer.uid} may not {what}", hint="run it as root")

    def is_admin(self, peer: Peer) -> bool:
        return self.is_master(peer) or (
            self.admin_gid is not None and peer.in_group(self.admin_gid)
        )

    def require_admin(self, peer: Peer, op: str) -> None:
        if not self.is_admin(peer):
            who = f"root, user {self.own_uid}" if self.own_uid else "root"
            if self.admin_gid is not None:
                who += f" and group {self.admin_gid}"
            raise DeniedError(
                f"user {peer.uid} may not ask for {op}: only {who} may",
                object=op,
                hint="run it as root, or join the administrators' group (admin_group)",
            )

    def require_creator(self, peer: Peer) -> None:
        if self.creators_gid is None or self.is_master(peer):
            return
        if not peer.in_group(self.creators_gid):
            raise DeniedError(
                f"user {peer.uid} may not create namespaces; group {self.creators_gid} may",
                object=f"user {peer.uid}",
                hint="join the group that creators_group names",
            )

    def require_owner(self, peer: Peer, info: NamespaceInfo, what: str) -> None:
        if not (self.is_master(peer) or peer.uid == info.uid):
            raise DeniedError(
                f"user {peer.uid} may not {what} namespace '{info.name}': it belongs to user "
                f"{info.uid}",
                object=info.name,
            )

    def require_writer(self, peer: Peer, info: NamespaceInfo, what: str) -> None:
        """Its owner, and who may write to it."""
        if self.is_master(peer) or peer.uid == info.uid:
            return
        # As for a file: the first class that fits decides.
        shift = 3 if peer.in_group(info.gid) else 0
        if not info.mode >> shift & WRITE:
            raise DeniedError(
                f"user {peer.uid} may not {what} namespace '{info.name}': it belongs to user "
                f"{info.uid}, group {info.gid}, with mode {info.mode:04o}",
                object=info.name,
            )
