# SPDX-License-Identifier: Apache-2.0
"""The few things that need a pool's bytes changed: the core does them."""

from __future__ import annotations

from collections.abc import Sequence

from libsac.errors import SacError
from sacctl.errors import from_libsac

__all__ = ["Opened", "extend_pool", "format_pool", "inspect_pool"]

File = tuple[int, str]  # fd, path


class Opened:
    """What a pool said of itself when it was opened. Sizes in bytes."""

    __slots__ = ("data_bytes", "extents", "uuid")

    def __init__(self, uuid: str, data_bytes: int, extents: int) -> None:
        self.uuid = uuid
        self.data_bytes = data_bytes
        self.extents = extents


def format_pool(meta: File, data: Sequence[File]) -> Opened:
    """Writes a new pool over files of zeros and closes it. Raises CtlError."""
    return _open(meta, data, create=True)


def inspect_pool(meta: File, data: Sequence[File]) -> Opened:
    """Opens a pool, which checks all of its tables, and closes it. Raises CtlError."""
    return _open(meta, data)


def extend_pool(meta: File, data: Sequence[File], new: Sequence[File]) -> Opened:
    """Opens a pool, adds files of zeros at its end and closes it. Raises CtlError."""
    return _open(meta, data, new=new)


def _open(
    meta: File, data: Sequence[File], *, create: bool = False, new: Sequence[File] = ()
) -> Opened:
    # Here, for the native module takes a while to load and --dry-run does not need it.
    from libsac.server import Extent, open_pool

    try:
        with open_pool(Extent(*meta), [Extent(*file) for file in data], create=create) as pool:
            for file in new:
                pool.extend(Extent(*file))
            info = pool.info
            return Opened(info.uuid.hex(), info.data_bytes, info.extents)
    except SacError as error:
        raise from_libsac(error) from error
