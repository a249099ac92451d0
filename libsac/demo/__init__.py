# SPDX-License-Identifier: Apache-2.0
"""Demonstrations: ``python -m libsac.demo`` and ``python -m libsac.demo.llm``."""
