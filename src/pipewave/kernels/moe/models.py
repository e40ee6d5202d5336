"""Layers that a stack gives to another kernel than others of their type: some models', ungated, or shared ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHAPE = ("hidden", "inter", "topk", "experts")
# Routed experts for which some measured stack departs from what it runs otherwise; the card of the net says to what.
APART = frozenset(
    {
        (2816, 704, 8, 128),
        (3584, 3072, 16, 896),
        (4096, 2048, 6, 256),
        (4096, 2048, 8, 256),
        (4096, 14336, 2, 8),
        (5120, 8192, 1, 16),
        (6144, 3072, 4, 128),
        (6144, 16384, 2, 8),
        (7168, 3072, 6, 384),
    }
)
UNGATED = "ungated"
WHOLE, SHARED = "whole", "shared"  # whether a rank holds all experts or shares them with others


def model(case: Mapping[str, Any]) -> str:
    """Which model's experts they are, where a stack may care; empty for the usual layer."""
    if not case.get("gated", True):
        return UNGATED
    shape = tuple(case[name] for name in SHAPE)
    return ",".join(map(str, shape)) if shape in APART else ""


def chosen_by(case: Mapping[str, Any]) -> str:
    """What a stack may choose a kernel by, besides GPU and type: `model,whole` or `model,shared`."""
    return f"{model(case)},{SHARED if case.get('ep', 1) > 1 else WHOLE}"
