# SPDX-License-Identifier: Apache-2.0
"""The hot buffer: rows of the pool in GPU memory, an exact cache for each request and layer.

``libsac.HotBuffer`` is this package's; docs/hot-buffer.md explains it. It needs torch, which is
imported when it is first asked for; the reference of its policies does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libsac.hotbuffer.buffer import HotBuffer, HotStats

__all__ = ["HotBuffer", "HotStats"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        from libsac.hotbuffer import buffer
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            "libsac.HotBuffer works on torch tensors, and torch is not installed for this "
            "Python: pip install torch"
        ) from error
    return getattr(buffer, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
