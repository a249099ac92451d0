# SPDX-License-Identifier: Apache-2.0
"""What all tests share: hypothesis settings, and random numbers whose seed is printed."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest
from hypothesis import settings

# Times vary on shared machines; what failed must be repeatable from the report alone.
settings.register_profile("sac", deadline=None, print_blob=True)
settings.load_profile("sac")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number that differs from test to test and stays the same from run to run.

    SAC_TEST_SEED in the environment gives other ones. pytest shows it if the test fails.
    """
    base = int(os.environ.get("SAC_TEST_SEED", "0"))
    value = zlib.crc32(request.node.nodeid.encode()) ^ base
    print(f"seed {value} (SAC_TEST_SEED={base})")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
