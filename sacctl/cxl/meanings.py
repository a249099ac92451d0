# SPDX-License-Identifier: Apache-2.0
"""What an errno means that the kernel gave for a write, and the error that says so."""

from __future__ import annotations

import errno
import os

from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import BusyError, CtlError, DeniedError, NotFoundError

__all__ = ["because", "failed"]

_E = errno
# By the kind of the write. Causes as the kernel's source and a running kernel give them.
_CAUSES: dict[str, dict[int, str]] = {
    "create": {
        _E.EBUSY: "other programs make regions at the same time",
        _E.EINVAL: "the kernel does not take the name that it gave itself",
    },
    "granularity": {
        _E.EINVAL: "the window does not allow this granularity",
        _E.EBUSY: "the region is in use",
    },
    "ways": {
        _E.EINVAL: "the window does not allow this many ways",
        _E.EBUSY: "the region is in use",
    },
    "mode": {
        _E.EBUSY: "the decoder is in use",
        _E.EINVAL: "the device has no volatile memory there",
    },
    "dpa": {
        _E.EINVAL: "not a multiple of 256 MiB, or no mode is set",
        _E.ENOSPC: "the device has less memory free",
        _E.EBUSY: "decoders are taken in increasing and given back in decreasing order, and "
        "not while a region has them",
        _E.ENXIO: "the device has no such memory",
    },
    "size": {
        _E.EINVAL: "not a multiple of 256 MiB x ways",
        _E.ENXIO: "ways and granularity are not set",
        _E.ERANGE: "the window has no hole of this size",
        _E.EBUSY: "the region is in use",
    },
    "target": {
        _E.ENXIO: "the device is not below the bridge or port of this position, or has no "
        "memory allocated",
        _E.EBUSY: "a bridge or switch on the way has no decoder free, or regions would not be "
        'in the order of their addresses ("HPA order")',
        _E.EINVAL: "device and region do not agree in size or kind",
        _E.EOPNOTSUPP: "a device or port does not support these ways or this granularity",
        _E.ENODEV: "the device has gone",
    },
    "commit": {
        _E.ENXIO: "a target is missing, or ports do not decode this interleave",
        _E.EBUSY: "decoders are programmed in the order of addresses",
        _E.ETIMEDOUT: "a decoder did not commit in time",
        _E.EIO: "a decoder refused its settings",
    },
    "bind": {
        _E.ENODEV: "it has gone, or is already bound",
        _E.ENXIO: "the region is not committed",
        _E.EBUSY: "it is bound, or its memory is in use",
        _E.EINVAL: "the driver does not take it",
    },
    "kmem": {
        _E.EINVAL: "the memory is smaller than a memory block, or not aligned to one",
        _E.EBUSY: "its memory is in use",
    },
    "dax-size": {
        _E.EBUSY: "a driver is bound to it",
        _E.EINVAL: "not a multiple of its alignment",
        _E.ENOSPC: "the region has less memory free",
        _E.ENXIO: "its region has gone",
    },
    "dax-create": {
        _E.ENOSPC: "the region has no memory free",
        _E.EBUSY: "a dax device of the region is being changed",
    },
    "dax-delete": {_E.EBUSY: "it has memory, or a driver is bound to it"},
    "offline": {
        _E.EBUSY: "pages in it are in use and cannot be moved",
        _E.EINTR: "it took too long",
        _E.EAGAIN: "it took too long",
    },
}

_NO_INVALIDATION = (
    (
        "this kernel cannot invalidate the CPU's caches in a virtual machine, which committing "
        'a region needs; dmesg: "Failed to synchronize CPU cache state"'
    ),
    (
        "a kernel with CONFIG_CXL_REGION_INVALIDATION_TEST, or a virtual CPU that does not say "
        "hypervisor (qemu: -cpu max,-hypervisor)"
    ),
)
_GONE = (_E.ENOENT, _E.ENODEV)


def failed(sysfs: Sysfs, kind: str, what: str, error: OSError) -> CtlError:
    """The error for a write (``what``: its line) that the kernel refused."""
    code = error.errno or 0
    path = error.filename if isinstance(error.filename, str) else ""
    message = f"the kernel refused '{what}': {os.strerror(code)}"
    cause, hint = because(sysfs, kind, code)
    if cause:
        message += f" ({cause})"
    if code in (_E.EACCES, _E.EPERM):
        return DeniedError(
            f"cannot write {path}: {os.strerror(code)}",
            object=path,
            errno=code,
            hint="run it as root",
        )
    if code == _E.EROFS:
        return DeniedError(
            f"cannot write {path}: {os.strerror(code)}",
            object=path,
            errno=code,
            hint="containers have /sys read-only: run it on the host",
        )
    if code in _GONE and not sysfs.exists(path):
        return NotFoundError(
            f"'{what}' failed: {path} is not there (the device has gone, or its driver is not "
            "loaded)",
            object=path,
            errno=code,
            hint="sacctl device list; dmesg | grep -i cxl",
        )
    cls = BusyError if code == _E.EBUSY else CtlError
    return cls(message, object=path, errno=code, hint=hint or "dmesg | grep -i cxl")


def because(sysfs: Sysfs, kind: str, code: int) -> tuple[str, str]:
    """The likely cause of an errno and what to do; "" where nothing is known."""
    if kind == "commit" and code == _E.ENXIO and _virtual(sysfs):
        return _NO_INVALIDATION
    return _CAUSES.get(kind, {}).get(code, ""), ""


def _virtual(sysfs: Sysfs) -> bool:
    """Whether the CPU says that it is one of a virtual machine."""
    for line in sysfs.get("/proc/cpuinfo").splitlines():
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    return False
