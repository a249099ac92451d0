# SPDX-License-Identifier: Apache-2.0
"""Logs with fields: to the journal as its own fields, else as text or JSON on stderr."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
import time
from typing import Any, TextIO

__all__ = ["Log", "log", "setup", "to_journal"]

JOURNAL = "/run/systemd/journal/socket"
# A datagram of the journal must fit in the socket's buffer; longer messages are cut.
MOST_BYTES = 64 << 10
FIELDS = ("pool", "namespace", "client", "operation", "user")
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


class Log:
    """Messages with named fields: ``log.info("pool served", pool="kv")``.

    Fields are those of ``FIELDS``; in the journal they are SAC_POOL and so on.
    """

    def __init__(self, name: str = "sacctl.daemon") -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: object) -> None:
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, **fields: object) -> None:
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, **fields: object) -> None:
        """With the trace of the exception that is being handled."""
        self._log(logging.ERROR, message, fields, True)

    def _log(
        self, level: int, message: str, fields: dict[str, object], trace: bool = False
    ) -> None:
        # %s: a message is a text, not a pattern. stacklevel: where Log was called.
        self._logger.log(
            level, "%s", message, exc_info=trace, stacklevel=3, extra={"sac_fields": fields}
        )


log = Log()


def setup(level: str = "info", form: str = "auto", stream: TextIO | None = None) -> None:
    """Sends the daemon's messages to stream (None: stderr), or to the journal.

    form: "auto", "journal", "text" or "json". May be called again, for another setting.
    """
    logger = logging.getLogger("sacctl")
    out = sys.stderr if stream is None else stream
    handler: logging.Handler = logging.StreamHandler(out)
    if form == "journal" or (form == "auto" and to_journal(out)):
        handler = JournalHandler(out)
    elif form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter())
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(getattr(logging, level.upper()))
    logger.propagate = False


def to_journal(stream: TextIO) -> bool:
    """Whether the stream is the journal's: $JOURNAL_STREAM names its device and inode."""
    try:
        device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
        found = os.fstat(stream.fileno())
        return (found.st_dev, found.st_ino) == (int(device), int(inode))
    except (OSError, ValueError):
        return False


def _fields(record: logging.LogRecord) -> dict[str, str]:
    given: dict[str, object] = getattr(record, "sac_fields", {})
    return {key: str(given[key]) for key in FIELDS if given.get(key) not in (None, "")}


def _clean(text: str) -> str:
    """One line: names come from clients, and must not forge a line or steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00Z info: message (pool=kv)``, then a trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        fields = " ".join(f"{key}={_clean(value)}" for key, value in _fields(record).items())
        text = f"{when} {record.levelname.lower()}: {_clean(record.getMessage())}"
        text += f" ({fields})" if fields else ""
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """An object a line: time (seconds), level, message, the fields, perhaps trace."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


class JournalHandler(logging.Handler):
    """The journal's native protocol: a datagram of fields a message.

    A message that the journal does not take goes to the stream as text.
    """

    def __init__(self, fallback: TextIO, address: str = JOURNAL) -> None:
        super().__init__()
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._fallback = logging.StreamHandler(fallback)
        self._fallback.setFormatter(TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(self.datagram(record), self._address)
        except OSError:
            self._fallback.emit(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def datagram(self, record: logging.LogRecord) -> bytes:
        """The fields of a record, as they are sent."""
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        fields = {
            "MESSAGE": message,
            "PRIORITY": str(_PRIORITY.get(record.levelno, 5)),
            "SYSLOG_IDENTIFIER": "sacd",
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName,
        }
        fields |= {f"SAC_{key.upper()}": value for key, value in _fields(record).items()}
        return b"".join(_field(key, value) for key, value in fields.items())


def _field(key: str, value: str) -> bytes:
    data = value.encode(errors="replace")[:MOST_BYTES]
    if b"\n" not in data:
        return key.encode() + b"=" + data + b"\n"
    return key.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
