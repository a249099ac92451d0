# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks on a GPU share: traces, timing in CUDA graphs, floors, filled pools."""
