# SPDX-License-Identifier: Apache-2.0
"""JSON of every command against golden files, the documented schemas and the record types.

SAC_UPDATE_GOLDEN=1 writes the golden files anew; the difference is then to be looked at:
keys may only be added.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from click.testing import CliRunner
from unit import cli_records as r
from unit.cli_fake import FakeDaemon

from sacctl import records
from sacctl.cli import root

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"

EXPOSED = """\
# HELP sac_pool_bytes data bytes: that namespaces can be given
# TYPE sac_pool_bytes gauge
sac_pool_bytes{pool="kv"} 2147483648
"""

ANSWERS: dict[str, Any] = {
    "pool.list": {"pools": [r.pool(), r.pool("old", "absent")]},
    "pool.show": {"pool": r.pool(), "namespaces": [r.namespace()]},
    "namespace.list": {"namespaces": [r.namespace()]},
    "namespace.show": {"namespace": r.namespace(layout=True), "clients": [r.holder()]},
    "namespace.create": {"namespace": r.namespace(), "created": True},
    "namespace.resize": {"namespace": r.namespace()},
    "namespace.flush": {
        "pool": "kv",
        "namespace": "chat",
        "evicted": 900,
        "pages": 0,
        "tails": 0,
        "pinned": 0,
        "reserved": 0,
        "holders": [],
    },
    "namespace.verify": {"pool": "kv", "namespace": "chat", "checked": 912, "dropped": 0},
    "namespace.destroy": {"pool": "kv", "namespace": "chat"},
    "client.list": {"clients": [r.client()]},
    "client.evict": {"client": r.CLIENT_ID, "pid": 4711, "killed": False},
    "status": {"daemon": r.daemon(), "pools": [r.pool()]},
    "reload": {"applied": ["log.level"], "restart": [], "pools": ["new"], "errors": []},
    "stats": {"stats": r.stats()},
    "health": r.health(),
    "metrics": {"text": EXPOSED},
}

# Golden file -> command line and its exit code.
COMMANDS: dict[str, tuple[str, int]] = {
    "pool.list": ("pool list", 0),
    "pool.show": ("pool show kv", 0),
    "namespace.list": ("namespace list", 0),
    "namespace.show": ("namespace show chat --pool kv", 0),
    "namespace.create": ("namespace create chat -p kv --layout deepseek-v3.2-fp8", 0),
    "namespace.resize": ("namespace resize chat -p kv --quota 1G", 0),
    "namespace.flush": ("namespace flush chat -p kv", 0),
    "namespace.verify": ("namespace verify chat -p kv", 0),
    "namespace.destroy": ("namespace destroy chat -p kv --yes", 0),
    "client.list": ("client list", 0),
    "client.evict": ("client evict 4711 --yes", 0),
    "daemon.status": ("daemon status", 0),
    "daemon.reload": ("daemon reload", 0),
    "stats": ("stats", 0),
    "health": ("health", 10),
    "metrics": ("metrics", 0),
    "plan": ("namespace destroy chat -p kv --dry-run", 0),
}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SAC_CONFIG", str(tmp_path / "sac.toml"))
    (tmp_path / "sac.toml").write_text(f'[pools]\ndir = "{tmp_path}/pools.d"\n')
    fake = FakeDaemon(tmp_path / "s", dict(ANSWERS))
    monkeypatch.setenv("SAC_SOCKET", str(fake.path))
    yield fake
    fake.close()


def compare(name: str, printed: str) -> None:
    file = GOLDEN / f"{name}.json"
    if os.environ.get("SAC_UPDATE_GOLDEN"):
        file.write_text(printed)
    assert printed == file.read_text(), f"SAC_UPDATE_GOLDEN=1 writes {file.name} anew"


@pytest.mark.parametrize("name", COMMANDS)
def test_golden(name: str, daemon: FakeDaemon) -> None:
    words, code = COMMANDS[name]
    result = CliRunner().invoke(root, ["-o", "json", *words.split()])
    assert result.exit_code == code, result.output
    assert json.loads(result.stdout)["schema"] == f"sac.{name}/1"
    compare(name, result.stdout)


def test_every_golden_file_has_a_test_and_a_line_in_the_docs() -> None:
    files = {file.stem for file in GOLDEN.glob("*.json")}
    assert files >= set(COMMANDS)
    documented = set(re.findall(r"^\| `sac\.([\w.<>]+)/1`", docs(), re.MULTILINE))
    for name in files:
        assert name in documented or re.sub(r"\.\w+$", ".<what>", name) in documented, name


def docs() -> str:
    return (ROOT / "docs" / "json.md").read_text()


OPTIONAL = {"cxl"}  # of pools of that kind only

# The same records in other words: what a record type has, samples and docs must have.
TYPES = [
    (records.DaemonRecord, r.daemon()),
    (records.PoolRecord, r.pool()),
    (records.ExtentRecord, r.extent()),
    (records.NamespaceRecord, r.namespace(layout=True)),
    (records.HolderRecord, r.holder()),
    (records.FlushRecord, ANSWERS["namespace.flush"]),
    (records.ClientRecord, r.client()),
    (records.TableRecord, r.client()["tables"][0]),
    (records.StatsRecord, r.stats()),
    (records.PoolStats, r.stats()["pools"][0]),
    (records.NamespaceStats, r.stats()["namespaces"][0]),
    (records.ClientStats, r.stats()["clients"][0]),
    (records.OpRecord, r.stats()["ops"][0]),
    (records.LatencyRecord, r.latency()),
    (records.ReloadRecord, ANSWERS["reload"]),
    (records.HealthRecord, r.health()),
    (records.FindingRecord, r.health()["findings"][0]),
]


@pytest.mark.parametrize(("record", "sample"), TYPES, ids=lambda x: getattr(x, "__name__", ""))
def test_documented_keys_are_those_of_the_records(record: Any, sample: Any) -> None:
    keys = set(get_type_hints(record))
    assert keys - OPTIONAL <= set(sample) <= keys
    text = docs()
    missing = {key for key in keys if f"`{key}`" not in text}
    assert not missing
