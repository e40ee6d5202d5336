"""Layers that a stack gives to another kernel than others of their type: some models', ungated, or shared ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.software.stack_rules import constant

SHAPE = ("hidden", "inter", "topk", "experts")
UNGATED = "ungated"
WHOLE, SHARED = "whole", "shared"  # whether a rank holds all experts or shares them with others


def model(case: Mapping[str, Any]) -> str:
    """Which model's experts they are, where a stack may care; empty for the usual layer."""
    if not case.get("gated", True):
        return UNGATED
    return str(constant("moe_model", layer=tuple(case[name] for name in SHAPE)))


def chosen_by(case: Mapping[str, Any]) -> str:
    """What a stack may choose a kernel by, besides GPU and type: `model,whole` or `model,shared`."""
    return f"{model(case)},{SHARED if case.get('ep', 1) > 1 else WHOLE}"
