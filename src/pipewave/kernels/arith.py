"""The same formula for one call and for many: what plain floats lack of numpy's element-wise functions.

A formula that takes `xp` runs on arrays with `xp = numpy` and on floats with `xp = SCALAR`, some fifty times faster
for a single call than arrays of length one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol


class Arith(Protocol):
    """The functions formulas may use; `minimum` and `maximum` take two values."""

    ceil: Callable[..., Any]
    floor: Callable[..., Any]
    sqrt: Callable[..., Any]
    log2: Callable[..., Any]
    minimum: Callable[..., Any]
    maximum: Callable[..., Any]
    where: Callable[..., Any]


class Scalar:
    """Arith for floats."""

    ceil = staticmethod(math.ceil)
    floor = staticmethod(math.floor)
    sqrt = staticmethod(math.sqrt)
    log2 = staticmethod(math.log2)

    @staticmethod
    def minimum(a: float, b: float) -> float:
        """The smaller."""
        return a if a < b else b

    @staticmethod
    def maximum(a: float, b: float) -> float:
        """The larger."""
        return a if a > b else b

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        """`yes` or `no`."""
        return yes if condition else no


SCALAR = Scalar()
