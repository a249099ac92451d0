# SPDX-License-Identifier: Apache-2.0
"""Writes docs/man/*.1 from the commands themselves: ``python tools/manpages.py``.

With ``--check`` nothing is written; the exit code is 1 where a page is not fresh. Needs the
package sacctl and click, no libsac.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from sacctl.cli import root
from sacctl.cli.base import Command, Group

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "man"
MANUAL = "sacctl"


def main(arguments: list[str]) -> int:
    """Writes or checks all pages; the exit code."""
    wanted = dict(pages())
    there = {file.name: file.read_text() for file in FOLDER.glob("*.1")}
    if "--check" in arguments:
        stale = sorted(n for n in wanted.keys() | there.keys() if wanted.get(n) != there.get(n))
        if stale:
            print(f"not fresh: {', '.join(stale)}. next: python tools/manpages.py")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in there.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    return 0


def pages() -> Iterator[tuple[str, str]]:
    """File name and text of each page: one a command, groups too."""
    for path, command, context in commands(root, ("sacctl",), None):
        yield f"{'-'.join(path)}.1", page(path, command, context)


def commands(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """Every command of the tree with its words and its context."""
    context = click.Context(command, info_name=path[-1], parent=parent)
    yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name), context)


def page(path: tuple[str, ...], command: click.Command, context: click.Context) -> str:
    """One page in the macros of man(7)."""
    name = "-".join(path)
    short = command.get_short_help_str(limit=200).rstrip(".")
    out = [
        f'.TH {name.upper()} 1 "" "libsac" "{MANUAL}"',
        ".SH NAME",
        rf"{escape(name)} \- {escape(short[0].lower() + short[1:])}",
        ".SH SYNOPSIS",
        rf"\fB{escape(' '.join(path))}\fR " + " ".join(map(_piece, usage(command, context))),
        ".SH DESCRIPTION",
        *paragraphs(command.help or short),
    ]
    given = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    options = [option.get_help_record(context) for option in given]
    listed = [record for record in options if record is not None]
    if listed:
        out.append(".SH OPTIONS")
        for names, what in listed:
            out += [".TP", rf"\fB{escape(names)}\fR", escape(what)]
    if isinstance(command, Group):
        out.append(".SH COMMANDS")
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            assert inner is not None
            page_name = "-".join((*path, word))
            out += [".TP", rf"\fB{escape(page_name)}\fR(1)"]
            out.append(escape(inner.get_short_help_str(limit=200)))
    if command.epilog:
        head, _, lines = command.epilog.partition("\n")
        out += [f".SH {head.rstrip(':').upper()}", ".nf"]
        out += [escape(line.strip()) for line in lines.rstrip("\n").split("\n")]
        out.append(".fi")
    out.append(".SH EXIT STATUS")
    assert isinstance(command, Command | Group)
    for code, meaning in command.exit_codes:
        out += [".TP", rf"\fB{code}\fR", escape(meaning)]
    out += [".SH SEE ALSO", ", ".join(see_also(path))]
    return "\n".join(out) + "\n"


def usage(command: click.Command, context: click.Context) -> list[str]:
    """The pieces of the usage line."""
    return command.collect_usage_pieces(context)


def see_also(path: tuple[str, ...]) -> list[str]:
    """The page above, else that of the daemon."""
    above = "-".join(path[:-1]) or "sacctl-daemon"
    return [rf"\fB{escape(above)}\fR(1)"]


def paragraphs(text: str) -> Iterator[str]:
    """The help's paragraphs, filled by man itself."""
    for number, part in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        yield escape(" ".join(part.split()))


def escape(text: str) -> str:
    """Text that roff takes as it is: backslashes, hyphens, and a control at the start."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return rf"\&{text}" if text.startswith((".", r"\(aq")) else text


def _piece(word: str) -> str:
    return rf"\fI{escape(word)}\fR"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
