# SPDX-License-Identifier: Apache-2.0
"""How pools may be called."""

from __future__ import annotations

import re

from sacctl.errors import UsageError

__all__ = ["NAME", "check_name", "check_new_name"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


def check_name(name: str) -> str:
    """name if a pool may be called so. Raises UsageError."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot be a pool's name: 1 to 63 of A-Z a-z 0-9 _ . -, not beginning "
            "with . or -",
            object=name,
        )
    return name


def check_new_name(name: str) -> str:
    """name if a pool that is to be made may be called so. Raises UsageError."""
    if "." in check_name(name):
        raise UsageError(
            f"'{name}' cannot be a new pool's name: POOL.NAME is what the isolated namespace "
            "NAME in the room of POOL is called",
            object=name,
            hint=f"{name.replace('.', '-')}; or, for such a namespace: "
            "sacctl namespace create NAME --isolated --pool POOL ...",
        )
    return name
