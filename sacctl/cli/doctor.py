# SPDX-License-Identifier: Apache-2.0
"""``sacctl doctor``: a report for a bug."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import click

from sacctl.cli.base import Command
from sacctl.cli.context import App, app
from sacctl.errors import RefusedError, from_os

__all__ = ["doctor"]

_EXAMPLES = """\
Examples:
  sacctl doctor | less
  sudo sacctl doctor --output-file report.tar.gz     (root may read more)
"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.option(
    "--output-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it to a new file, a tar.gz that only you may read, instead of to stdout.",
)
def doctor(output_file: Path | None) -> None:
    """Collect a report for a bug: versions, settings, devices, pools, health, logs.

    It has names and paths, and neither keys, token ids nor contents of pages. What could not
    be read is listed at its end. Nothing is changed.
    """
    state = app()
    report = _collect(state)
    if output_file is None:
        if state.output == "json":
            state.emit("doctor", report, list)
        else:
            from sacctl.render.report import texts

            for name, text in texts(report):
                sys.stdout.write(f"===== {name}\n{text}\n")
        return
    _write(output_file, report)
    state.say(f"the report is in {output_file}; look through it before you give it away")
    for why in report["unread"]:
        state.say(f"not in it: {why}")


def _collect(state: App) -> dict[str, Any]:
    from sacctl.cli import offline
    from sacctl.cli.health import look
    from sacctl.doctor import Doctor

    def settings() -> dict[str, Any]:
        values = state.settings.values()
        values["daemon.socket_mode"] = f"{values['daemon.socket_mode']:04o}"
        return {"file": str(state.settings.file or "")} | {k: str(v) for k, v in values.items()}

    return Doctor(
        state.sysfs,
        state.call,
        settings,
        lambda: list(offline.all_pools(state)),
        lambda: dict(look(state)),
        state.settings.pools.dir,
    ).report()


def _write(file: Path, report: dict[str, Any]) -> None:
    """One member a part. Raises RefusedError where there is a file of that name already."""
    from sacctl.render.report import texts

    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise RefusedError(
            f"{file} is there already", object=str(file), hint="give another name"
        ) from None
    except OSError as error:
        raise from_os(error, "cannot write the report") from None
    try:
        with os.fdopen(fd, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as tar:
            for name, text in texts(report):
                data = text.encode("utf-8", "replace")
                member = tarfile.TarInfo(f"sacctl-doctor/{name}")
                member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
                tar.addfile(member, io.BytesIO(data))
    except OSError as error:
        file.unlink(missing_ok=True)
        raise from_os(error, "cannot write the report") from None
