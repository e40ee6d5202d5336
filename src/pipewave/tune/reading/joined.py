"""Several readings in one Python function of numbers: what any two of them compute alike is computed once.

Made for decisions, which cost what they compute: every step has a name, the smaller of two numbers is a comparison and
no call, and only what is asked for is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipewave.tune.reading.emitted import SCALARS, Emitted, function, identifier
from pipewave.tune.reading.traced import Trace, Traced

SIGNS = {"min": "<", "max": ">"}


class Joined:
    """The lines of a function, written by and by; `named`: what was computed so far, by its text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.named: dict[str, str] = {}

    def name(self, text: str) -> str:
        """The name of what a text computes."""
        if text.isidentifier() or _is_literal(text):
            return text
        if text not in self.named:
            self.named[text] = f"n{len(self.named)}"
            self.lines.append(f"{self.named[text]} = {text}")
        return self.named[text]

    def guard(self, trace: Trace, turned: Mapping[tuple[int, Any], None]) -> None:
        """Leave without an answer where a launch takes other turns."""
        text = Part(self, trace)
        checks = [f"{'not ' if by else ''}{text.number(Traced(trace, ((node, 1),), 0, None))}" for node, by in turned]
        for check in dict.fromkeys(checks):
            if check not in self.named:
                self.named[check] = ""
                self.lines.append(f"if {check}: return None")

    def function(self, inputs: Sequence[str], values: Mapping[str, Any], first: Sequence[str] = ()
                 ) -> Callable[..., Any]:  # fmt: skip
        """The function of these names `first` and of the inputs; `values`: what its lines name beside them."""
        return function([*first, *map(identifier, inputs)], self.lines, {**SCALARS, **values})


class Part(Emitted):
    """Text of one reading's numbers within a joined function."""

    def __init__(self, of: Joined, trace: Trace) -> None:
        super().__init__(trace, ())
        self.of = of

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


def _is_literal(text: str) -> bool:
    return text.strip("()-").replace(".", "", 1).isdigit()
