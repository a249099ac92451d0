# SPDX-License-Identifier: Apache-2.0
"""The way to a pool that a daemon serves."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from libsac import _core
from libsac.arguments import milliseconds, text
from libsac.errors import AccessError, ArgumentError, DaemonError
from libsac.pool import Pool

__all__ = ["connect", "default_sockets"]

SYSTEM = Path("/run/sac")
SOCKET = "sacd.sock"
START = "Start it with 'sacctl daemon run' (or 'systemctl start sacd')."
MOVED = (
    "SAC_CONFIG is set, which libsac does not read: if the settings have another run_dir, set "
    "SAC_SOCKET to the sacd.sock in it, or pass socket="
)
TURN = 0.05  # seconds between attempts; signals (Ctrl-C) are handled in between


def connect(
    pool: str | None = None,
    *,
    socket: str | os.PathLike[str] | None = None,
    name: str | None = None,
    timeout: float = 0.0,
    reconnect: float = 10.0,
) -> Pool:
    """A pool that the daemon serves, with the same calls as one of :func:`embedded`.

    Lookups, pins, views and gathers are loads and stores in shared memory; reservations and
    commits ask the daemon. After a restart of the daemon all handles go on.

    Args:
        pool: its name; None: the only one that the daemon has.
        socket: of the daemon. None: ``$SAC_SOCKET``, else the first that answers of the
            user's own daemon and the system's (docs/sharing.md).
        name: how this process is called in ``sacctl client list``; None: as it is.
        timeout: seconds to wait for a daemon that is not there yet.
        reconnect: seconds that a call waits for a daemon that went away.

    Raises:
        DaemonError: nobody listens there; the message says how to start a daemon.
        NotFoundError: it has no such pool, or several and none was named.
        AccessError: the socket may not be used, or it lies in a folder of somebody else.
        VersionError: daemon and library speak different versions.
    """
    wait, again = milliseconds(timeout, "timeout"), milliseconds(reconnect, "reconnect")
    wanted = None if pool is None else text(pool, "pool")
    called = None if name is None else text(name, "name")
    sockets = default_sockets() if socket is None else [_path(socket)]
    return Pool(
        _first(sockets, wait / 1000, lambda path: _core.connect(path, wanted, called, 0, again))
    )


def default_sockets(env: Mapping[str, str] = os.environ, uid: int | None = None) -> list[str]:
    """Where a daemon is looked for, first one first.

    Raises AccessError for a folder under /tmp that is not the user's own: who made it could
    listen there.
    """
    given = env.get("SAC_SOCKET", "")
    if given:
        return [given]
    uid = os.geteuid() if uid is None else uid
    system = str(SYSTEM / SOCKET)
    if uid == 0:
        return [system]
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return [str(Path(runtime) / "sac" / SOCKET), system]
    own = Path(f"/tmp/sac-{uid}")
    _check(own, uid)
    return [str(own / SOCKET), system]


def _check(folder: Path, uid: int) -> None:
    try:
        found = folder.lstat()
    except OSError:
        return
    if found.st_uid != uid or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise AccessError(
            f"{folder} is not a folder that only user {uid} can write to: whoever made it "
            "could pose as the daemon. Remove it, or name the daemon's socket",
            object=str(folder),
            errno=errno.EACCES,
        )


def _path(socket: object) -> str:
    try:
        path = os.fsdecode(os.fspath(socket))  # type: ignore[call-overload]
    except TypeError:
        raise ArgumentError(f"socket is {socket!r}; a path is needed") from None
    if not path:
        raise ArgumentError("socket is empty; a path is needed")
    return text(path, "socket")


def _first(sockets: list[str], seconds: float, attempt: Callable[[str], Any]) -> Any:
    """What the first socket that answers gives, tried for so many seconds."""
    end = time.monotonic() + seconds
    while True:
        for path in sockets:
            try:
                return attempt(path)
            except DaemonError as error:
                last = error
        left = end - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(left, TURN))
    env = os.environ
    # Only sacctl reads settings, and they may have put the daemon's socket elsewhere.
    if env.get("SAC_CONFIG") and not env.get("SAC_SOCKET") and str(SYSTEM / SOCKET) in sockets:
        what = MOVED
    elif len(sockets) == 1:
        raise last
    else:
        what = START
    raise DaemonError(
        f"no daemon listens at {' or '.join(sockets)}. {what}",
        object=sockets[0],
        errno=last.errno,
    ) from last
