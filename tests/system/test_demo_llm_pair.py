# SPDX-License-Identifier: Apache-2.0
"""``python -m sacctl.demo.llm``: a model decodes from what another process prefilled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from libsac.demo import llm

MISSING = llm.missing_modules()
needs_model = pytest.mark.skipif(
    bool(MISSING), reason=f"of the extra llm, not installed: {', '.join(MISSING)}"
)


def demo(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "sacctl.demo.llm", *args],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_model
@pytest.mark.timeout(600)
def test_second_process_decodes_without_recomputing(tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text(llm.read_text(llm.TEXT)[:1500], encoding="utf-8")
    done = demo(
        tmp_path, "--tokens", "6", "--budget", "192", "--recent", "32", "--text", str(text)
    )
    assert done.returncode == 0, done.stderr
    prompt = re.search(r"^prompt +([\d,]+) tokens", done.stdout, re.M)
    put = re.search(r"put ([\d,]+) full pages", done.stdout)
    found = re.search(r"found and pinned ([\d,]+) pages", done.stdout)
    rest = re.search(r"computed the (\d+) tokens", done.stdout)
    assert prompt and put and found and rest  # noqa: PT018
    tokens, pages = int(prompt[1].replace(",", "")), int(found[1])
    assert put[1] == found[1]
    assert pages * llm.PAGE_TOKENS + int(rest[1]) == tokens - 1
    assert re.search(r"^tokens +equal", done.stdout, re.M)
    assert re.search(r"^first token +after [\d.]+ s; recomputed: [\d.]+ s", done.stdout, re.M)
    assert list(tmp_path.glob("sac-demo-*")) == []
    assert list(Path("/dev/shm").glob("sac-demo-*")) == []


def test_wrong_options_end_before_anything_is_started(tmp_path: Path) -> None:
    for args, code in ((("--tokens", "0"), 2), (("--text", "/no/such"), 1)):
        done = demo(tmp_path, *args)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
