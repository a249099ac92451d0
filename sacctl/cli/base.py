# SPDX-License-Identifier: Apache-2.0
"""Commands and groups of sacctl: what all of them have in common.

Each has the exit codes in its help and takes the options of the root group behind the verb
too. Groups import the module of a command only when it is called.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from sacctl.cli.context import App
from sacctl.cli.failure import EXIT_CODES, from_write, handle

__all__ = ["Command", "Group", "Root"]


def _set(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        setattr(ctx.find_root().ensure_object(App), str(param.name), value)


def common_options(shown: Iterable[str]) -> list[click.Option]:
    """The options of the root group; those not named in shown are hidden from the help."""
    path = click.Path(path_type=Path)
    made = [
        click.Option(
            ["--config"], type=path, metavar="FILE",
            help="Settings file; else $SAC_CONFIG, else /etc/sac/sac.toml (root) or "
            "~/.config/sac/sac.toml.",
        ),
        click.Option(
            ["--socket"], type=path, metavar="PATH",
            help="Socket of the daemon; else $SAC_SOCKET, else the user's own, else "
            "/run/sac/sacd.sock.",
        ),
        click.Option(
            ["--sysroot"], type=path, metavar="DIR",
            help="Read sys, proc and dev below DIR instead of /; else $SAC_SYSROOT. For tests.",
        ),
        click.Option(
            ["-o", "--output"], type=click.Choice(["table", "json"]),
            help="What stdout gets: tables for people, or JSON with a schema.",
        ),
        click.Option(
            ["-v", "--verbose"], is_flag=True, default=False,
            help="Say more on stderr; tracebacks of unexpected errors too.",
        ),
    ]  # fmt: skip
    wanted = set(shown)
    for option in made:
        option.expose_value = False
        option.callback = _set
        option.hidden = option.name not in wanted
    return made


class _Helped(click.Command):
    """Exit codes at the end of the help."""

    exit_codes: Sequence[tuple[int, str]] = EXIT_CODES

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            # Examples: lines stay as they are.
            formatter.write("\n" + "\n".join(self.epilog.strip("\n").split("\n")) + "\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), what) for code, what in self.exit_codes])


class Command(_Helped):
    """A verb. ``exit_codes`` replaces the usual ones in its help."""

    def __init__(
        self, *args: Any, exit_codes: Sequence[tuple[int, str]] = EXIT_CODES, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.exit_codes = exit_codes
        self.params += common_options(["output"])


class Group(_Helped, click.Group):
    """A noun, or the root. ``lazy``: name -> (module:attribute, short help)."""

    command_class = Command

    def __init__(
        self, *args: Any, lazy: dict[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self.lazy[cmd_name][0].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._short(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _short(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name][1]
        command = self.get_command(ctx, name)
        return command.get_short_help_str(limit=200) if command else ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], known, 1)
            hint = f"did you mean '{near[0]}'" if near else f"there are {', '.join(known)}"
            raise click.UsageError(f"there is no command '{args[0]}'; {hint}", ctx)
        return super().resolve_command(ctx, args)


class Root(Group):
    """``sacctl`` itself: where every error ends."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Runs the command line and exits; takes what click's own main takes."""
        given = args[0] if args else kwargs.get("args")
        sys.exit(self.run(sys.argv[1:] if given is None else given))

    def run(self, arguments: Sequence[str]) -> int:
        """Runs the command line; the exit code. Nothing is raised."""
        self._complete("sacctl")
        state = App()
        try:
            with self.make_context("sacctl", list(arguments), obj=state) as ctx:
                code = self.invoke(ctx)
            return _flushed(code if isinstance(code, int) else 0, state.verbose)
        except BaseException as error:
            return _flushed(handle(error, state.verbose), state.verbose)
        finally:
            state.drop_link()

    def _complete(self, name: str) -> None:
        """Answers the shell's question for completions and exits, where it is one."""
        import os

        instruction = os.environ.get(f"_{name.upper()}_COMPLETE", "")
        if instruction:
            from click.shell_completion import shell_complete

            sys.exit(shell_complete(self, {}, name, f"_{name.upper()}_COMPLETE", instruction))


def _flushed(code: int, verbose: bool) -> int:
    """Writes what is left, here where a full disk or a closed pipe is still noticed."""
    try:
        sys.stdout.flush()
    except OSError as error:
        failed = handle(from_write(error), verbose)
        return code or failed
    return code
