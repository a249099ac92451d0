# SPDX-License-Identifier: Apache-2.0
"""Pools: planned, made, extended and destroyed, each step with a way back.

Use the modules: ``record`` (what a pool is), ``spec`` (what is asked for), ``create``,
``extend``, ``destroy``.
"""
