# SPDX-License-Identifier: Apache-2.0
"""What the kernel does when an endpoint decoder's files are written."""

from __future__ import annotations

import errno

from cxlsim.answers import Refused, number
from cxlsim.parts import GRAIN, Decoder

__all__ = ["set_mode", "set_size"]


def set_mode(decoder: Decoder, value: str, no_pmem: int) -> None:
    """no_pmem: the errno for a partition that the device lacks, which differs."""
    wanted = value.removesuffix("\n")
    if wanted not in ("ram", "pmem"):
        raise Refused(errno.EINVAL)
    if decoder.committed:
        raise Refused(errno.EBUSY)
    if wanted == "pmem":
        raise Refused(no_pmem)
    decoder.mode = wanted


def set_size(decoder: Decoder, value: str, unset: int) -> None:
    """A write frees what there was first, so one that fails leaves the decoder empty.

    unset: the errno for a decoder without a mode, which differs between kernels.
    """
    wanted = number(value)
    if wanted % GRAIN:
        raise Refused(errno.EINVAL)
    memdev = decoder.memdev
    if decoder.dpa_bytes:
        if decoder.region is not None or decoder.committed:
            raise Refused(errno.EBUSY)
        if decoder.number != memdev.taken - 1:
            raise Refused(errno.EBUSY, "not the last one taken")
        decoder.dpa_start = decoder.dpa_bytes = 0
    if not wanted:
        return
    if decoder.mode == "none":
        raise Refused(unset)
    start = max((d.dpa_start + d.dpa_bytes for d in memdev.decoders if d.dpa_bytes), default=0)
    if wanted > memdev.bytes - start:
        raise Refused(errno.ENOSPC)
    if decoder.number != memdev.taken:
        raise Refused(errno.EBUSY, "a lower decoder is free")
    decoder.dpa_start, decoder.dpa_bytes = start, wanted
