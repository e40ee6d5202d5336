"""Python functions of traced numbers: what was computed once for a launch, compiled to work it out for any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from pipewave.tune.source.traced import Terms, Trace, Traced, operands, power_of_2

CALLED = ("min", "max", "power_of_2")


def _power_of_2_arrays(numbers: Any) -> Any:
    return 2 ** np.ceil(np.log2(np.maximum(numbers, 1))).astype(np.int64)


SCALARS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "power_of_2": power_of_2}
ARRAYS: Mapping[str, Callable[..., Any]] = {"min": np.minimum, "max": np.maximum, "power_of_2": _power_of_2_arrays}


class Emitted:
    """Python text of some traced numbers: what is used twice gets a name, all else is written in place."""

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

    def _sum(self, terms: Terms, const: Any) -> str:
        parts = [self._scaled(self._text(node), by) for node, by in terms]
        alone = parts[0] if len(terms) == 1 and terms[0][1] == 1 and not const else ""
        return alone or "(" + " + ".join([*parts, *([self._literal(const)] if const else [])]) + ")"

    def _text(self, node: int) -> str:
        if node in self.names:
            return self.names[node]
        text = self._written(self.trace.nodes[node])
        if self._uses.get(node, 0) < 2 or text.isidentifier():
            return text
        self.names[node] = f"t{node}"
        self.lines.append(f"t{node} = {text}")
        return self.names[node]

    def _written(self, what: tuple[Any, ...]) -> str:
        kind, *of = what
        if kind == "input":
            self.inputs[of[0]] = None
            return identifier(of[0])
        if kind == "sum":
            return self._sum(of[0], of[1])
        if kind == "*":
            return f"({self._text(of[0])}*{self._text(of[1])})"
        sides = [self._text(side[1]) if side[0] == "node" else self._literal(side[1]) for side in of]
        return self._operation(kind, sides)

    def _operation(self, kind: str, sides: Sequence[str]) -> str:
        return f"{kind}({', '.join(sides)})" if kind in CALLED else f"({sides[0]} {kind} {sides[1]})"

    def _scaled(self, text: str, by: Any) -> str:
        return text if by == 1 else f"-{text}" if by == -1 else f"{self._literal(by)}*{text}"

    def _literal(self, number: Any) -> str:
        """Text of a number that is known."""
        return literal(number)


def literal(number: Any) -> str:
    """A known number, as a computation has it."""
    return f"({float(number) if isinstance(number, Fraction) else number!r})"


def identifier(name: str) -> str:
    """A Python name for an input such as `grid:M`."""
    return "v_" + "".join(c if c.isalnum() else "_" for c in name)


def compiled(trace: Trace, outputs: Sequence[Any]) -> tuple[tuple[str, ...], Callable[..., Any], Callable[..., Any]]:
    """Inputs used, and two functions of them: one of numbers, None where a guard fails, and one of arrays. Both return
    the outputs as a tuple.
    """
    guards = [(Traced(trace, ((node, 1),), 0, None), turned) for node, turned in trace.guards]
    text = Emitted(trace, [*(guard for guard, _ in guards), *outputs])
    checks = [f"{'not ' if turned else ''}{text.number(guard)}" for guard, turned in guards]
    at_checks = len(text.lines)
    results = [text.number(value) for value in outputs]
    inputs = tuple(text.inputs)
    leave = [f"if {' or '.join(checks)}: return None"] if checks else []
    answer = f"return ({', '.join(results)},)"
    scalar = [*text.lines[:at_checks], *leave, *text.lines[at_checks:], answer]
    names = [identifier(name) for name in inputs]
    return inputs, function(names, scalar, SCALARS), function(names, [*text.lines, answer], ARRAYS)


def function(arguments: Sequence[str], lines: Sequence[str], names: Mapping[str, Any]) -> Callable[..., Any]:
    """A function of the arguments. The text is made of numbers, operators and names given here, of nothing else."""
    body = "\n    ".join(lines)
    space: dict[str, Any] = {**names, "nan": math.nan, "inf": math.inf, "__builtins__": {}}
    exec(f"def formula({', '.join(arguments)}):\n    {body}", space)
    made: Callable[..., Any] = space["formula"]
    return made
