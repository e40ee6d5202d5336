"""How equal tasks fall onto places: in whole waves. Knows counts, nothing of bytes or FLOPs.

A place is an SM, or a slot of one where several blocks are resident. Blocks start in order, each where a place is free
(the hardware's scheduler); the tests hold both forms to a simulation of that.
"""

from __future__ import annotations

from typing import Any

from pipewave.physics.arith import ARRAY, Arith


def waves(per_place: Any, xp: Arith = ARRAY) -> Any:
    """Rounds that so many tasks for each place take, in floats or arrays; there is at least one task."""
    return xp.ceil(per_place)


def wave_efficiency(per_place: Any, xp: Arith = ARRAY) -> Any:
    """Share of places in use over all waves, in (0, 1]."""
    return per_place / xp.ceil(per_place)
