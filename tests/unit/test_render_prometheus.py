# SPDX-License-Identifier: Apache-2.0
"""Prometheus text: its form, its figures, and the way back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit import cli_records as r

from sacctl.render.prometheus import families, text

LABEL = r'[a-z_]+="([^"\\\n]|\\[\\"n])*",?'
LINE = re.compile(rf"# (HELP|TYPE) [a-z_]+ .*|[a-z_]+(\{{({LABEL})*\}})? -?[0-9.e+-]+")


def exposed() -> str:
    return text(r.daemon(), r.stats(), r.health())


def family(name: str, of: str | None = None) -> dict[str, Any]:
    found = [f for f in families(of or exposed()) if f["name"] == name]
    assert len(found) == 1, name
    return found[0]


def test_every_line_has_the_form_and_every_family_one_head() -> None:
    lines = exposed().splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    heads = [line for line in lines if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads)) == sum(line.startswith("# HELP") for line in lines)


def test_names_follow_the_customs() -> None:
    for one in families(exposed()):
        assert one["name"].startswith("sac_")
        assert one["help"]
        assert (one["type"] == "counter") == one["name"].endswith("_total")
        if one["type"] == "histogram":
            assert one["name"].endswith("_seconds")
        for sample in one["samples"]:
            assert sample["name"].startswith(one["name"])


def test_figures() -> None:
    labels = {"pool": "kv", "namespace": "chat"}
    lookups = family("sac_namespace_lookups_total")
    assert lookups["samples"] == [
        {"name": "sac_namespace_lookups_total", "labels": labels, "value": 1000}
    ]
    free = family("sac_extent_free_bytes")["samples"]
    assert [s["labels"]["extent"] for s in free] == ["0", "1"]
    assert [s["value"] for s in family("sac_extent_lost")["samples"]] == [0, 0]
    states = {s["labels"]["status"]: s["value"] for s in family("sac_health_status")["samples"]}
    assert states == {"ok": 0, "degraded": 1, "critical": 0, "unknown": 0}
    errors = family("sac_daemon_request_errors_total")["samples"]
    assert errors[0]["labels"] == {"op": "ATTACH"}
    assert errors[0]["value"] == 1


def test_histograms_are_cumulative_and_always_the_same_buckets() -> None:
    samples = family("sac_namespace_latency_seconds")["samples"]
    ends: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        if sample["name"].endswith("_bucket"):
            call = sample["labels"]["call"]
            ends.setdefault(call, []).append((float(sample["labels"]["le"]), sample["value"]))
    assert set(ends) == {"lookup", "pin", "gather"}  # put was never measured
    first = [end for end, _ in ends["lookup"]]
    for buckets in ends.values():
        assert [end for end, _ in buckets] == first == sorted(first)
        counts = [count for _, count in buckets]
        assert counts == sorted(counts)
    # 90 in the bucket up to 1280 ns, 10 in that up to 4096 ns.
    counted = dict(ends["lookup"])
    assert (counted[1.024e-06], counted[4.096e-06], counted[float("inf")]) == (0, 100, 100)
    total = next(
        s["value"] for s in samples
        if s["name"].endswith("_sum") and s["labels"]["call"] == "lookup"
    )  # fmt: skip
    assert total == pytest.approx((90 * 1280 + 10 * 4096) / 1e9)


def test_without_health() -> None:
    assert "sac_health" not in text(r.daemon(), r.stats())


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_labels_come_back(name: str) -> None:
    stats = r.stats()
    stats["namespaces"][0]["namespace"] = name
    out = text(r.daemon(), stats)
    sample = family("sac_namespace_pages", out)["samples"][0]
    assert sample["labels"]["namespace"] == name


def test_families_refuses_what_it_does_not_understand() -> None:
    with pytest.raises(ValueError, match="not a sample"):
        families("# HELP a b\n# TYPE a gauge\nnonsense\n")
    with pytest.raises(ValueError, match="not a sample"):
        families("a 1\n")
