# SPDX-License-Identifier: Apache-2.0
"""libsac.connect(): arguments, and where a daemon is looked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import libsac
from libsac import client, errors

SYSTEM = "/run/sac/sacd.sock"


@pytest.mark.parametrize(
    ("uid", "env", "sockets"),
    [
        (0, {"XDG_RUNTIME_DIR": "/run/user/0"}, [SYSTEM]),
        (7, {"SAC_SOCKET": "/x.sock"}, ["/x.sock"]),
        (7, {"XDG_RUNTIME_DIR": "/run/user/7"}, ["/run/user/7/sac/sacd.sock", SYSTEM]),
        (987654, {"XDG_RUNTIME_DIR": "odd"}, ["/tmp/sac-987654/sacd.sock", SYSTEM]),
        (987654, {"SAC_SOCKET": ""}, ["/tmp/sac-987654/sacd.sock", SYSTEM]),
    ],
)
def test_sockets(uid: int, env: dict[str, str], sockets: list[str]) -> None:
    assert client.default_sockets(env, uid) == sockets


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    mine = tmp_path.stat().st_uid
    tmp_path.chmod(0o700)
    client._check(tmp_path, mine)
    client._check(tmp_path / "none", mine)
    with pytest.raises(errors.AccessError, match="pose as the daemon"):
        client._check(tmp_path, mine + 1)
    tmp_path.chmod(0o770)
    with pytest.raises(errors.AccessError, match="pose as the daemon"):
        client._check(tmp_path, mine)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(errors.AccessError, match="pose as the daemon"):
        client._check(link, mine)


def test_nobody_listens(tmp_path: Path) -> None:
    path = tmp_path / "no.sock"
    begin = time.monotonic()
    with pytest.raises(errors.DaemonError, match=str(path)) as caught:
        libsac.connect(socket=path)
    assert time.monotonic() - begin < 2
    assert isinstance(caught.value, ConnectionError)
    with pytest.raises(errors.DaemonError, match=str(path)):
        libsac.connect(socket=path, timeout=0.2)
    assert time.monotonic() - begin > 0.2


def test_the_first_that_answers(tmp_path: Path) -> None:
    asked: list[str] = []

    def attempt(path: str) -> str:
        asked.append(path)
        if path != "b" or len(asked) < 4:
            raise errors.DaemonError("nobody", object=path)
        return path

    assert client._first(["a", "b"], 5.0, attempt) == "b"
    assert asked == ["a", "b", "a", "b"]
    with pytest.raises(errors.DaemonError, match=r"at c or d\..*sacctl daemon run"):
        client._first(["c", "d"], 0.0, attempt)


CALLS: list[tuple[str, Callable[[], Any]]] = [
    ("pool is", lambda: libsac.connect(7)),  # type: ignore[arg-type]
    ("name is", lambda: libsac.connect(name="a\0b")),
    ("socket is", lambda: libsac.connect(socket="")),
    ("socket is", lambda: libsac.connect(socket=7)),  # type: ignore[arg-type]
    ("socket is", lambda: libsac.connect(socket="/a\0b")),
    ("timeout is", lambda: libsac.connect(timeout=-1)),
    ("reconnect is", lambda: libsac.connect(reconnect="1")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("text", "call"), CALLS)
def test_arguments(text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=text):
        call()


def test_settings_may_have_moved_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(path: str) -> None:
        raise errors.DaemonError("nobody", object=path)

    monkeypatch.delenv("SAC_SOCKET", raising=False)
    monkeypatch.setenv("SAC_CONFIG", "/x.toml")
    with pytest.raises(errors.DaemonError, match="set SAC_SOCKET"):
        client._first([SYSTEM], 0.0, nobody)
    monkeypatch.delenv("SAC_CONFIG")
    with pytest.raises(errors.DaemonError, match=r"^nobody"):
        client._first([SYSTEM], 0.0, nobody)
