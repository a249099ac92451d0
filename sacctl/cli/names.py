# SPDX-License-Identifier: Apache-2.0
"""Names that a shell can complete, asked of the daemon. No daemon, no names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from sacctl.cli.context import App
from sacctl.errors import CtlError

__all__ = ["clients", "codes", "layouts", "namespaces", "pools"]

_TIMEOUT = 1.0  # a shell waits for the answer


def pools(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of pools."""
    found = _ask(ctx, "pool.list", "pools")
    return _items(((p["name"], p["state"]) for p in found), incomplete)


def namespaces(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of namespaces, of the pool given by --pool where it is."""
    pool = ctx.params.get("pool")
    found = _ask(ctx, "namespace.list", "namespaces", pool=pool)
    return _items(((n["name"], f"pool {n['pool']}") for n in found), incomplete)


def clients(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Process numbers and ids of clients."""
    found = _ask(ctx, "client.list", "clients")
    both = [(str(c["pid"]), c["name"]) for c in found] + [(c["id"], c["name"]) for c in found]
    return _items(both, incomplete)


def layouts(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Presets; files where what is there looks like a path or is no preset's beginning."""
    try:
        from libsac.presets import NAMES
    except ImportError:
        NAMES = ()  # noqa: N806
    items = [] if "/" in incomplete else _items(((n, "preset") for n in NAMES), incomplete)
    return items or [CompletionItem(incomplete, type="file")]


def codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes of health findings."""
    from sacctl.health import CHECKS

    return _items(((code, "") for code in CHECKS), incomplete.upper())


def _ask(ctx: click.Context, op: str, key: str, **args: Any) -> list[dict[str, str]]:
    state = ctx.find_root().ensure_object(App)
    try:
        answer = state.link(_TIMEOUT).call(op, **args)
    except (CtlError, OSError):
        return []
    finally:
        state.drop_link()
    found = answer.get(key)
    return found if isinstance(found, list) else []


def _items(pairs: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(n, help=h) for n, h in pairs if n.startswith(incomplete)]
