# SPDX-License-Identifier: Apache-2.0
"""Options and kinds of arguments that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sacctl.cli import names

__all__ = [
    "Mode",
    "Size",
    "assume_yes",
    "dry_run",
    "namespace_name",
    "pool_name",
    "pool_option",
]

if TYPE_CHECKING:
    _Bytes = click.ParamType[int]
    _Text = click.ParamType[str]
else:  # generic since click 8.4
    _Bytes = _Text = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])


class Size(_Bytes):
    """Bytes, as libsac.sizes.parse_size reads them: "256M"."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        from libsac.errors import ArgumentError
        from libsac.sizes import parse_size

        try:
            return parse_size(str(value))
        except ArgumentError as error:
            self.fail(str(error), param, ctx)


class Mode(_Text):
    """Permission bits in octal, four digits after conversion: "640" gives "0640"."""

    name = "mode"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        if not re.fullmatch(r"0?[0-7]{3}", str(value)):
            self.fail(
                f"'{value}' is not a mode of nine bits in octal, such as 0640", param, ctx
            )
        return f"{int(str(value), 8):04o}"


def dry_run(f: F) -> F:
    """--dry-run: print the very steps and do nothing."""
    return click.option(
        "--dry-run", is_flag=True, help="Print the steps that would be done, do none."
    )(f)


def assume_yes(f: F) -> F:
    """--yes: do it without asking."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(f)


def pool_option(f: F) -> F:
    """--pool NAME, the only one where it is left out."""
    return click.option(
        "-p",
        "--pool",
        metavar="POOL",
        shell_complete=names.pools,
        help="The pool; may be left out where there is only one.",
    )(f)


def pool_name(f: F) -> F:
    """The argument NAME: a pool."""
    return click.argument("name", metavar="NAME", shell_complete=names.pools)(f)


def namespace_name(f: F) -> F:
    """The argument NAME: a namespace."""
    return click.argument("name", metavar="NAME", shell_complete=names.namespaces)(f)
