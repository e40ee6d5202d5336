"""Numbers that remember how they were computed, so that one reading of a kernel serves launches of every size.

A reading runs on the numbers of one launch. A `Traced` number carries its value there and, beside it, a sum of terms
over the launch's inputs. Where the reading takes a turn because of such a number (`if M > 64`), the turn is kept as a
guard: what was computed holds for launches that take the same turns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

Terms = tuple[tuple[int, Any], ...]  # (node, coefficient), by node
SYMBOLS = {"//": operator.floordiv, "/": operator.truediv, "%": operator.mod,
           "**": operator.pow, "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_, "|": operator.or_,
           "^": operator.xor, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne}  # fmt: skip
DIGITS = 12  # of a coefficient: a third and two thirds make one


def power_of_2(number: Any) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(int(number) - 1, 0).bit_length()


@dataclass(slots=True)
class Trace:
    """Everything that was computed: `nodes` refer to earlier ones by number; `guards`: node → how it turned out."""

    nodes: list[tuple[Any, ...]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    known: dict[tuple[Any, ...], int] = field(default_factory=dict)
    guards: dict[tuple[int, Any], None] = field(default_factory=dict)

    def symbol(self, name: str, value: Any) -> Traced:
        """An input of the launch."""
        return Traced(self, ((self.node(value, "input", name), 1),), 0, value)

    def node(self, value: Any, *what: Any) -> int:
        """Number of a node, whose value is known; the same for the same computation."""
        if what not in self.known:
            self.known[what] = len(self.nodes)
            self.nodes.append(what)
            self.values.append(value)
        return self.known[what]

    def operand(self, value: Any) -> tuple[Any, ...]:
        """A number as an operand: ("node", number) or ("plain", value)."""
        if not isinstance(value, Traced):
            return "plain", value
        if value.const == 0 and len(value.terms) == 1 and value.terms[0][1] == 1:
            return "node", value.terms[0][0]
        return "node", self.node(value.value, "sum", value.terms, value.const)


class Traced:
    """A number with its history: `value` at the launch being read; Σ coefficient · node + `const`."""

    __slots__ = ("const", "terms", "trace", "value")

    def __init__(self, trace: Trace, terms: Terms, const: Any, value: Any) -> None:
        self.trace, self.terms, self.const, self.value = trace, terms, const, value

    def _sum(self, other: Any, sign: int = 1) -> Any:
        found = dict(self.terms)
        for node, by in other.terms if isinstance(other, Traced) else ():
            found[node] = _rounded(found.get(node, 0) + sign * by)
        const = self.const + sign * (other.const if isinstance(other, Traced) else other)
        return made(self.trace, found, _rounded(const), self.value + sign * plain(other))

    def _times(self, other: Any) -> Any:
        if not _known(other):
            return NotImplemented
        if not isinstance(other, Traced):
            scaled = {node: _rounded(by * other) for node, by in self.terms}
            return made(self.trace, scaled, self.const * other, self.value * other)
        (one, by), (two, and_by) = _single(self), _single(other)
        value = self.value * other.value
        node = self.trace.node(self.trace.values[one] * self.trace.values[two], "*", *sorted((one, two)))
        return made(self.trace, {node: _rounded(by * and_by)}, 0, value)

    def _opaque(self, name: str, left: Any, right: Any) -> Any:
        if not _known(left) or not _known(right):
            return NotImplemented
        value = SYMBOLS[name](plain(left), plain(right))
        node = self.trace.node(value, name, self.trace.operand(left), self.trace.operand(right))
        return made(self.trace, {node: 1}, 0, value)

    __add__ = __radd__ = _sum
    __mul__ = __rmul__ = _times

    def __sub__(self, other: Any) -> Any:
        return self._sum(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    def __neg__(self) -> Any:
        return self._times(-1)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return -self - 1

    def __truediv__(self, other: Any) -> Any:
        by_number = not isinstance(other, Traced) and _known(other) and other
        return self._times(1 / other) if by_number else self._opaque("/", self, other)

    def __floordiv__(self, other: Any) -> Any:
        return self if not isinstance(other, Traced) and other == 1 else self._opaque("//", self, other)

    def __bool__(self) -> bool:
        turned = bool(self.value)
        self.trace.guards[self.trace.operand(self)[1], turned] = None
        return turned

    def _fixed(self) -> Any:
        """The value, which launches must then share."""
        equal = self.trace.node(True, "==", self.trace.operand(self), ("plain", self.value))
        self.trace.guards[equal, True] = None
        return self.value

    def __int__(self) -> int:
        return int(self._fixed())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self._fixed())

    def __hash__(self) -> int:
        return hash((self.terms, self.const))

    def __abs__(self) -> Any:
        return greatest(self, -self)


def _operators(symbol: str) -> tuple[Callable[[Traced, Any], Any], Callable[[Traced, Any], Any]]:
    """An operator with the traced number on its left, and on its right."""
    return lambda self, other: self._opaque(symbol, self, other), lambda self, other: self._opaque(symbol, other, self)


for _symbol, _left, _right in (
    ("//", "", "rfloordiv"), ("/", "", "rtruediv"), ("%", "mod", "rmod"), ("**", "pow", "rpow"),
    ("<<", "lshift", "rlshift"), (">>", "rshift", "rrshift"), ("&", "and", "rand"), ("|", "or", "ror"),
    ("^", "xor", "rxor"), ("<", "lt", "gt"), ("<=", "le", "ge"), ("==", "eq", ""), ("!=", "ne", ""),
):  # fmt: skip
    for _name, _method in zip((_left, _right), _operators(_symbol), strict=True):
        if _name:
            setattr(Traced, f"__{_name}__", _method)


def made(trace: Trace, terms: Mapping[int, Any], const: Any, value: Any) -> Any:
    """A traced number; a plain one where no input is left in it."""
    left = tuple(sorted((node, by) for node, by in terms.items() if by != 0))
    return Traced(trace, left, const, value) if left else const


def _known(value: Any) -> bool:
    return isinstance(value, int | float | Fraction | Traced)


def _rounded(by: Any) -> Any:
    if isinstance(by, int | Fraction):
        return by.numerator if by.denominator == 1 else by
    near = round(by, DIGITS) if abs(by) < 1e6 else by
    return int(near) if near == int(near) and abs(near) < 1e15 else near


def _single(value: Traced) -> tuple[int, Any]:
    """A number as one node and its coefficient."""
    if value.const == 0 and len(value.terms) == 1:
        return value.terms[0]
    return value.trace.operand(value)[1], 1


def plain(value: Any) -> Any:
    """The value alone."""
    return value.value if isinstance(value, Traced) else value


def same(one: Any, other: Any) -> bool:
    """Whether two values were computed alike; takes no turn."""
    if isinstance(one, Traced) and isinstance(other, Traced):
        return one.terms == other.terms and one.const == other.const
    return not isinstance(one, Traced) and not isinstance(other, Traced) and bool(one == other)


def _called(name: str, pick: Callable[..., Any], values: Sequence[Any]) -> Any:
    traced = next((value for value in values if isinstance(value, Traced)), None)
    if traced is None:
        return pick(*values)
    found = values[0]
    for value in values[1:]:
        if same(found, value):
            continue
        trace = traced.trace
        sides = sorted((trace.operand(found), trace.operand(value)), key=str)
        both = pick(plain(found), plain(value))
        found = made(trace, {trace.node(both, name, *sides): 1}, 0, both)
    return found


def cdiv(x: Any, y: Any) -> Any:
    """x / y, rounded up."""
    return -(-x // y)


def least(*values: Any) -> Any:
    """`min` of numbers."""
    return _called("min", min, values[0] if len(values) == 1 else values)


def greatest(*values: Any) -> Any:
    """`max` of numbers."""
    return _called("max", max, values[0] if len(values) == 1 else values)


def next_power_of_2(value: Any) -> Any:
    """`power_of_2` of a number."""
    if not isinstance(value, Traced):
        return power_of_2(value)
    rounded = power_of_2(value.value)
    return made(value.trace, {value.trace.node(rounded, "power_of_2", value.trace.operand(value)): 1}, 0, rounded)


def chosen(condition: Any, yes: Any, no: Any) -> Any:
    """One of two numbers, without taking a turn."""
    return condition * yes + (1 - condition) * no


def operands(what: tuple[Any, ...]) -> list[int]:
    """Nodes that a node was computed from."""
    kind, *of = what
    if kind == "input":
        return []
    if kind == "sum":
        return [node for node, _ in of[0]]
    return list(of) if kind == "*" else [side[1] for side in of if side[0] == "node"]
