# SPDX-License-Identifier: Apache-2.0
"""GPUs, and a pool's memory registered with CUDA."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

from libsac import _core
from libsac.arguments import milliseconds, unsigned
from libsac.closing import Closing
from libsac.errors import ArgumentError, BusyError
from libsac.gpu.nvrtc import use_found_nvrtc
from libsac.sizes import parse_size
from libsac.store import Namespace

__all__ = ["Device", "DeviceInfo", "Registration", "RegistrationInfo", "State"]

State = Literal["running", "registered", "refused", "ended"]
_TURN_MS = 100
_STATES: tuple[State, ...] = ("running", "registered", "refused", "ended")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a GPU is. Sizes in bytes.

    Attributes:
        ordinal: CUDA's number of it in this process.
        name: "NVIDIA H200". pci: "0000:17:00.0".
        capability: (9, 0) for sm_90.
        numa_node: of the host, nearest to it; -1 where the kernel does not say.
        multiprocessors: how many it has.
        driver_version: of CUDA that the driver knows: 13000 for 13.0.
        can_register: kernels can read registered memory of the host in place.
        can_register_read_only: also where it is mapped to be read only.
        memory_bytes, free_bytes: of the GPU; free_bytes is what was free when asked.
    """

    ordinal: int
    name: str
    capability: tuple[int, int]
    pci: str
    numa_node: int
    multiprocessors: int
    driver_version: int
    can_register: bool
    can_register_read_only: bool
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class RegistrationInfo:
    """How far a registration is. Sizes in bytes.

    Attributes:
        state: "running"; "registered", all of it but for dead memory; "refused", with the
            reason; "ended", it was unregistered or the pool has gone.
        chunks, chunks_done: calls of CUDA needed, and done.
        bytes, bytes_done: of the pool in this process, and what the GPU can read now.
        bytes_foreign: of those done, registered (and kept) by somebody else in the process.
        result: CUDA's result of what was refused; 0 where none was.
        reason: one or two sentences; "" where nothing was refused.
    """

    state: State
    chunks: int
    chunks_done: int
    bytes: int
    bytes_done: int
    bytes_foreign: int
    result: int
    reason: str


class Registration:
    """A pool's memory, registered with CUDA in the background, so that kernels read it.

    It stays until the pool's memory is unmapped (the pool and everything opened from it
    closed), whatever becomes of this object, or until :meth:`unregister`.
    """

    def __init__(self, native: _core.GpuRegistration) -> None:
        self._native = native

    def info(self) -> RegistrationInfo:
        """How far it is, without waiting. Raises ForkedError in a forked child."""
        values = dict(self._native.info())
        values["state"] = _STATES[values["state"]]
        return RegistrationInfo(**values)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all is registered, at most timeout seconds (None: without end).

        Raises:
            GpuError: refused, with the reason; or it has ended.
            BusyError: the time is up.
            ForkedError: in a forked child.
        """
        left = None if timeout is None else milliseconds(timeout, "timeout")
        # In short turns, so that signals (Ctrl-C) are handled in between.
        while left is None or left > _TURN_MS:
            try:
                return self._native.wait(_TURN_MS)
            except BusyError:
                left = None if left is None else left - _TURN_MS
        return self._native.wait(left)

    def unregister(self) -> None:
        """Unregisters now, before an orderly end; no kernel of the caller's may read the pool.

        Memory that somebody else registered stays registered.
        """
        self._native.unregister()

    def __repr__(self) -> str:
        i = self.info()
        return f"<Registration {i.state}: {i.bytes_done} of {i.bytes} bytes>"


class Device(Closing):
    """A GPU of this process: ``Device()`` or ``Device(1)``, or ``Device("cuda:1")``.

    Takes the GPU's primary context, which torch uses as well. All calls may come from several
    threads.

    Args:
        device: CUDA's number, a torch device or its name. None: torch's current device where
            torch is in use, else 0.

    Raises:
        GpuError: no CUDA driver, no GPU, or CUDA refuses; the message says what helps.
        RangeError: there is no such GPU.
        ForkedError: the parent process has initialised CUDA.
    """

    def __init__(self, device: Any = None) -> None:
        use_found_nvrtc()
        self._native = _core.gpu_open(ordinal(device))

    def info(self) -> DeviceInfo:
        """What it is, and how much of its memory is free."""
        return DeviceInfo(**self._native.info())

    def register(
        self, namespace: Namespace, *, chunk: int | str = 0, wait: bool = False
    ) -> Registration:
        """Begins to register the memory of a namespace's pool with CUDA, in the background.

        Once a process and pool: a second call gets what there is, also for another namespace
        or GPU.

        Args:
            namespace: of the pool.
            chunk: bytes registered by one call of CUDA, a multiple of 4096 (or a text such as
                "1G"); 0: 64 GiB, the most.
            wait: return when it is done, and raise GpuError where CUDA refuses.
        """
        made = self._native.register(namespace._native, parse_size(chunk))
        registration = Registration(made)
        if wait:
            registration.wait()
        return registration

    def close(self) -> None:
        """Gives the context back, once nothing made with it is left."""
        self._native.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return "<Device: closed>"
        i = self.info()
        return f"<Device {i.ordinal}: {i.name}>"


def ordinal(device: Any) -> int:
    """CUDA's number of a GPU that is given as Device takes it."""
    if device is None:
        torch = sys.modules.get("torch")
        return int(torch.cuda.current_device()) if torch and torch.cuda.is_available() else 0
    if isinstance(device, str) and device in ("cuda", "gpu"):
        return ordinal(None)
    if isinstance(device, str) and device.startswith("cuda:") and device[5:].isdigit():
        return int(device[5:])
    kind = getattr(device, "type", None)  # a torch.device
    if kind == "cuda":
        return ordinal(None) if device.index is None else int(device.index)
    try:
        return unsigned(device, "device")
    except ArgumentError:
        raise ArgumentError(
            f"device is {device!r}; a CUDA device is needed: its number (0), its name "
            '("cuda:0") or a torch device'
        ) from None
