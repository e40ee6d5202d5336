"""The same formula for one call, for many, and recorded: what plain floats lack of numpy's element-wise functions.

A formula that takes `xp` runs on arrays with `xp = ARRAY` and on floats with `xp = SCALAR`, some fifty times faster
for a single call than arrays of length one. Even so it spends most of its time on calls, tuples and dicts. With
`RECORDED` and symbols for its numbers, what is left are its operations as straight-line Python (`straight`), each once,
less those that no answer needs. They run in the same order on the same numbers, so answers are the same to the last
bit. A formula that looks at a number (`if`, `float()`, `min`) cannot be recorded: NotStraight.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Function = Callable[..., Any]
LOCALS = {name: getattr(math, name) for name in ("gcd", "ceil", "floor", "sqrt", "exp", "log2")}
NAME = re.compile(r"\b[xt]\d+\b")  # of arguments and of what is worked out
# Operators of two numbers, and those of conditions; and those that compare, which Python swaps by itself.
TWO_SIDED = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**", "mod": "%", "and": "and", "or": "or"}
COMPARED = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
DEEPEST = 60  # brackets of an expression; Python reads 200 within one another


@dataclass(frozen=True, slots=True)
class Arith:
    """Element-wise functions; `minimum` and `maximum` take two values, `where` a condition and two."""

    ceil: Function
    floor: Function
    sqrt: Function
    exp: Function
    log2: Function
    minimum: Function
    maximum: Function
    where: Function
    any: Function  # whether a condition may hold anywhere
    gcd: Function  # of a whole number in floats and a constant


def clipped(value: Any, low: Any, high: Any, xp: Arith) -> Any:
    """A value, or the end of the range that it is beyond."""
    return xp.minimum(xp.maximum(value, low), high)


ARRAY = Arith(
    np.ceil, np.floor, np.sqrt, np.exp, np.log2, np.minimum, np.maximum, np.where, np.any,
    lambda whole, other: np.gcd(whole.astype(int), int(other)),
)  # fmt: skip
SCALAR = Arith(  # conditional expressions take a third of the time of the built-in `min`
    math.ceil, math.floor, math.sqrt, math.exp, math.log2, lambda one, other: one if one < other else other,
    lambda one, other: one if one > other else other, lambda condition, yes, no: yes if condition else no, bool,
    lambda whole, other: math.gcd(int(whole), int(other)),
)  # fmt: skip


def log2(values: Any, xp: Arith = ARRAY) -> Any:
    """Base-2 logarithm, clipped away from zero."""
    return xp.log2(xp.maximum(values, 1e-12))


class NotStraight(TypeError):
    """A formula decides by the value of a number."""


class Symbol:
    """A number that is not known yet: arithmetic on it is written down."""

    __slots__ = ("lines", "name")

    def __init__(self, name: str, lines: dict[str, str]) -> None:
        self.name, self.lines = name, lines  # `lines`: expression → name, in the order they are worked out

    def noted(self, expression: str) -> Symbol:
        """The value of an expression; the same expression is worked out once."""
        return Symbol(self.lines.setdefault(expression, f"t{len(self.lines)}"), self.lines)

    def __bool__(self) -> bool:
        raise NotStraight("a formula that is recorded cannot look at its numbers")

    def __neg__(self) -> Symbol:
        return self.noted(f"-{self.name}")


def _operator(sign: str, swapped: bool = False) -> Callable[[Symbol, Any], Symbol]:
    def noted(self: Symbol, other: Any) -> Symbol:
        left, right = (_text(other), self.name) if swapped else (self.name, _text(other))
        return self.noted(f"{left} {sign} {right}")

    return noted


for _name, _sign in (TWO_SIDED | COMPARED).items():
    setattr(Symbol, f"__{_name}__", _operator(_sign))
for _name, _sign in TWO_SIDED.items():
    setattr(Symbol, f"__r{_name}__", _operator(_sign, swapped=True))


def _text(value: Any) -> str:
    """A value in an expression."""
    if isinstance(value, Symbol):
        return value.name
    if isinstance(value, bool | str):
        return repr(value)
    number = float(value)
    return f"({number!r})" if math.isfinite(number) else f"float({str(number)!r})"


def _noted(template: str, known: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes itself down where it is given a symbol."""

    def function(*values: Any) -> Any:
        symbol = next((value for value in values if isinstance(value, Symbol)), None)
        return known(*values) if symbol is None else symbol.noted(template.format(*map(_text, values)))

    return function


def _where(condition: Any, yes: Any, no: Any) -> Any:
    if not isinstance(condition, Symbol):
        return yes if condition else no
    return condition.noted(f"{_text(yes)} if {condition.name} else {_text(no)}")


RECORDED = Arith(
    **{name: _noted(f"{name}({{}})", LOCALS[name]) for name in ("ceil", "floor", "sqrt", "exp", "log2")},
    minimum=_noted("{0} if {0} < {1} else {1}", SCALAR.minimum),
    maximum=_noted("{0} if {0} > {1} else {1}", SCALAR.maximum),
    where=_where,
    any=lambda condition: isinstance(condition, Symbol) or bool(condition),
    gcd=_noted("gcd(int({}), int({}))", SCALAR.gcd),
)


def straight(formula: Callable[..., Any], numbers: int) -> Callable[..., Any]:
    """The function of so many floats that answers as `formula(*floats)` does when it reckons with `RECORDED`.

    The formula returns a number, or tuples of them, nested as may be. Raises NotStraight.
    """
    lines: dict[str, str] = {}
    names = [f"x{i}" for i in range(numbers)]
    body = _body(lines, _nested(formula(*(Symbol(name, lines) for name in names))))
    scope: dict[str, Any] = dict(LOCALS)
    exec(f"def line({', '.join(names)}):\n{body}", scope)  # our own arithmetic
    line: Callable[..., Any] = scope["line"]
    return line


def _nested(value: Any) -> str:
    return f"({''.join(_nested(each) + ', ' for each in value)})" if isinstance(value, tuple) else _text(value)


def _body(lines: dict[str, str], answer: str) -> str:
    """The lines that the answer rests on, in order, then itself. What is looked at once has no line of its own."""
    times, kept = Counter(NAME.findall(answer)), [("", answer)]
    for expression, name in reversed(lines.items()):
        if name in times:
            kept.append((name, expression))
            times.update(NAME.findall(expression))
    inside, body = dict[str, str](), ""
    for name, expression in reversed(kept):
        whole = NAME.sub(lambda found: inside.get(found[0], found[0]), expression)
        if times[name] == 1 and whole.count("(") < DEEPEST:
            inside[name] = f"({whole})"
        else:
            body += f"    {name} = {whole}\n" if name else f"    return {whole}\n"
    return body
