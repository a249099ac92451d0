# SPDX-License-Identifier: Apache-2.0
"""What ``sacctl bench`` measures: each work beside its limit, in the same run.

Every function takes an open :class:`libsac.Pool`, connected or embedded, fills a temporary
namespace of its own there, removes it again whatever happens, and returns a record.
"""

from sacctl.bench.gather import gather
from sacctl.bench.interleave import interleave
from sacctl.bench.lookup import lookup
from sacctl.bench.put import put
from sacctl.bench.record import Bencher, BenchRecord, MeasurementRecord

__all__ = [
    "BENCHES",
    "BenchRecord",
    "Bencher",
    "MeasurementRecord",
    "gather",
    "interleave",
    "lookup",
    "put",
]

# By the word on the command line.
BENCHES: dict[str, Bencher] = {
    "lookup": lookup,
    "put": put,
    "gather": gather,
    "interleave": interleave,
}
