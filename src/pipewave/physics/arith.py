"""The same formula for one call and for many: what plain floats lack of numpy's element-wise functions.

A formula that takes `xp` runs on arrays with `xp = ARRAY` and on floats with `xp = SCALAR`, some fifty times faster
for a single call than arrays of length one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Arith:
    """Element-wise functions; `minimum` and `maximum` take two values, `where` a condition and two.

    `any` says whether a condition may hold anywhere; `gcd` is that of a whole number in floats and a constant.
    """

    ceil: Function
    floor: Function
    sqrt: Function
    exp: Function
    log2: Function
    minimum: Function
    maximum: Function
    where: Function
    any: Function
    gcd: Function


def clipped(value: Any, low: Any, high: Any, xp: Arith) -> Any:
    """A value, or the end of the range that it is beyond."""
    return xp.minimum(xp.maximum(value, low), high)


ARRAY = Arith(
    np.ceil, np.floor, np.sqrt, np.exp, np.log2, np.minimum, np.maximum, np.where, np.any,
    lambda whole, other: np.gcd(whole.astype(int), int(other)),
)  # fmt: skip
SCALAR = Arith(
    math.ceil,
    math.floor,
    math.sqrt,
    math.exp,
    math.log2,
    lambda one, other: one if one < other else other,  # a third of the time of the built-in `min`
    lambda one, other: one if one > other else other,
    lambda condition, yes, no: yes if condition else no,
    bool,
    lambda whole, other: math.gcd(int(whole), int(other)),
)
