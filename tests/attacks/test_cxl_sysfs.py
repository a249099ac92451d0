# SPDX-License-Identifier: Apache-2.0
"""A tree of sysfs that floods, hangs, lies or has words for the terminal in it: every command
answers or refuses in a sentence, of a length to be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.cxl_house import M
from unit.told_kit import Told, situations

from sacctl.cxl.read import read

LOOKS = (
    ("device", "list"),
    ("device", "show", "mem0"),
    ("device", "topology"),
    ("health",),
    ("doctor",),
    ("pool", "plan"),
    ("pool", "list"),
    ("pool", "show", "kv"),
    ("pool", "create", "other", "--devices", "cxl0,cxl1", "--dry-run"),
    ("pool", "adopt", "other", "region2", "--dry-run"),
    ("pool", "assemble", "kv", "--dry-run"),
    ("pool", "destroy", "kv", "--dry-run"),
)
# What a terminal acts on, or turns the other way round.
HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    with situations(tmp_path, monkeypatch)() as made:
        made.house.create(room=64 * M)
        yield made


def answers(told: Told, most: int = 200_000) -> None:
    """None of the looks is a traceback, too long, or harmful."""
    from click.testing import CliRunner

    from sacctl.cli import root

    given = ["--config", str(told.config), "--sysroot", str(told.house.machine.root)]
    for words in LOOKS:
        done = CliRunner().invoke(root, [*given, *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), words
        said = done.stdout + done.stderr
        assert "a fault of sacctl" not in said, (words, said)
        assert not HARMFUL.search(said), (words, HARMFUL.search(said))
        # A report for a bug has everything in it.
        assert len(said) < most or words == ("doctor",), words


def attributes(told: Told, name: str) -> list[Path]:
    found = [p for p in (told.house.machine.root / "sys").rglob(name) if p.is_file()]
    assert found
    return found


@pytest.mark.parametrize("name", ["firmware_version", "drivers_autoprobe", "serial", "size"])
def test_a_flood(told: Told, name: str) -> None:
    for path in attributes(told, name):
        path.write_bytes(b"A" * M)
    answers(told)


@pytest.mark.parametrize(
    "text",
    [
        "9223372036854775808",  # 2 ** 63
        "-9223372036854775808",
        "18446744073709551615",
        "9" * 5000,
        "\x1b]0;owned\x07\x1b[2J",
        "a\nb\0c",
        "\u202e\u0663",
    ],
)
def test_what_no_number_is(told: Told, text: str) -> None:
    for name in ("size", "interleave_ways", "target_node", "serial", "uevent", "modalias"):
        for path in attributes(told, name):
            path.write_text(text + "\n")
    answers(told)


@pytest.mark.parametrize("word", ["x\x1b[2Jy", "a\nb", "\u202egnp", "A" * 200, "caf\udce9"])
def test_names(told: Told, word: str) -> None:
    """Of objects, and of what links lead to."""
    bus = told.house.machine.root / "sys" / "bus"
    for kind in ("cxl", "dax", "pci"):
        folder = bus / kind / "devices"
        real = os.path.realpath(next(iter(folder.iterdir())))
        for start in ("mem", "region", "dax9.", "0000:", ""):
            (folder / (start + word)).symlink_to(real)
    for device in read(told.house.machine.sysfs).dax:
        driver = told.house.machine.sysfs.at(f"{device.path}/driver")
        driver.unlink()
        (driver.parent / word).mkdir()
        driver.symlink_to(word)
    answers(told)


def test_a_record_with_words_for_the_terminal(told: Told) -> None:
    path = told.house.records.path("kv")
    path.write_text("# \x1b]0;owned\x07\n" + path.read_text())
    answers(told)


@pytest.mark.parametrize("name", ["serial", "size", "numa_node"])
def test_a_pipe_is_not_waited_at(told: Told, name: str) -> None:
    for path in attributes(told, name):
        path.unlink()
        os.mkfifo(path)
    machine = told.house.machine.root
    for words in LOOKS[:4]:
        command = [sys.executable, "-P", "-m", "sacctl", "--config", str(told.config)]
        done = subprocess.run(
            [*command, "--sysroot", str(machine), *words],
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert b"Traceback" not in done.stderr
