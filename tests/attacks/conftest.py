# SPDX-License-Identifier: Apache-2.0
"""A pool to attack: built once, copied for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacks import victim
from conformance.backends import copy_pool


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attacks") / "template"
    victim.build(path)
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """A copy of the template, closed cleanly, to be changed and opened."""
    copy = tmp_path / "pool"
    copy_pool(template, copy)
    return copy
