# SPDX-License-Identifier: Apache-2.0
"""The fixture that every test of the suite is run over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.backends import BACKENDS, Backend, DaemonPool, OpenPool


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def open_pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenPool]:
    backend: Backend = request.param
    maker = DaemonPool(backend) if backend.where == "daemon" else OpenPool(backend, tmp_path)
    yield maker
    maker.end()
