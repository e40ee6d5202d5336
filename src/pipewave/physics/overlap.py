"""Work that overlaps: the p-norm of times lies between the longest (perfect overlap) and the sum (none).

Powers that the families use: 2 between a product's arithmetic and its memory, 4 between its tiles and its power, 3
where a kernel streams, 20 where clocks give way to the power limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipewave.physics.arith import ARRAY, Arith


def overlapped(power: int, *seconds: Any, xp: Arith = ARRAY) -> Any:
    """p-norm of times, for floats or arrays; by squares and roots where it can: `**` costs ten times more."""
    if power == 2:
        return xp.sqrt(_sum_of_squares(seconds))
    if power == 3:
        return _sum_of_cubes(seconds) ** (1.0 / 3.0)
    if power == 4:
        return xp.sqrt(xp.sqrt(_sum_of_squares([each * each for each in seconds])))
    longest, *rest = seconds
    for each in rest:
        longest, shorter = xp.maximum(longest, each), xp.minimum(longest, each)
        longest = longest * (1.0 + (shorter / xp.maximum(longest, 1e-30)) ** power) ** (1.0 / power)
    return longest


def _sum_of_squares(seconds: Sequence[Any]) -> Any:
    total = seconds[0] * seconds[0]
    for each in seconds[1:]:
        total = total + each * each
    return total


def _sum_of_cubes(seconds: Sequence[Any]) -> Any:
    total = seconds[0] * seconds[0] * seconds[0]
    for each in seconds[1:]:
        total = total + each * each * each
    return total
