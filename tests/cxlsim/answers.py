# SPDX-License-Identifier: Apache-2.0
"""How the simulated kernel answers a write, and how it reads numbers in one."""

from __future__ import annotations

import errno
import os

__all__ = ["Oops", "Refused", "number"]


class Refused(OSError):  # noqa: N818 - an answer, not an error of the simulator
    """The kernel's answer to a write: an errno."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(code, why or os.strerror(code))


class Oops(Exception):  # noqa: N818
    """The kernel would have crashed here."""


def number(text: str, *, most: int = 1 << 64) -> int:
    """As the kernel's kstrtoull(text, 0): one line's end may follow. Raises Refused(EINVAL)."""
    text = text.removesuffix("\n")
    body = text.removeprefix("+")
    try:
        if body[:2].lower() == "0x":
            value = int(body[2:], 16)
        elif len(body) > 1 and body[0] == "0":
            value = int(body, 8)
        else:
            value = int(body, 10)
    except ValueError:
        raise Refused(errno.EINVAL, f"not a number: {text!r}") from None
    if "_" in body or body != body.strip() or "-" in body:
        raise Refused(errno.EINVAL, f"not a number: {text!r}")
    if value >= most:
        raise Refused(errno.ERANGE, f"too large: {text!r}")
    return value
