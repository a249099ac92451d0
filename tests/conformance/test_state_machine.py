# SPDX-License-Identifier: Apache-2.0
"""Random put, pin, gather, append, evict, abort and recover against a model."""

from __future__ import annotations

import pytest
from conformance.backends import OpenPool
from conformance.machine import Machine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test


@pytest.mark.parametrize("checksum", [False, True])
def test_against_the_model(open_pool: OpenPool, checksum: bool) -> None:
    machine = type("Driven", (Machine,), {"open_pool": open_pool, "checksum": checksum})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30 if open_pool.on_disk else 20,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )
