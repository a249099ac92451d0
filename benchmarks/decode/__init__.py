# SPDX-License-Identifier: Apache-2.0
"""A decode loop of a DeepSeek-V3.2-shaped model part, its KV in HBM or in a pool."""
