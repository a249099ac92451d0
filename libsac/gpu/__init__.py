# SPDX-License-Identifier: Apache-2.0
"""The GPU: devices, a pool's memory registered with CUDA, kernels compiled at run time.

Importing it loads nothing of CUDA; the driver and NVRTC are looked for when they are first
needed (docs/gpu.md).
"""

from libsac.gpu.device import Device, DeviceInfo, Registration, RegistrationInfo
from libsac.gpu.nvrtc import Compiled, compile_kernel, find_nvrtc, kernel_sources
from libsac.gpu.path import Fault, Mover, MoverInfo, gather, put

__all__ = [
    "Compiled",
    "Device",
    "DeviceInfo",
    "Fault",
    "Mover",
    "MoverInfo",
    "Registration",
    "RegistrationInfo",
    "compile_kernel",
    "find_nvrtc",
    "gather",
    "kernel_sources",
    "put",
]
