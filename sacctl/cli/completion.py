# SPDX-License-Identifier: Apache-2.0
"""``sacctl completion``: what a shell needs to complete commands and names."""

from __future__ import annotations

import sys

import click

from sacctl.cli.base import Command

__all__ = ["completion"]

_EXAMPLES = """\
Examples:
  sacctl completion bash > ~/.local/share/bash-completion/completions/sacctl
  sacctl completion zsh > ~/.zfunc/_sacctl        (a folder in $fpath)
  sacctl completion fish > ~/.config/fish/completions/sacctl.fish
"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completions for a shell.

    Names of pools, namespaces and clients are asked of the daemon, where one answers.
    """
    from click.shell_completion import get_completion_class

    from sacctl.cli import root

    cls = get_completion_class(shell)
    assert cls is not None
    made = cls(root, {}, "sacctl", "_SACCTL_COMPLETE")
    # Not source(): for bash that starts one, to look at its version.
    sys.stdout.write((made.source_template % made.source_vars()).strip("\n") + "\n")
