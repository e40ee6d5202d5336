"""How a block's work differs over the grid: which parts of its number it depends on, and their ranges.

A source takes a block's number apart (`row = pid % rows`, `head = pid // rows`). Work that depends on a part is read at
the part's first, middle and last value (Simpson: exact for straight lines and parabolas, as under a causal mask).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.tune.source.interpreter import SIXTH
from pipewave.tune.source.traced import SYMBOLS, Trace, Traced, greatest, least, made, next_power_of_2, operands, same

SHARES = (SIXTH, 4 * SIXTH, SIXTH)  # of the blocks, for the first, the middle and the last value
CALLS = {"min": least, "max": greatest, "power_of_2": next_power_of_2}


class GridDependence:
    """The parts of a block's number that a traced result depends on. `ids`: node of a program id → its extent."""

    def __init__(self, trace: Trace, ids: Mapping[int, Any]) -> None:
        self.trace, self.ids, self._placed = trace, ids, dict[int, bool]()

    def depends(self, node: int) -> bool:
        """Whether a node depends on the block's number."""
        if node not in self._placed:
            inner = operands(self.trace.nodes[node])
            self._placed[node] = node in self.ids or any(self.depends(each) for each in inner)
        return self._placed[node]

    def averaged(self, results: list[Any]) -> tuple[list[Any], list[Any]]:
        """Mean over the grid of each result, and the largest of the three values of each."""
        parts: dict[int, Any] = {}
        for result in results:
            for node, _ in result.terms if isinstance(result, Traced) else ():
                self._parts(node, parts)
        seen = []  # every part at its first, middle and last value
        for which in range(3):
            known = {node: (0, extent // 2, extent - 1)[which] for node, extent in parts.items()}
            seen.append([self._again(each.terms, each.const, known) if isinstance(each, Traced) else each
                         for each in results])  # fmt: skip
        mean = [values[0] if all(same(value, values[0]) for value in values)
                else sum(share * value for share, value in zip(SHARES, values, strict=True))
                for values in zip(*seen, strict=True)]  # fmt: skip
        return mean, [greatest(*values) for values in zip(*seen, strict=True)]

    def _parts(self, node: int, found: dict[int, Any]) -> None:
        """Nodes that are a part of the block's number, with the number of values that each can take."""
        if node in found or not self.depends(node):
            return
        extent = self._extent(node)
        if extent is not None:
            found[node] = extent
            return
        for inner in operands(self.trace.nodes[node]):
            self._parts(inner, found)

    def _extent(self, node: int) -> Any:
        """How many values a part of the block's number takes; None where the node is no such part."""
        if node in self.ids:
            return self.ids[node]
        kind, *sides = self.trace.nodes[node]
        if kind not in ("%", "//") or sides[0][0] != "node" or (sides[1][0] == "node" and self.depends(sides[1][1])):
            return None
        whole, by = self._extent(sides[0][1]), self._value(sides[1])
        return None if whole is None else by if kind == "%" else -(-whole // by)

    def _value(self, side: tuple[Any, ...]) -> Any:
        return side[1] if side[0] == "plain" else made(self.trace, {side[1]: 1}, 0, self.trace.values[side[1]])

    def _again(self, terms: Any, const: Any, known: dict[int, Any]) -> Any:
        total = const
        for node, by in terms:
            total = self._node(node, known) * by + total
        return total

    def _node(self, node: int, known: dict[int, Any]) -> Any:
        """A node worked out again, with some nodes known."""
        if node in known:
            return known[node]
        if not self.depends(node):
            return self._value(("node", node))
        kind, *of = self.trace.nodes[node]
        if kind == "sum":
            found = self._again(of[0], of[1], known)
        elif kind == "*":
            found = self._node(of[0], known) * self._node(of[1], known)
        else:
            sides = [side[1] if side[0] == "plain" else self._node(side[1], known) for side in of]
            found = (CALLS.get(kind) or SYMBOLS[kind])(*sides)
        known[node] = found
        return found
