"""Read a kernel's source for one block of a launch: integers are followed, tiles keep their extents, loops are counted.

Nothing is executed. A loop's body is read once for its first, middle and last turn and weighted to its number of turns,
so that bounds that depend on an outer counter (a causal mask) come out as they are on average.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pipewave.tune.source.expressions import Expressions, either, name_of
from pipewave.tune.source.language import Block, Unknown, is_known
from pipewave.tune.source.traced import Traced, greatest, same

DEEPEST = 24  # calls of one kernel function by another
SIXTH = Fraction(1, 6)
BOUNDS = "bounds of the loop"  # of what is not known
MOST_TURNS = 10_000  # of a while loop whose counter is followed


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Jump(Exception):
    """The block ends, or a loop does."""


class Reader(Expressions):
    """Statements and expressions of one function for one block."""

    def run(self, body: Sequence[ast.stmt]) -> Any:
        """Read a function's body; what it returns."""
        try:
            self.statements(body)
        except _Return as returned:
            return returned.value
        except _Jump:
            pass
        return None

    def statements(self, body: Sequence[ast.stmt]) -> None:
        """Read statements in order."""
        for statement in body:
            handler = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if handler is not None:
                handler(statement)

    def _expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _return(self, node: ast.Return) -> None:
        raise _Return(self.value(node.value) if node.value else None)

    def _continue(self, _: ast.Continue | ast.Break) -> None:
        raise _Jump

    _break = _continue

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self._bind(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        target = node.target
        old = self.value(ast.Name(target.id, ast.Load()) if isinstance(target, ast.Name) else target)
        self._bind(target, self._operated(node.op, old, self.value(node.value)))

    def _bind(self, target: ast.AST, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, tuple | list) else [Unknown("a tuple")] * len(target.elts)
            for inner, part in zip(target.elts, parts, strict=False):
                self._bind(inner, part)

    def _if(self, node: ast.If) -> None:
        condition = self.value(node.test)
        if is_known(condition) or condition is None:
            self.statements(node.body if condition else node.orelse)
            return
        self.block.tell("a branch on a value that is not known", node.lineno)
        before = dict(self.names)
        with suppress(_Jump, _Return):  # what leaves a branch that may be taken leaves only the branch
            self.statements(node.body)
        taken, self.names = self.names, before
        with suppress(_Jump, _Return):
            self.statements(node.orelse)
        self.names = {name: either(taken.get(name), value) for name, value in (taken | self.names).items()}

    def _for(self, node: ast.For) -> None:
        turns = self._turns(node.iter)
        if turns is None:
            self.block.tell(f"{BOUNDS}: {ast.unparse(node.iter)}", node.lineno)
            turns = Turns(0, 1, 1)
        before, count = self.block.counts.trips, turns.count
        self.block.looped(node.lineno, count)
        self.block.counts.spans[node.lineno] = turns.stop - turns.start
        for turn, share in turns.sampled():
            self._bind(node.target, turn)
            self._weighted(node.body, share)
        self._count_trips(count, before)

    def _weighted(self, body: Sequence[ast.stmt], times: float) -> None:
        outer, self.block.weight = self.block.weight, self.block.weight * times
        try:
            with suppress(_Jump):
                self.statements(body)
        finally:
            self.block.weight = outer

    def _while(self, node: ast.While) -> None:
        counter, turns, outer = self.value(node.test), 0, self.block.counts.trips
        if not is_known(counter):
            self.block.tell(f"condition of the loop: {ast.unparse(node.test)}", node.lineno)
            self._weighted(node.body, 1.0)
            return
        if isinstance(counter, Traced):
            self._steady(node)
            return
        while is_known(again := self.value(node.test)) and again and turns < MOST_TURNS:
            self._weighted(node.body, 1.0)
            turns += 1
        self.block.looped(node.lineno, turns)
        self._count_trips(turns, outer)

    def _count_trips(self, turns: Any, trips_before: Any) -> None:
        """Count the turns of a loop as trips where no loop within it has any."""
        if same(self.block.counts.trips, trips_before):
            self.block.counts.trips += self.block.weight * turns

    def _steady(self, node: ast.While) -> None:
        """A while loop over a counter that every turn moves by as much: read once, for all of its turns."""
        gap, outer = self._gap(node.test), self.block.counts.trips
        trial = Reader(Block(self.block.ids, self.block.grid, {}, lambda _: None, {}), dict(self.names))
        trial.statements([part for part in node.body if isinstance(part, ast.Assign | ast.AugAssign)])
        step = gap - trial._gap(node.test) if is_known(gap) else 0
        if not is_known(step) or same(step, 0):
            self.block.tell(f"condition of the loop: {ast.unparse(node.test)}", node.lineno)
            step = gap = 1
        turns = greatest(-(-gap // step), 0)
        self._weighted(node.body, turns)
        self.block.looped(node.lineno, turns)
        self._count_trips(turns, outer)

    def _gap(self, test: ast.expr) -> Any:
        """How far a loop's condition is from failing, None where it is no comparison of sizes."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        left, right = self.value(test.left), self.value(test.comparators[0])
        if not is_known(left) or not is_known(right):
            return None
        equal = int(isinstance(test.ops[0], ast.LtE | ast.GtE))
        if isinstance(test.ops[0], ast.Lt | ast.LtE):
            return right - left + equal
        return left - right + equal if isinstance(test.ops[0], ast.Gt | ast.GtE) else None

    def _turns(self, node: ast.AST) -> Turns | None:
        """The range of a loop, None where a bound is not known."""
        if not isinstance(node, ast.Call) or name_of(node.func).rpartition(".")[2] not in ("range", "static_range"):
            return None
        bounds = [self.value(argument) for argument in node.args]
        if not bounds or not all(is_known(bound) for bound in bounds) or (len(bounds) == 3 and not bounds[2]):
            return None
        whole = [bound if isinstance(bound, Traced) else int(bound) for bound in bounds]
        start, stop, step = (0, whole[0], 1) if len(whole) == 1 else (*whole, 1)[:3]
        return Turns(start, stop, step)

    def _called(self, function: tuple[ast.FunctionDef, Mapping[str, Any]], given: list[Any], named: Any) -> Any:
        """A kernel function called by this one."""
        block = self.block
        if block.depth >= DEEPEST:
            return Unknown("calls that go too deep")
        code, constants = function
        names = bound(code, given, named)
        outer = block.constants
        block.depth, block.constants = block.depth + 1, constants
        try:
            return Reader(block, names).run(code.body)
        finally:
            block.depth, block.constants = block.depth - 1, outer


def bound(code: ast.FunctionDef, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a function by name, defaults where none is given."""
    parameters = [parameter.arg for parameter in (*code.args.posonlyargs, *code.args.args)]
    defaults = dict(zip(reversed(parameters), (_literal(d) for d in reversed(code.args.defaults)), strict=False))
    return defaults | dict(zip(parameters, given, strict=False)) | dict(named)


def _literal(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return Unknown("a default")


@dataclass(frozen=True, slots=True)
class Turns:
    """The range of a loop; bounds may be traced."""

    start: Any
    stop: Any
    step: Any

    @property
    def count(self) -> Any:
        """Turns, none where it ends before it starts."""
        return greatest(-(-(self.stop - self.start) // self.step), 0)

    def sampled(self) -> Iterator[tuple[Any, Any]]:
        """Turns to read and how many each stands for: all of few, else the first, the middle and the last (Simpson)."""
        count = self.count
        if not isinstance(count, Traced) and count <= 3:
            yield from ((self.start + turn * self.step, 1.0) for turn in range(count))
            return
        for turn, share in ((0, SIXTH), (count // 2, 4 * SIXTH), (count - 1, SIXTH)):
            yield self.start + turn * self.step, count * share
