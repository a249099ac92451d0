# SPDX-License-Identifier: Apache-2.0
"""Names of users and groups for tables; JSON has the numbers."""

from __future__ import annotations

from functools import cache

__all__ = ["group", "user"]


@cache
def user(uid: int) -> str:
    """A user's name, the number where there is none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


@cache
def group(gid: int) -> str:
    """A group's name, the number where there is none."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OverflowError):
        return str(gid)
