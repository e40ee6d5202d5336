"""C text of traced numbers, and its compilation by the compiler that Triton itself calls for its launchers.

Every number is a double: counts of launches are whole numbers far below 2⁵³, which doubles hold exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, cast

from pipewave.tune.source.emitted import Emitted, identifier
from pipewave.tune.source.traced import Trace, Traced

CALLED = {"min": "least", "max": "greatest", "//": "quotient", "/": "over", "%": "rest", "**": "pow", "<<": "up",
          ">>": "down", "&": "both", "|": "either", "^": "one", "power_of_2": "power_of_2"}  # fmt: skip
# `bits`: how many a whole number takes. What is divided by zero has no answer, as in Python: `bad` says so.
HEAD = """#include <Python.h>
#include <math.h>
#include <string.h>
static inline int bits(double x) {
  long long of; memcpy(&of, &x, 8); of = of >> 52 & 0x7ff; return of ? (int)of - 1022 : 0; }
static inline double floored(double x) { double whole = (double)(long long)x; return whole - (whole > x); }
static inline double least(double a, double b) { return b < a ? b : a; }
static inline double greatest(double a, double b) { return b > a ? b : a; }
static inline double over_(double a, double b, int *bad) { *bad |= b == 0; return a / b; }
#define over(a, b) over_(a, b, &bad)
#define quotient(a, b) floored(over_(a, b, &bad))
#define rest(a, b) rest_(a, b, &bad)
static inline double rest_(double a, double b, int *bad) { return a - b * floored(over_(a, b, bad)); }
static inline double up(double a, double b) { return ldexp(a, (int)b); }
static inline double down(double a, double b) { return floored(ldexp(a, -(int)b)); }
static inline double both(double a, double b) { return (double)((long long)a & (long long)b); }
static inline double either(double a, double b) { return (double)((long long)a | (long long)b); }
static inline double one(double a, double b) { return (double)((long long)a ^ (long long)b); }
static inline double power_of_2(double x) { return ldexp(1.0, bits(floored(greatest(x, 1.0)) - 1)); }
"""
Known = Callable[[int, float], str]  # place of a known number in a text, the number → its text there


class Native(Emitted):
    """C text of some traced numbers. `known`: how to write known numbers; `values`: those met, by place."""

    def __init__(self, trace: Trace, wanted: Iterable[Any], known: Known | None = None) -> None:
        super().__init__(trace, wanted)
        self.values: list[float] = []
        self._known = known

    def _operation(self, kind: str, sides: Sequence[str]) -> str:
        return f"{CALLED[kind]}({', '.join(sides)})" if kind in CALLED else f"(double)({sides[0]} {kind} {sides[1]})"

    def _literal(self, number: Any) -> str:
        self.values.append(float(number))
        return plain(self.values[-1]) if self._known is None else self._known(len(self.values) - 1, self.values[-1])


def plain(number: float) -> str:
    """A known number."""
    return f"({number!r})" if math.isfinite(number) else "NAN" if number != number else f"({number > 0 or -1}*INFINITY)"


def counted(trace: Trace, outputs: Sequence[Any], known: Known | None = None) -> tuple[list[str], list[float]]:
    """Lines of a C function over variables named as `identifier` names inputs: `w` gets the outputs; it leaves with 0
    where a launch takes other turns, with 1 else. And the known numbers in it.
    """
    guards = [(Traced(trace, ((node, 1),), 0, None), turned) for node, turned in trace.guards]
    text = Native(trace, [*(guard for guard, _ in guards), *outputs], known)
    checks = [f"{'!' if turned else ''}({text.number(guard)})" for guard, turned in guards]
    results = [f"w[{at}] = {text.number(value)};" for at, value in enumerate(outputs)]
    lines = ["int bad = 0;", *(f"const double {line};" for line in text.lines), *results,
             f"return !({' || '.join(['bad', *checks])});"]  # fmt: skip
    return lines, text.values


def unpacked(inputs: Sequence[str], of: str) -> list[str]:
    """Lines that give inputs their names, from an array."""
    return [f"const double {identifier(name)} = {of}[{at}];" for at, name in enumerate(inputs)]


@cache
def module(source: str) -> Any:
    """The Python module of a C source, None where nothing can be compiled. Triton keeps the binary in its cache."""
    try:
        return _compile()(source, "pipewave_decide")
    except Exception:  # noqa: BLE001  a compiler fails in many ways, none of which may stop a launch
        return None


def _compile() -> Callable[[str, str], Any]:
    try:
        from triton.runtime.build import compile_module_from_src as made
    except ImportError:  # Triton 3.3
        from triton.backends.nvidia.driver import compile_module_from_src as made
    return cast(Callable[[str, str], Any], made)
