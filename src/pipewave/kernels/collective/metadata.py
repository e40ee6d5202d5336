"""Collectives as a profile shows them: with the sizes that PyTorch records."""

from __future__ import annotations

from typing import Any

from pipewave.calls.families import CLASSES
from pipewave.kernels.profiler import Given, Launched, Shaped, Step

WIDTHS = {"BFloat16": 2, "Half": 2, "Float": 4, "Byte": 1}


def collective(launched: Launched, _step: Step | None, _given: Given) -> Shaped | None:
    """From the sizes that PyTorch records with it."""
    head, family = launched.head, str(launched.family)
    world, dtype = head.arg("Group size"), str(head.arg("dtype"))
    count = head.arg("Out msg nelems" if family == "all_gather" else "In msg nelems")
    if not isinstance(world, int) or not isinstance(count, int):
        return None
    sizes: dict[str, Any] = {"bytes": count * WIDTHS.get(dtype, 2), "world": world}
    return Shaped(launched.role, CLASSES[family](**sizes, impl=launched.impl))
