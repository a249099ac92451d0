# SPDX-License-Identifier: Apache-2.0
"""A check of health: its code, and what is said about it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """severity: "note", "degraded", "critical" or "unknown". text: what it means, then what
    to do."""

    code: str
    severity: str
    title: str
    text: str
