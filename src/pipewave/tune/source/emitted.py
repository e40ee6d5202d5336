"""Functions of traced numbers, as Python and as C text: computed once for a launch, compiled to work it out for any.

In C every number is a double: counts of launches are whole numbers far below 2⁵³, which doubles hold exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from pipewave.tune.source.traced import Terms, Trace, Traced, operands, power_of_2

CALLED, COMPARED = ("min", "max", "power_of_2"), ("<", "<=", "==", "!=")  # in Python: calls, and what is true or false
CALLED_IN_C = {"min": "least", "max": "greatest", "//": "quotient", "/": "over", "%": "rest", "**": "pow", "<<": "up",
               ">>": "down", "&": "both", "|": "either", "^": "one", "power_of_2": "power_of_2"}  # fmt: skip
SCALARS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "power_of_2": power_of_2}
ARRAYS: Mapping[str, Callable[..., Any]] = {
    "min": np.minimum,
    "max": np.maximum,
    "power_of_2": lambda numbers: 2 ** np.ceil(np.log2(np.maximum(numbers, 1))).astype(np.int64),
}
Known = Callable[[int, float], str]  # place of a known number in a text, the number → its text there


class Emitted:
    """Text of some traced numbers: what is used twice gets a name, all else is written in place."""

    def __init__(self, trace: Trace, wanted: Iterable[Any]) -> None:
        self.trace, self.lines, self.names, self.inputs = trace, list[str](), dict[int, str](), dict[str, None]()
        self._uses: dict[int, int] = {}
        for node in [node for value in wanted if isinstance(value, Traced) for node, _ in value.terms]:
            self._used(node)

    def _used(self, node: int) -> None:
        self._uses[node] = self._uses.get(node, 0) + 1
        if self._uses[node] == 1:
            for inner in operands(self.trace.nodes[node]):
                self._used(inner)

    def number(self, value: Any) -> str:
        """Text of a number."""
        return self._sum(value.terms, value.const) if isinstance(value, Traced) else self._literal(value)

    def checks(self) -> list[tuple[str, bool]]:
        """Text of each condition that a turn was taken by, and how it turned out."""
        return [(self.number(Traced(self.trace, ((node, 1),), 0, None)), turned) for node, turned in self.trace.guards]

    def _sum(self, terms: Terms, const: Any) -> str:
        parts = []
        for node, by in terms:
            text = self._text(node)
            parts.append(text if by == 1 else f"-{text}" if by == -1 else f"{self._literal(by)}*{text}")
        alone = parts[0] if len(terms) == 1 and terms[0][1] == 1 and not const else ""
        return alone or "(" + " + ".join([*parts, *([self._literal(const)] if const else [])]) + ")"

    def _text(self, node: int) -> str:
        if node in self.names:
            return self.names[node]
        kind, *of = self.trace.nodes[node]
        if kind == "input":
            self.inputs[of[0]] = None
            text = identifier(of[0])
        elif kind == "sum":
            text = self._sum(of[0], of[1])
        elif kind == "*":
            text = f"({self._text(of[0])}*{self._text(of[1])})"
        else:
            sides = [self._text(value) if side == "node" else self._literal(value) for side, value in of]
            text = self._operation(kind, sides)
        if self._uses.get(node, 0) < 2 or text.isidentifier():
            return text
        self.names[node] = f"t{node}"
        self.lines.append(f"t{node} = {text}")
        return self.names[node]

    def _operation(self, kind: str, sides: Sequence[str]) -> str:
        text = f"{kind}({', '.join(sides)})" if kind in CALLED else f"({sides[0]} {kind} {sides[-1]})"
        return f"(0 + {text})" if kind in COMPARED else text  # numpy neither negates nor adds up what is true

    def _literal(self, number: Any) -> str:
        """Text of a number that is known."""
        return f"({float(number) if isinstance(number, Fraction) else number!r})"


class Native(Emitted):
    """The same as C text. `known`: how to write known numbers; `values`: those met, by place."""

    def __init__(self, trace: Trace, wanted: Iterable[Any], known: Known | None = None) -> None:
        super().__init__(trace, wanted)
        self.values: list[float] = []
        self._known = known or (lambda _place, number: plain(number))

    def _operation(self, kind: str, sides: Sequence[str]) -> str:
        if kind in CALLED_IN_C:
            return f"{CALLED_IN_C[kind]}({', '.join(sides)})"
        return f"(double)({sides[0]} {kind} {sides[1]})"

    def _literal(self, number: Any) -> str:
        self.values.append(float(number))
        return self._known(len(self.values) - 1, self.values[-1])


def plain(number: float) -> str:
    """A known number in C."""
    return (
        f"({number!r})" if math.isfinite(number) else "NAN" if number != number else f"({'-' * (number < 0)}INFINITY)"
    )


def identifier(name: str) -> str:
    """A name in Python and C for an input such as `grid:M`."""
    return "v_" + "".join(c if c.isalnum() else "_" for c in name)


def with_guards(trace: Trace, outputs: Sequence[Any]) -> list[Any]:
    """What is written for outputs: the conditions that turns were taken by, too."""
    return [*(Traced(trace, ((node, 1),), 0, None) for node, _ in trace.guards), *outputs]


def compiled(trace: Trace, outputs: Sequence[Any]) -> tuple[tuple[str, ...], Callable[..., Any], Callable[..., Any]]:
    """Inputs used, and functions of them that return the outputs: of numbers (None where a guard fails), of arrays."""
    text = Emitted(trace, with_guards(trace, outputs))
    checks = [f"{'not ' if turned else ''}{guard}" for guard, turned in text.checks()]
    at_checks = len(text.lines)
    answer = f"return ({', '.join([text.number(value) for value in outputs])},)"
    leave = [f"if {' or '.join(checks)}: return None"] if checks else []
    names = [identifier(name) for name in text.inputs]
    scalar = function(names, [*text.lines[:at_checks], *leave, *text.lines[at_checks:], answer], SCALARS)
    return tuple(text.inputs), scalar, function(names, [*text.lines, answer], ARRAYS)


def function(arguments: Sequence[str], lines: Sequence[str], names: Mapping[str, Any]) -> Callable[..., Any]:
    """A function of the arguments. The text is made of numbers, operators and names given here, of nothing else."""
    body = "\n    ".join(lines)
    space: dict[str, Any] = {**names, "nan": math.nan, "inf": math.inf, "__builtins__": {}}
    exec(f"def formula({', '.join(arguments)}):\n    {body}", space)
    made: Callable[..., Any] = space["formula"]
    return made
