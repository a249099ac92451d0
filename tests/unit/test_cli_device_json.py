# SPDX-License-Identifier: Apache-2.0
"""JSON of ``sacctl device`` against golden files, the docs and the record types.

SAC_UPDATE_GOLDEN=1 writes the golden files anew, as for test_cli_json.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from click.testing import CliRunner
from unit.cxl_dump import tree
from unit.device_kit import record
from unit.test_cli_json import compare, docs

from sacctl.cli import root
from sacctl.cxl import device_records as records

COMMANDS = {
    "device.list": "device list",
    "device.show": "device show mem0",
    "device.topology": "device topology",
}

# Absent where the program cxl told nothing.
TOLD = {"temperature", "life_used_percent", "conditions", "errors", "alerts", "poison"}


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
    (tmp_path / "sac.toml").write_text(f'[pools]\ndir = "{tmp_path}/pools.d"\n')
    record(tmp_path, "kv", ("serial:0x100", "serial:0x101"))
    (tmp_path / "tree").mkdir()
    return str(tree("6.12-2hb2", "kmem", tmp_path / "tree").root)


def printed(at: str, words: str) -> str:
    result = CliRunner().invoke(root, ["--sysroot", at, "-o", "json", *words.split()])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_golden(name: str, at: str) -> None:
    text = printed(at, COMMANDS[name])
    assert json.loads(text)["schema"] == f"sac.{name}/1"
    compare(name, text)


def test_documented_keys_are_those_of_the_records(at: str) -> None:
    topology = json.loads(printed(at, "device topology"))
    shown = json.loads(printed(at, "device show mem0"))["device"]
    pairs: list[tuple[Any, dict[str, Any]]] = [
        (records.DeviceRecord, shown),
        (records.LinkRecord, shown["link"]),
        (records.DecoderRecord, shown["decoders"][0]),
        (records.RegionRecord, topology["regions"][0]),
        (records.DaxRecord, topology["dax"][0]),
        (records.BlocksRecord, topology["dax"][0]["blocks"]),
        (records.WindowRecord, topology["windows"][0]),
        (records.PortRecord, topology["ports"][0]),
    ]
    text = docs()
    for kind, sample in pairs:
        keys = set(get_type_hints(kind))
        absent = TOLD if kind is records.DeviceRecord else set()
        assert set(sample) == keys - absent
        assert not {key for key in keys if f"`{key}`" not in text}
    assert set(json.loads(printed(at, "device list"))) >= {
        "devices",
        "dax",
        "skipped",
        "looked",
    }
