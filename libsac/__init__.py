# SPDX-License-Identifier: Apache-2.0
"""libsac: a shared, crash-safe store of KV pages with a gather of single rows.

Begin with :func:`embedded`, or with :func:`connect` where a daemon runs; README.md
shows the way from a layout to gathered rows.
"""

from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

# In the root of the sources this folder hides the installed package, which has the native
# module: look there too, so that the README's commands work where they are read.
__path__ = extend_path(__path__, __name__)

try:
    from libsac._core import version as _version
except ModuleNotFoundError as error:
    raise ImportError(
        "libsac's native module is not installed for this Python: run 'pip install .' in the "
        "root of the sources, or 'make install' and use .venv/bin/python"
    ) from error
from libsac import errors
from libsac.client import connect
from libsac.events import Events, PageEvent
from libsac.keys import Keys
from libsac.layout import Layout, Plane
from libsac.pages import Prefix, Put, Sequence
from libsac.pool import Pool, PoolInfo, embedded
from libsac.ranks import Ranks
from libsac.store import Namespace, NamespaceInfo, NamespaceStats

if TYPE_CHECKING:
    from libsac.hotbuffer import HotBuffer

__version__ = _version()

__all__ = [
    "Events",
    "HotBuffer",
    "Keys",
    "Layout",
    "Namespace",
    "NamespaceInfo",
    "NamespaceStats",
    "PageEvent",
    "Plane",
    "Pool",
    "PoolInfo",
    "Prefix",
    "Put",
    "Ranks",
    "Sequence",
    "connect",
    "embedded",
    "errors",
]


def __getattr__(name: str) -> Any:
    # torch is imported by those who use it.
    if name == "HotBuffer":
        from libsac.hotbuffer import HotBuffer

        return HotBuffer
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
