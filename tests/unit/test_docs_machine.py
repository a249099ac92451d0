# SPDX-License-Identifier: Apache-2.0
"""Blocks of docs for simulated machines: how they are read, and that a wrong one fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.docs_machine import Block, House, machine, simulated

PAGE = """
```sh
sacctl version
```

```sh sim=2hb2 kmem=no
sacctl device list
sudo sacctl device show \\
    cxl0  # the first
```

```sh sim=2hb2 kmem=no
# nothing
sacctl device show mem9  # exits 3: there is none
```

```sh sim=sw2
sacctl device list
```
"""


def test_blocks_of_one_machine_are_together(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second = simulated(page)
    assert [block.words for block in first] == ["sim=2hb2 kmem=no"] * 2
    assert [block.lines() for block in first] == [
        [("sacctl device list", 0), ("sacctl device show      cxl0", 0)],
        [("sacctl device show mem9", 3)],
    ]
    assert second == [Block("sim=sw2", "sacctl device list\n")]


def test_words_say_which_machine(tmp_path: Path) -> None:
    words = "sim=1hb2 size=512 kmem=no kernel=7.3 auto_online=offline firmware=devdax"
    with machine(words, tmp_path / "m") as made:
        assert made.topology == "1hb2"
        assert {m.bytes for m in made.kernel.memdevs} == {512 << 20}
        assert made.kernel.version == "7.3"
        assert [d.name for d in made.kernel.dax.drivers] == ["device_dax"]
        assert made.kernel.memory.policy == "offline"
        assert made.sysfs.names("/sys/bus/dax/drivers/device_dax")[1].startswith("dax")
    with pytest.raises(ValueError, match="colour"):
        machine("sim=1hb2 colour=red", tmp_path / "x")


def test_commands_end_as_they_do(tmp_path: Path) -> None:
    with House(tmp_path / "h", "sim=2hb2") as house:
        done = house.run("sacctl device show mem9")
        assert done.returncode == 3
        assert "mem9" in done.stderr
        assert house.run("sacctl device list").returncode == 0
        assert house.run("sacctl daemon status").returncode == 0
