# SPDX-License-Identifier: Apache-2.0
"""The settings file: one TOML, every key with a default. docs/settings.md lists them."""

from __future__ import annotations

import dataclasses
import difflib
import grp
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sacctl import paths
from sacctl.errors import NotFoundError, UsageError, from_os

__all__ = [
    "DaemonSettings",
    "LogSettings",
    "MetricsSettings",
    "PoolsSettings",
    "Settings",
    "group_id",
    "load",
    "parse_listen",
]

MOST = 1 << 20  # bytes of a settings file
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "journal", "text", "json")
# What a reload takes over; a change of any other key waits for a restart.
RELOADABLE = frozenset(
    {
        "daemon.admin_group",
        "daemon.socket_mode",
        "daemon.socket_group",
        "daemon.status_interval",
        "log.level",
        "log.format",
        "metrics.listen",
        "pools.dir",
    }
)


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """[daemon]. Groups are names or numbers; "" is nobody (admin_group), everybody who may
    connect (creators_group), the daemon's own (socket_group). status_interval in seconds."""

    run_dir: Path = field(default_factory=paths.run_dir)
    socket: Path = field(default_factory=paths.socket_file)
    socket_mode: int = 0o660
    socket_group: str = ""
    admin_group: str = ""
    creators_group: str = ""
    max_clients: int = 1024
    status_interval: int = 10


@dataclass(frozen=True, slots=True)
class LogSettings:
    """[log]. format "auto": journal fields where stderr is the journal, else text."""

    level: str = "info"
    format: str = "auto"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """[metrics]. listen "": off, else a loopback address and port."""

    listen: str = ""


@dataclass(frozen=True, slots=True)
class PoolsSettings:
    """[pools]. dir: pool records, NAME.toml each."""

    dir: Path = field(default_factory=paths.pools_dir)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. file: where they were read, None where only defaults count."""

    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    log: LogSettings = field(default_factory=LogSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    pools: PoolsSettings = field(default_factory=PoolsSettings)
    file: Path | None = None

    def values(self) -> dict[str, Any]:
        """Every setting by its dotted name, "daemon.run_dir" and so on."""
        return {
            f"{section}.{f.name}": getattr(getattr(self, section), f.name)
            for section in _SECTIONS
            for f in dataclasses.fields(_SECTIONS[section])
        }

    def changed(self, new: Settings) -> list[str]:
        """Dotted names of the settings in which new differs, in the file's order."""
        other = new.values()
        return [name for name, value in self.values().items() if other[name] != value]


_SECTIONS: dict[str, type[Any]] = {
    "daemon": DaemonSettings,
    "log": LogSettings,
    "metrics": MetricsSettings,
    "pools": PoolsSettings,
}


def load(file: Path | None = None) -> Settings:
    """Reads the settings.

    Args:
        file: None looks at $SAC_CONFIG and then at the usual place; only there a file that
            does not exist means defaults.

    Raises NotFoundError for a file that was named and is not there, UsageError naming file
    and key for anything wrong in it, CtlError where it cannot be read.
    """
    named = file is not None or bool(os.environ.get("SAC_CONFIG"))
    path = paths.config_file() if file is None else file
    try:
        with path.open("rb") as opened:  # a device may have no end
            text = opened.read(MOST + 1)
        if len(text) > MOST:
            raise UsageError(f"{path} is too long for settings", object=str(path))
        data = tomllib.loads(text.decode())
    except FileNotFoundError:
        if not named:
            return Settings()
        raise NotFoundError(
            f"there is no settings file {path}",
            object=str(path),
            hint="name another with --config or SAC_CONFIG, or leave both out for the defaults",
        ) from None
    except OSError as error:
        raise from_os(error, "cannot read the settings file") from None
    except (ValueError, RecursionError) as error:  # also numbers too long, arrays too deep
        raise UsageError(f"{path} is not TOML: {error}", object=str(path)) from None
    return parse(data, path)


def parse(data: Mapping[str, Any], path: Path) -> Settings:
    """The settings in a TOML document; path is for messages. Raises UsageError."""
    made: dict[str, Any] = {}
    for section, content in data.items():
        if section not in _SECTIONS:
            raise _unknown(path, section, _SECTIONS)
        if not isinstance(content, Mapping):
            raise UsageError(
                f"{path}: {section} is {content!r}; it is a table: [{section}]",
                object=str(path),
            )
        cls = _SECTIONS[section]
        known = [f.name for f in dataclasses.fields(cls)]
        values = {}
        for key, value in content.items():
            if key not in known:
                raise _unknown(path, f"{section}.{key}", [f"{section}.{k}" for k in known])
            try:
                values[key] = _CHECKS[f"{section}.{key}"](value)
            except ValueError as error:
                raise UsageError(
                    f"{path}: {section}.{key} is {value!r}; {error}", object=str(path)
                ) from None
        if section == "daemon" and "run_dir" in values:
            values.setdefault("socket", values["run_dir"] / paths.SOCKET_NAME)
        made[section] = cls(**values)
    return Settings(**made, file=path)


def _unknown(path: Path, name: str, known: Any) -> UsageError:
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return UsageError(
        f"{path}: unknown key {name}; {'the nearest known one is' if near else 'known are'} "
        f"{near[0] if near else ', '.join(known)}",
        object=str(path),
    )


def group_id(name: str) -> int:
    """Number of a group given by name or number. Raises ValueError where there is none."""
    if re.fullmatch(r"[0-9]{1,9}", name):
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError("there is no such group") from None


def parse_listen(text: str) -> tuple[str, int]:
    """Address and port of "127.0.0.1:9478" or "[::1]:9478". Raises ValueError with the reason.

    Only loopback addresses: metrics name pools, namespaces and processes, and nobody is
    asked who he is.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError('an address and a port such as "127.0.0.1:9478" are needed')
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ValueError('an address and a port such as "127.0.0.1:9478" are needed') from None
    if not loopback:
        raise ValueError(
            "only loopback is allowed, because nobody is asked who he is; put a server that "
            "does ask before it"
        )
    return host, int(port)


# ------------------------------------------------------------------ one check a key


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("a path is needed")
    try:
        path = Path(value).expanduser()
    except RuntimeError:
        raise ValueError("there is no such user") from None
    if not path.is_absolute():
        raise ValueError("an absolute path is needed")
    return path


def _socket(value: Any) -> Path:
    path = _path(value)
    if len(os.fsencode(path)) > 107:
        raise ValueError("a socket's path has at most 107 bytes")
    return path


def _mode(value: Any) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value):
        raise ValueError('permission bits as a text such as "0660" are needed')
    mode = int(value, 8)
    if mode & 0o600 != 0o600:
        raise ValueError("the daemon's own user must be able to connect: 06..")
    return mode


def _group(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError('the name of a group, or "", is needed')
    if value:
        group_id(value)
    return value


def _listen(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError('an address such as "127.0.0.1:9478", or "" for none, is needed')
    if value:
        parse_listen(value)
    return value


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high} is needed")
        return value

    return check


def _one_of(*words: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return str(value)

    return check


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "daemon.run_dir": _path,
    "daemon.socket": _socket,
    "daemon.socket_mode": _mode,
    "daemon.socket_group": _group,
    "daemon.admin_group": _group,
    "daemon.creators_group": _group,
    "daemon.max_clients": _whole(1, 65536),
    "daemon.status_interval": _whole(1, 3600),
    "log.level": _one_of(*LEVELS),
    "log.format": _one_of(*FORMATS),
    "metrics.listen": _listen,
    "pools.dir": _path,
}
