# SPDX-License-Identifier: Apache-2.0
"""The tree of errors matches include/sac.h and Python's own exceptions."""

from __future__ import annotations

import copy
import errno
import pickle
import re
from pathlib import Path

import pytest

from libsac import errors
from libsac.errors import SacError, from_status

HEADER = Path(__file__).parents[2] / "libsac" / "include" / "sac.h"
STATUSES = {
    name: int(number)
    for name, number in re.findall(r"\bSAC_E_([A-Z_]+) = (\d+)", HEADER.read_text())
}
NAMES = {
    "ARG": "ArgumentError",
    "RANGE": "RangeError",
    "NOT_FOUND": "NotFoundError",
    "EXISTS": "ExistsError",
    "LAYOUT": "LayoutError",
    "NO_SPACE": "NoSpaceError",
    "BUSY": "BusyError",
    "STALE": "StaleError",
    "RESERVATION": "ReservationError",
    "INCOMPLETE": "IncompleteError",
    "CORRUPT": "CorruptError",
    "VERSION": "VersionError",
    "MEDIA": "MediaError",
    "FORKED": "ForkedError",
    "CLOSED": "ClosedError",
    "SYSTEM": "SystemCallError",
    "NO_MEMORY": "OutOfMemoryError",
    "NO_DAEMON": "DaemonError",
    "ACCESS": "AccessError",
    "GPU": "GpuError",
}


def test_every_status_of_the_header_has_its_class() -> None:
    assert set(STATUSES) == set(NAMES)
    for name, status in STATUSES.items():
        error = from_status(status, "what failed", "demo")
        assert type(error) is getattr(errors, NAMES[name])
        assert error.status == status == type(error).CODE
        assert isinstance(error, SacError)
        assert str(error) == "what failed"
        assert error.object == "demo"
        assert error.errno == 0
        assert type(error).__doc__
        assert NAMES[name] in errors.__all__


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ArgumentError", ValueError),
        ("LayoutError", ValueError),
        ("RangeError", IndexError),
        ("NotFoundError", LookupError),
        ("SystemCallError", OSError),
        ("OutOfMemoryError", MemoryError),
        ("DaemonError", ConnectionError),
        ("AccessError", PermissionError),
    ],
)
def test_they_are_pythons_own_errors_too(name: str, builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise getattr(errors, name)("x")


def test_a_system_call_error_is_an_os_error() -> None:
    error = from_status(16, "mmap: No such file. Look.", "/dev/dax0.0", errno.ENOENT)
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOENT
    assert error.strerror == "No such file or directory"
    assert error.filename == "/dev/dax0.0"
    assert str(error) == "mmap: No such file. Look."
    plain = errors.SystemCallError("x")
    assert (plain.errno, plain.strerror, plain.filename) == (0, "x", None)


def test_errors_of_the_daemon_are_os_errors_but_no_system_calls() -> None:
    error = from_status(18, "no daemon", "/run/sac/sacd.sock", errno.ECONNREFUSED)
    assert isinstance(error, OSError)
    assert not isinstance(error, errors.SystemCallError)
    assert error.filename == "/run/sac/sacd.sock"
    assert error.strerror == "Connection refused"


def test_offsets_only_where_there_is_one() -> None:
    assert from_status(13, "dead", offset=0).offset == 0
    assert from_status(11, "bad", offset=4096).offset == 4096
    assert from_status(2, "no row", offset=7).offset is None


def test_unknown_statuses() -> None:
    error = from_status(99, "from the future")
    assert type(error) is SacError
    assert error.status == 99
    assert SacError("x").status == -1
    with pytest.raises(ValueError, match="not a failure"):
        from_status(0, "")


@pytest.mark.parametrize("status", [*range(1, 20), 99])
def test_pickle_and_copy_keep_everything(status: int) -> None:
    error = from_status(status, "message", "object", errno.EIO, 2**40)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        for field in ("status", "object", "errno", "offset", "message"):
            assert getattr(other, field) == getattr(error, field)
        assert str(other) == "message"
