# SPDX-License-Identifier: Apache-2.0
"""Who has a pool's memory open is named so that an administrator knows what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sacctl.cxl.users import way_out
from sacctl.errors import RefusedError
from sacctl.pool.attached import refuse_mapped

_HOLD = "import sys; held = open(sys.argv[1]); print(flush=True); sys.stdin.read()"


@contextmanager
def holder(file: Path, *words: str) -> Iterator[int]:
    """A process that has the file open. words: more of its command line."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(file), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_the_daemon_is_called_by_name(tmp_path: Path) -> None:
    file = tmp_path / "dax0.0"
    file.touch()
    with holder(file, "sacctl", "daemon", "run") as daemon:
        with pytest.raises(RefusedError, match=rf"in the daemon \({daemon}\);") as alone:
            refuse_mapped("kv", [str(file)])
        assert alone.value.hint == "restart the daemon (systemctl restart sacd); then try again"
        with (
            holder(file, "engine") as engine,
            pytest.raises(RefusedError, match=rf"python\S* \({engine}\)") as both,
        ):
            refuse_mapped("kv", [str(file)])
        assert "end the others" in both.value.hint
    refuse_mapped("kv", [str(file)])


def test_others_are_to_end() -> None:
    assert way_out(["process 1 (python3)"]) == "end them, then try again"
