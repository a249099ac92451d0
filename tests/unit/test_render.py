# SPDX-License-Identifier: Apache-2.0
"""Numbers, tables and JSON as people and programs see them."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from unit import cli_records as r

from sacctl.render import quantities as q
from sacctl.render.daemon import health_parts, plugin_line
from sacctl.render.output import to_json
from sacctl.render.pools import namespace_parts, pool_parts, pool_table
from sacctl.render.stats import stats_parts
from sacctl.render.table import Cell, Facts, Table, drawn, fitted, plain, write


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (102400, "100 KiB"),
        (1 << 30, "1 GiB"),
        ((1 << 30) - 1, "1 GiB"),
        (123 << 20, "123 MiB"),
        ((1 << 63) - 1, "8 EiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_sizes(n: int, text: str) -> None:
    assert q.size(n) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (1280, "1.28 us"),
        (999_600, "1 ms"),
        (12_345_678, "12.3 ms"),
        (2e9, "2 s"),
        (119e9, "119 s"),
        (120e9, "2 min"),
        (7200e9, "2 h"),
        (48 * 3600e9, "2 d"),
        (100 * 86400e9, "100 d"),
    ],
)
def test_durations(ns: float, text: str) -> None:
    assert q.duration(ns) == text


def test_counts_rates_and_shares() -> None:
    assert [q.count(n) for n in (0, 99_999, 100_000, 1_250_000)] == [
        "0",
        "99,999",
        "100 k",
        "1.25 M",
    ]
    assert [q.rate(n) for n in (0.25, 12.34, 1234)] == ["0.25/s", "12.3/s", "1,234/s"]
    assert (q.percent(1, 3), q.percent(1, 0)) == ("33%", "-")
    assert (q.hit_rate(999, 1000), q.hit_rate(0, 0)) == ("99.9%", "-")
    assert (q.share_bar(1, 4, 4), q.share_bar(9, 4, 4), q.share_bar(0, 0, 4)) == (
        "#...",
        "####",
        "....",
    )
    assert (q.ago(0), q.ago(1000, 4000), q.ago(5000, 4000)) == ("-", "3 s", "0 ns")
    assert q.list_of(["a", "b", "c"], 2) == "a, b and 1 more"
    assert q.list_of([]) == "-"


@given(st.text())
def test_clean_leaves_nothing_that_moves_the_cursor(text: str) -> None:
    out = q.clean(text)
    assert all(unicodedata.category(c)[0] not in "CZ" or c == " " for c in out)
    assert q.clean(out) == out


@given(st.integers(0, (1 << 63) - 1))
def test_numbers_are_short(n: int) -> None:
    assert len(q.size(n)) <= 8
    assert len(q.count(n)) <= 8
    assert len(q.duration(n)) <= 9


def test_plain_tables_are_aligned() -> None:
    table = Table(("name", ">size"), title="some")
    table.add("日本", "1")
    table.add(Cell("a\x1b[1m", "bad"), "1000")
    facts = Facts()
    facts.add("key", "value")
    facts.add("longer key", Cell("x", "good"))
    facts.add("left out", "")
    assert plain([table, facts]) == (
        "some:\n"
        "NAME        SIZE\n"
        "日本           1\n"
        "a\\u001b[1m  1000\n"
        "\n"
        "key:         value\n"
        "longer key:  x\n"
    )
    with pytest.raises(ValueError, match="3 values for 2"):
        table.add("a", "b", "c")


def test_drawn_takes_nothing_as_markup() -> None:
    table = Table(("[bold]x[/bold]",))
    table.add("[red]y[/red] :smile:")
    out = io.StringIO()
    Console(file=out, width=60, force_terminal=True).print(drawn([table], 60))
    assert "[red]y[/red] :smile:" in out.getvalue()
    assert "[bold]x" in out.getvalue()


def test_tables_wider_than_the_terminal_are_split() -> None:
    table = Table(("key", *(f">column {n}" for n in range(10))), title="t")
    table.add("k", *"0123456789")
    parts = fitted(table, 40)
    assert len(parts) > 2
    assert [part.columns[0] for part in parts] == ["key"] * len(parts)
    assert [c for part in parts for c in part.columns[1:]] == list(table.columns[1:])
    assert [v for part in parts for v in part.rows[0][1:]] == list("0123456789")
    assert [part.title for part in parts] == ["t"] + [""] * (len(parts) - 1)
    for part in parts:
        assert len(plain([part]).splitlines()[1]) <= 40
    assert fitted(table, 400) == [table]
    # Text is folded instead; a column wider than all stands alone.
    text = Table(("key", "~text"))
    text.add("k", "word " * 30)
    assert fitted(text, 40) == [text]
    wide = Table(("key", "a", "b"))
    wide.add("k", "x" * 100, "y")
    assert [part.columns for part in fitted(wide, 40)] == [("key", "a"), ("key", "b")]


@pytest.mark.parametrize("room", [20, 40, 80, 200])
def test_no_drawn_line_is_longer_than_the_terminal(room: int) -> None:
    out = io.StringIO()
    parts = stats_parts(r.stats(), ops=True) + pool_parts(r.pool(), [r.namespace()])
    Console(file=out, width=room).print(drawn(parts, room))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= room for line in lines)
    if room >= 80:
        assert sum("chat" in line for line in lines) >= 2


def test_write_is_plain_without_a_terminal() -> None:
    out = io.StringIO()
    write([pool_table([r.pool()])], out)
    assert out.getvalue().startswith("NAME")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_write_on_a_terminal_is_drawn_unless_there_is_very_much() -> None:
    few, many, none = Terminal(), Terminal(), Terminal()
    write([pool_table([r.pool()])], few)
    assert "\x1b[1mname" in few.getvalue()
    write([pool_table([r.pool()] * 5000)], many)
    assert many.getvalue().startswith("NAME")
    write([], none)
    assert none.getvalue() == ""


def test_json_is_ascii_with_the_schema_first() -> None:
    text = to_json("a.b", {"x": "é\udc80", "n": 1 << 63})
    assert text.isascii()
    assert list(json.loads(text)) == ["schema", "x", "n"]
    assert json.loads(text)["n"] == 1 << 63
    assert to_json("a", {"x": [1, 2]}, line=True) == '{"schema":"sac.a/1","x":[1,2]}\n'
    with pytest.raises(ValueError, match="JSON"):
        to_json("a", {"x": float("nan")})


def test_a_pool_that_is_not_served_says_why() -> None:
    text = plain(pool_parts(r.pool("old", "absent")))
    assert "the files may not be opened" in text
    assert "sacctl pool create old" in text
    assert "free" not in text.split("extents:")[0]


def test_a_namespace_shows_planes_and_holders() -> None:
    text = plain(namespace_parts(r.namespace(layout=True), [r.holder()]))
    for word in ("latent", "1.12 KiB", "engine", "checksum of its rows", "1 GiB of 1 GiB"):
        assert word in text


def test_stats_as_rates_between_two_looks() -> None:
    before, now = r.stats(1000, 10_000), r.stats(3000, 12_000)
    now["namespaces"][0]["bytes_written"] += 64 << 20
    text = plain(stats_parts(now, before))
    assert "1,000/s" in text
    assert "32 MiB/s" in text
    assert "requests to the daemon" not in text
    assert "ATTACH" in plain(stats_parts(now, ops=True))


def test_stats_of_a_daemon_started_anew_are_not_negative() -> None:
    text = plain(stats_parts(r.stats(100, 12_000), r.stats(5000, 10_000)))
    assert "-" not in text.split("namespaces:")[1].split("clients:")[0].replace(" - ", "")
    assert "50/s" in text


def test_stats_of_nothing_and_of_very_much() -> None:
    empty = r.stats()
    for table in ("pools", "extents", "namespaces", "clients", "ops"):
        empty[table].clear()  # type: ignore[literal-required,unused-ignore]
    assert "none" in plain(stats_parts(empty))
    many = r.stats()
    many["namespaces"] *= 500
    text = plain(stats_parts(many, most=10))
    assert "namespaces (10 of 500, most lookups first)" in text
    assert len(text.splitlines()) < 50


@pytest.mark.parametrize(
    ("status", "word", "code"),
    [
        ("ok", "OK", 0),
        ("degraded", "WARNING", 1),
        ("critical", "CRITICAL", 2),
        ("unknown", "UNKNOWN", 3),
    ],
)
def test_plugin_line(status: str, word: str, code: int) -> None:
    line, got = plugin_line(r.health(status))
    assert got == code
    assert line.startswith(f"SAC {word} - ")
    assert line.count("|") == 1
    assert "\n" not in line


def test_plugin_line_survives_any_message() -> None:
    record = r.health()
    record["findings"][0]["message"] = "a | b\nc"
    line, _ = plugin_line(record)
    assert line.count("|") == 1
    assert "\n" not in line


def test_health_says_the_worst_first() -> None:
    record = r.health("critical")
    note = dict(record["findings"][0], severity="note", code="SAC999")
    record["findings"].insert(0, note)  # type: ignore[arg-type]
    text = plain(health_parts(record))
    assert text.index("SAC101") < text.index("SAC999")
