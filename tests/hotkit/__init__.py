# SPDX-License-Identifier: Apache-2.0
"""What the tests of the hot buffer's kernels share.

shape: sizes and macros; machine, gpu: memory and launches on a CPU and on a GPU; pages, slots,
lanes: what kernels read and write, and what it should be; world: requests stepped on a machine
and in the NumPy reference side by side; new_rows: rows appended to them; scenario: random
lives.
"""
