# SPDX-License-Identifier: Apache-2.0
"""A simulated machine with CXL memory: a folder tree, and a kernel that takes writes to it.

``Machine`` is what a test uses; ``python -m cxlsim DIR --topology T`` serves one by hand.
docs/simulator.md says what it enforces and how it is checked against a real kernel.
"""

from cxlsim.firmware import SITUATIONS
from cxlsim.machine import Machine
from cxlsim.shape import SHAPES

__all__ = ["SHAPES", "SITUATIONS", "Machine"]
