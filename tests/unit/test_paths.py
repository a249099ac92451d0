# SPDX-License-Identifier: Apache-2.0
"""Where things are, for root and for users, and folders that must be ours."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sacctl import paths
from sacctl.errors import CtlError, DeniedError, RefusedError

HOME = {"HOME": "/home/u"}


def test_root() -> None:
    env = {"HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0", "XDG_CONFIG_HOME": "/x"}
    assert paths.config_file(env, 0) == Path("/etc/sac/sac.toml")
    assert paths.pools_dir(env, 0) == Path("/etc/sac/pools.d")
    assert paths.run_dir(env, 0) == Path("/run/sac")
    assert paths.client_sockets(env, 0) == [Path("/run/sac/sacd.sock")]


def test_the_systems_daemon_is_not_root() -> None:
    env = HOME | {"SAC_SYSTEM": "1", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert paths.config_file(env, 7) == Path("/etc/sac/sac.toml")
    assert paths.pools_dir(env, 7) == Path("/etc/sac/pools.d")
    assert paths.run_dir(env, 7) == Path("/run/sac")
    assert paths.client_sockets(env, 7) == [Path("/run/sac/sacd.sock")]
    # Only "1" says so: a unit of somebody else may have the variable empty.
    for value in ("", "0", "yes"):
        other = HOME | {"SAC_SYSTEM": value}
        assert paths.run_dir(other, 7) == Path("/tmp/sac-7")


def test_user() -> None:
    env = HOME | {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert paths.config_file(env, 7) == Path("/home/u/.config/sac/sac.toml")
    assert paths.run_dir(env, 7) == Path("/run/user/7/sac")
    assert paths.client_sockets(env, 7) == [
        Path("/run/user/7/sac/sacd.sock"),
        Path("/run/sac/sacd.sock"),
    ]


def test_user_without_xdg() -> None:
    assert paths.run_dir(HOME, 7) == Path("/tmp/sac-7")
    # The XDG rules: a relative path is as none.
    assert paths.run_dir(HOME | {"XDG_RUNTIME_DIR": "x"}, 7) == Path("/tmp/sac-7")
    assert paths.pools_dir(HOME | {"XDG_CONFIG_HOME": "/c"}, 7) == Path("/c/sac/pools.d")


def test_environment_wins() -> None:
    env = HOME | {"SAC_SOCKET": "/s", "SAC_CONFIG": "/c"}
    assert paths.client_sockets(env, 7) == [Path("/s")]
    assert paths.config_file(env, 7) == Path("/c")


def test_files_of_emulated_pools() -> None:
    assert paths.emulated_dir("kv", 7) == Path("/dev/shm/sac-7/kv")
    assert paths.hugetlb_dir(Path("/mnt"), "kv", 7) == Path("/mnt/sac-7/kv")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_run_dirs_are_made(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        state = paths.make_run_dirs(tmp_path / "a" / "run")
    finally:
        os.umask(before)
    assert state == tmp_path / "a" / "run" / "state"
    assert mode(state) == 0o700
    assert mode(state.parent) == (0o755 if os.geteuid() == 0 else 0o700)
    assert paths.make_run_dirs(tmp_path / "a" / "run") == state  # there already


def test_state_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    state = paths.make_run_dirs(tmp_path / "run")
    state.chmod(0o710)
    with pytest.raises(RefusedError, match="mode 0710") as caught:
        paths.make_run_dirs(tmp_path / "run")
    assert "chmod 0700" in caught.value.hint


def test_run_dir_that_others_may_write_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o777)
    with pytest.raises(RefusedError, match="mode 0777"):
        paths.make_run_dirs(run)
    run.chmod(0o755)
    paths.make_run_dirs(run)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(RefusedError, match="not a folder"):
        paths.make_run_dirs(tmp_path / "run")
    assert list((tmp_path / "real").iterdir()) == []


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RefusedError):
        paths.make_run_dirs(tmp_path / "run")


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with pytest.raises(DeniedError, match=f"belongs to user {real}"):
        paths.make_run_dirs(tmp_path / "run")


def test_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CtlError, match="cannot make run_dir"):
        paths.make_run_dirs(tmp_path / "file" / "run")
