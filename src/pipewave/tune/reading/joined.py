"""Readings of one kernel under many configurations as few Python functions: what differs is passed, not written.

Made for decisions, which cost what they compute, and more where the processor meets code for the first time: every
configuration that counts alike shares one text, in which only the numbers that differ are parameters. Every step has a
name, what two steps compute alike is computed once, and what no parameter enters is computed once for all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipewave.tune.reading.emitted import SCALARS, Emitted, function, identifier, literal
from pipewave.tune.reading.traced import Trace, Traced

SIGNS = {"min": "<", "max": ">"}
NAMES = re.compile(r"[A-Za-z_]\w*")
Known = Callable[[int, Any], str]  # place of a known number in a text, the number → its text there


class Joined:
    """Lines of a function: `before` its loop over parameters, and `lines` within; `named`: what was computed so far."""

    def __init__(self, parameters: Sequence[str] = ()) -> None:
        self.before: list[str] = []
        self.lines: list[str] = []
        self.named: dict[str, str] = {}
        self._within = set(parameters)

    def name(self, text: str) -> str:
        """The name of what a text computes."""
        if text.isidentifier() or _is_literal(text):
            return text
        if text not in self.named:
            self.named[text] = f"n{len(self.named)}"
            self._to(text).append(f"{self.named[text]} = {text}")
            if self._is_within(text):
                self._within.add(self.named[text])
        return self.named[text]

    def guard(self, text: Part, turned: Mapping[tuple[int, Any], None], leave: str) -> None:
        """Leave where a launch takes other turns."""
        for (node, by), _ in turned.items():
            check = f"{'not ' if by else ''}{text.number(Traced(text.trace, ((node, 1),), 0, None))}"
            if check not in self.named:
                self.named[check] = ""
                self._to(check).append(f"if {check}: return {leave}")

    def _to(self, text: str) -> list[str]:
        return self.lines if self._is_within(text) else self.before

    def _is_within(self, text: str) -> bool:
        return not self._within.isdisjoint(NAMES.findall(text))

    def function(self, first: Sequence[str], inputs: Sequence[str], loop: str, answer: str) -> Callable[..., Any]:
        """The function of the names `first` and of the inputs, which runs the lines within for each of `loop`."""
        lines = [*self.before, loop, *(f"    {line}" for line in self.lines), answer]
        return function([*first, *map(identifier, inputs)], lines, {**SCALARS, "int": int})


class Part(Emitted):
    """Text of one reading's numbers within a joined function. `known`: how to write its known numbers."""

    def __init__(self, of: Joined, trace: Trace, known: Known | None = None) -> None:
        super().__init__(trace, ())
        self.of, self._known, self.values = of, known, list[Any]()

    def number(self, value: Any) -> str:
        """The name of a number, or the number itself."""
        return self.of.name(super().number(value))

    def _text(self, node: int) -> str:
        if node not in self.names:
            self.names[node] = self.of.name(self._written(self.trace.nodes[node]))
        return self.names[node]

    def _called(self, kind: str, sides: Sequence[str]) -> str:
        if kind not in SIGNS:
            return super()._called(kind, sides)
        one, other = (self.of.name(side) for side in sides)
        return f"({one} if {one} {SIGNS[kind]} {other} else {other})"

    def _literal(self, number: Any) -> str:
        self.values.append(float(number) if isinstance(number, float) else number)
        return literal(number) if self._known is None else self._known(len(self.values) - 1, number)


def _is_literal(text: str) -> bool:
    return text.strip("()-").replace(".", "", 1).isdigit()
