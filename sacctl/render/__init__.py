# SPDX-License-Identifier: Apache-2.0
"""Records as tables, JSON and Prometheus text. rich is imported only here, and late."""
