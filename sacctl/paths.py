# SPDX-License-Identifier: Apache-2.0
"""Where things are: root under /etc/sac and /run/sac, a user under the XDG folders.

``SAC_SYSTEM=1`` gives root's places to another user: to the system's daemon, which is not
root. ``libsac/client.py`` knows the same rule for the socket; both are docs/settings.md.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sacctl.errors import DeniedError, RefusedError, from_os

__all__ = [
    "RECORD_SUFFIX",
    "SYSTEM_SOCKET",
    "client_sockets",
    "config_file",
    "emulated_dir",
    "hugetlb_dir",
    "make_run_dirs",
    "meta_dir",
    "own_dir",
    "own_records",
    "pools_dir",
    "ram_dir",
    "run_dir",
    "socket_file",
    "state_dir",
]

SYSTEM_CONFIG = Path("/etc/sac")
SYSTEM_RUN = Path("/run/sac")
SYSTEM_STATE = Path("/var/lib/sac")
SYSTEM_RAM = Path("/run/sac-ram")  # not in SYSTEM_RUN, which goes with the daemon
SOCKET_NAME = "sacd.sock"
SYSTEM_SOCKET = SYSTEM_RUN / SOCKET_NAME
RECORD_SUFFIX = ".toml"
SHM = Path("/dev/shm")


def _system(env: Mapping[str, str], uid: int) -> bool:
    return uid == 0 or env.get("SAC_SYSTEM", "") == "1"


def _config_home(env: Mapping[str, str], uid: int) -> Path:
    if _system(env, uid):
        return SYSTEM_CONFIG
    given = env.get("XDG_CONFIG_HOME", "")
    # The XDG rules say that a relative path counts as none.
    home = Path(given) if given.startswith("/") else Path(env.get("HOME", "/")) / ".config"
    return home / "sac"


def config_file(env: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """The settings file: $SAC_CONFIG, else sac.toml in /etc/sac or ~/.config/sac."""
    given = env.get("SAC_CONFIG", "")
    if given:
        return Path(given)
    return _config_home(env, os.geteuid() if uid is None else uid) / "sac.toml"


def pools_dir(env: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """The folder of pool records, NAME.toml each, unless the settings name another."""
    return _config_home(env, os.geteuid() if uid is None else uid) / "pools.d"


def run_dir(env: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """Roster, tables and socket of a daemon of this user."""
    uid = os.geteuid() if uid is None else uid
    if _system(env, uid):
        return SYSTEM_RUN
    given = env.get("XDG_RUNTIME_DIR", "")
    return Path(given) / "sac" if given.startswith("/") else Path(f"/tmp/sac-{uid}")


def socket_file(env: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """The socket of a daemon of this user, unless the settings name another."""
    return run_dir(env, uid) / SOCKET_NAME


def client_sockets(env: Mapping[str, str] = os.environ, uid: int | None = None) -> list[Path]:
    """Where a client looks, first one first: $SAC_SOCKET alone, or the user's, the system's."""
    given = env.get("SAC_SOCKET", "")
    if given:
        return [Path(given)]
    return list(dict.fromkeys([socket_file(env, uid), SYSTEM_SOCKET]))


def emulated_dir(pool: str, uid: int | None = None) -> Path:
    """The folder of an emulated pool's files on /dev/shm."""
    return SHM / f"sac-{os.geteuid() if uid is None else uid}" / pool


def hugetlb_dir(mount: Path, pool: str, uid: int | None = None) -> Path:
    """The folder of an emulated pool's data files on a hugetlbfs mount."""
    return mount / f"sac-{os.geteuid() if uid is None else uid}" / pool


def meta_dir(pool: str) -> Path:
    """The folder of a CXL pool's metadata where its devices cannot be split."""
    return SYSTEM_STATE / pool


def ram_dir(pool: str) -> Path:
    """Where the tmpfs of a pool in system RAM is mounted."""
    return SYSTEM_RAM / pool


def state_dir(run: Path) -> Path:
    """Roster and tables of the daemon whose run directory this is."""
    return run / "state"


def own_records(run: Path) -> Path:
    """The daemon's own pool records, of pools whose makers keep theirs elsewhere."""
    return run / "pools.d"


def make_run_dirs(run: Path) -> Path:
    """Makes the run directory and the state folder in it; returns the latter.

    Who may connect must be able to enter the run directory, so only the state folder has to
    be closed to others. One that root makes is 0755, of others 0700; one that is there may
    have any mode that lets nobody else write. Raises RefusedError, DeniedError, CtlError.
    """
    own_dir(run, 0o755 if os.geteuid() == 0 else 0o700, 0o022, "run_dir")
    state = state_dir(run)
    own_dir(state, 0o700, 0o077, "run_dir")
    return state


def own_dir(path: Path, mode: int, forbidden: int, what: str) -> None:
    """Makes the folder, or checks that it is one, ours, and has none of the forbidden bits.

    Raises RefusedError for the bits and for a link, DeniedError for a folder of another
    user, CtlError where it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not exist_ok: somebody may have put a link there, which would be followed.
        path.mkdir(mode=0o700)
        path.chmod(mode)  # mkdir's mode is cut by the umask
    except OSError as error:
        if not isinstance(error, FileExistsError) or not path.parent.is_dir():
            raise from_os(error, f"cannot make {what} {path}") from None
    try:
        found = path.lstat()
    except OSError as error:
        raise from_os(error, f"cannot look at {what} {path}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise RefusedError(
            f"{what} {path} is not a folder", object=str(path), hint=f"remove {path}"
        )
    if found.st_uid != os.geteuid():
        raise DeniedError(
            f"{what} {path} belongs to user {found.st_uid}, not to {os.geteuid()}",
            object=str(path),
            hint=f"set {what} in the settings to a folder of your own",
        )
    if found.st_mode & forbidden:
        raise RefusedError(
            f"{what} {path} has mode {stat.S_IMODE(found.st_mode):04o}; "
            f"at most {0o777 & ~forbidden:04o} is allowed",
            object=str(path),
            hint=f"chmod {mode:04o} {path}",
        )
