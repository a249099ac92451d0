# SPDX-License-Identifier: Apache-2.0
"""Errors of sacctl: kinds, sentences, and where they come from."""

from __future__ import annotations

import errno
import json

import pytest

from libsac import errors as native
from sacctl import errors
from sacctl.cli.failure import handle
from sacctl.errors import CtlError, from_libsac, from_os, from_reply

ALL: list[type[CtlError]] = [CtlError, *CtlError.__subclasses__()]


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
def test_through_a_reply_and_back(cls: type[CtlError]) -> None:
    sent = cls("it broke", object="kv", errno=errno.EBUSY, hint="try again")
    got = from_reply(json.loads(json.dumps(sent.to_reply())))
    assert type(got) is cls
    assert vars(got) == vars(sent)
    assert got.sentence() == "kv: it broke: Device or resource busy. next: try again"


def test_kinds_and_codes_are_one_to_one() -> None:
    assert sorted(c.exit_code for c in ALL) == list(range(1, 8))
    kinds = {"failed", "usage", "not_found", "refused", "permission", "busy", "partly"}
    assert {c.kind for c in ALL} == kinds


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"kind": "of tomorrow", "message": ""},
        {"kind": None, "message": None, "object": None, "errno": None, "hint": None},
        {"errno": "2", "message": 5},
    ],
)
def test_odd_replies_are_failures(reply: dict[str, object]) -> None:
    error = from_reply(reply)
    assert type(error) is CtlError
    assert error.sentence()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (native.ArgumentError("x"), "usage"),
        (native.RangeError("x"), "usage"),
        (native.NotFoundError("x"), "not_found"),
        (native.ExistsError("x"), "failed"),
        (native.LayoutError("x"), "failed"),
        (native.NoSpaceError("x"), "failed"),
        (native.BusyError("x"), "busy"),
        (native.DaemonError("x"), "not_found"),
        (native.AccessError("x"), "permission"),
        (native.SystemCallError("x", errno=errno.EACCES), "permission"),
        (native.SystemCallError("x", errno=errno.ENOENT), "not_found"),
        (native.SystemCallError("x", errno=errno.EIO), "failed"),
    ],
)
def test_of_libsac(error: native.SacError, kind: str) -> None:
    assert from_libsac(error, hint="h").kind == kind
    assert from_libsac(error, hint="h").hint == "h"


def test_every_status_of_libsac_has_a_kind() -> None:
    for cls in native.SacError.__subclasses__():
        assert from_libsac(cls("x")).kind


def test_of_the_system() -> None:
    error = from_os(PermissionError(errno.EACCES, "Permission denied", "/x/y"), "cannot read")
    assert isinstance(error, errors.DeniedError)
    assert error.sentence() == "cannot read /x/y: Permission denied"
    assert from_os(OSError("no number"), "it failed").sentence() == "it failed: no number"
    # The path is not said twice.
    named = from_os(FileNotFoundError(errno.ENOENT, "No such file", "/x"), "cannot open /x")
    assert named.sentence().count("/x") == 1


def test_sentences() -> None:
    assert CtlError("a.", object="pool kv").sentence() == "pool kv: a"
    assert CtlError("pool kv has a", object="pool kv").sentence() == "pool kv has a"
    full = CtlError("x: Permission denied", errno=errno.EACCES)
    assert full.sentence() == "x: Permission denied"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SystemExit(143), 143, ""),
        (SystemExit("why"), 1, ""),
        (KeyboardInterrupt(), 130, "\n"),
        (BrokenPipeError(), 141, ""),
        (MemoryError(), 1, "error: this process is out of memory: Cannot allocate memory\n"),
        (ImportError("libsac's native module is not installed"), 1, "error: libsac's native"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            5,
            "/x: Permission denied\n",
        ),
        (native.BusyError("in use by process 1"), 6, "error: in use by process 1\n"),
        (
            RuntimeError("boom"),
            1,
            "error: a fault of sacctl itself: RuntimeError: boom. next: ",
        ),
    ],
    ids=repr,
)
def test_where_every_error_ends(
    error: BaseException,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sacctl.cli.failure.drop_stdout", lambda: None)
    assert handle(error) == code
    printed = capsys.readouterr()
    assert said in printed.err
    assert (printed.err == "") == (said == "")
    assert printed.out == ""
