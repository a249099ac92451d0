# SPDX-License-Identifier: Apache-2.0
"""What every command works with: settings, the daemon, and the ways to answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from sacctl.errors import NotFoundError, RefusedError, UsageError

if TYPE_CHECKING:
    from sacctl.cxl.sysfs import Sysfs
    from sacctl.daemon.link import Link
    from sacctl.render.table import Part
    from sacctl.settings import Settings

__all__ = ["App", "app"]


@dataclass
class App:
    """One run of the command line. Options of the root group set the attributes.

    Attributes:
        config, socket: files given on the command line, or None.
        sysroot: folder given there that stands for /, or None.
        output: "table" or "json".
        verbose: more talk on stderr.
    """

    config: Path | None = None
    socket: Path | None = None
    sysroot: Path | None = None
    output: str = "table"
    verbose: bool = False
    _links: list[Link] = field(default_factory=list)

    @cached_property
    def settings(self) -> Settings:
        """The settings file; raises UsageError for what is wrong in it."""
        from sacctl.settings import load

        return load(self.config)

    @cached_property
    def sysfs(self) -> Sysfs:
        """The kernel's files, or what --sysroot or SAC_SYSROOT names. Raises NotFoundError
        where that is no folder."""
        from sacctl.cxl.sysfs import Sysfs

        given = self.sysroot or Path(os.environ.get("SAC_SYSROOT") or "/")
        if not given.is_dir():
            raise NotFoundError(
                f"there is no folder {given} to read instead of /",
                object=str(given),
                hint="mend --sysroot or SAC_SYSROOT",
            )
        return Sysfs(given)

    def socket_path(self) -> Path | None:
        """The socket that was named by option, environment or settings; None: look."""
        if self.socket is not None:
            return self.socket
        if os.environ.get("SAC_SOCKET"):
            return None
        from sacctl import paths

        named = self.settings.daemon.socket
        return None if named == paths.socket_file() else named

    def link(self, timeout: float | None = None) -> Link:
        """A connection to the daemon, the same one in all of this run.

        Raises NotFoundError where none runs, DeniedError where it may not be asked.
        """
        if not self._links:
            from sacctl.daemon.link import DEFAULT_TIMEOUT, Link

            self._links.append(Link(self.socket_path(), timeout=timeout or DEFAULT_TIMEOUT))
        return self._links[0]

    def try_link(self) -> Link | None:
        """As link(); None where no daemon runs."""
        try:
            return self.link()
        except NotFoundError:
            return None

    def drop_link(self) -> None:
        """Closes the connection; the next link() makes a new one."""
        while self._links:
            self._links.pop().close()

    def call(self, op: str, **args: Any) -> dict[str, Any]:
        """One administration request; see Link.call."""
        return self.link().call(op, **args)

    # ------------------------------------------------------------------ answers

    def emit(
        self,
        schema: str,
        values: Mapping[str, Any],
        parts: Callable[[], Iterable[Part]],
        *,
        line: bool = False,
    ) -> None:
        """Writes data to stdout: JSON, or the tables that parts makes."""
        if self.output == "json":
            from sacctl.render.output import to_json

            sys.stdout.write(to_json(schema, values, line=line))
        else:
            from sacctl.render.table import write

            write(parts(), sys.stdout)

    def say(self, text: str) -> None:
        """Talk, on stderr."""
        from sacctl.render.quantities import clean

        with suppress(BrokenPipeError):
            print(clean(text), file=sys.stderr, flush=True)

    def more(self, text: str) -> None:
        """Talk for -v."""
        if self.verbose:
            self.say(text)

    def plan(self, steps: Iterable[str]) -> None:
        """What --dry-run prints: the steps that would be done, nothing else."""
        listed = list(steps)
        if self.output == "json":
            from sacctl.render.output import to_json

            sys.stdout.write(to_json("plan", {"steps": listed}))
        else:
            from sacctl.render.quantities import clean

            sys.stdout.write("".join(f"{clean(step)}\n" for step in listed))

    def confirm(self, question: str, yes: bool) -> None:
        """Asks before something is lost. Raises RefusedError unless the answer is yes.

        Where nobody can be asked, because stdin is no terminal, the answer is no.
        """
        if yes:
            return
        typed = _stdin()
        if not typed.isatty():
            raise RefusedError(
                f"{question} nobody can be asked: stdin is no terminal",
                hint="give --yes to do it without being asked",
            )
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        if typed.readline().strip().lower() not in ("y", "yes"):
            raise RefusedError("not confirmed; nothing was done")

    # -------------------------------------------------------------------- pools

    def pool_name(self, given: str | None) -> str:
        """The pool that was named, else the only one the daemon serves.

        Raises NotFoundError where there is none, UsageError where there are several.
        """
        if given:
            return given
        names = [pool["name"] for pool in self.call("pool.list")["pools"]]
        if len(names) == 1:
            return str(names[0])
        if not names:
            raise NotFoundError(
                "the daemon serves no pool", hint="sacctl pool create --emulate 1G"
            )
        raise UsageError(
            f"there are {len(names)} pools: {', '.join(names[:8])}",
            hint="name one with --pool",
        )


def _stdin() -> TextIO:
    """Where answers come from."""
    return sys.stdin


def app() -> App:
    """The App of the command that runs now."""
    return click.get_current_context().find_root().ensure_object(App)
