# SPDX-License-Identifier: Apache-2.0
"""Demonstrations with a daemon, a writing and a reading process."""

from __future__ import annotations

__all__ = ["run"]


def run(*, tokens: int, layers: int, steps: int) -> int:
    """The main job through a daemon; the exit code. Everything is removed at the end."""
    from sacctl.demo.job import run as run_job

    return run_job(tokens, layers, steps)
