"""Read a kernel's source for one block of a launch: integers are followed, tiles keep their extents, loops are counted.

Nothing is executed. A loop's body is read once for its first, middle and last turn and weighted to its number of turns,
so that bounds that depend on an outer counter (a causal mask) come out as they are on average.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipewave.tune.reading import language
from pipewave.tune.reading.values import Address, Tensor, Tile, Unknown, combined, elements, is_number, shape_of

DEEPEST = 24  # calls of one kernel function by another
MOST_TURNS = 100_000  # of a while loop whose counter is followed
OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


@dataclass(slots=True)
class Counts:
    """What one block does. `loops`: turns of each loop by line; `trips`: turns of innermost loops, all together."""

    read: dict[str, float] = field(default_factory=dict)  # bytes by argument
    written: dict[str, float] = field(default_factory=dict)
    flops: float = 0.0
    trips: float = 0.0
    loops: dict[int, float] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)  # why → line


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Left(Exception):
    """The block ends, or a loop does."""


@dataclass(slots=True)
class Block:
    """Where a block stands: its program ids and the grid; `functions` gives the source of a kernel function by name."""

    ids: tuple[int, ...]
    grid: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    functions: Callable[[str], tuple[ast.FunctionDef, Mapping[str, Any]] | None]
    constants: Mapping[str, Any]
    counts: Counts = field(default_factory=Counts)
    weight: float = 1.0
    depth: int = 0


class Reader:
    """Statements and expressions of one function for one block."""

    def __init__(self, block: Block, names: dict[str, Any]) -> None:
        self.block, self.names = block, names
        self.has_loop = False

    def run(self, body: Sequence[ast.stmt]) -> Any:
        """Read a function's body; what it returns."""
        try:
            self.statements(body)
        except _Return as returned:
            return returned.value
        except _Left:
            return None
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

    def _continue(self, _: ast.Continue) -> None:
        raise _Left

    def _break(self, _: ast.Break) -> None:
        raise _Left

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self._bind(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        self._bind(node.target, self._operated(node.op, self.value(_loaded(node.target)), self.value(node.value)))

    def _bind(self, target: ast.AST, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, tuple | list) else [Unknown("a tuple")] * len(target.elts)
            for inner, part in zip(target.elts, parts, strict=False):
                self._bind(inner, part)

    def _if(self, node: ast.If) -> None:
        condition = self.value(node.test)
        if is_number(condition) or condition is None:
            self.statements(node.body if condition else node.orelse)
            return
        self._tell("a branch on a value that is not known", node.lineno)
        before = dict(self.names)
        self._guarded(node.body)
        taken, self.names = self.names, before
        self._guarded(node.orelse)
        self.names = {name: _either(taken.get(name), value) for name, value in (taken | self.names).items()}

    def _guarded(self, body: Sequence[ast.stmt]) -> None:
        """A branch that may be taken: what leaves it leaves only the branch."""
        try:
            self.statements(body)
        except (_Left, _Return):
            return

    def _for(self, node: ast.For) -> None:
        turns = self._turns(node.iter)
        if turns is None:
            self._tell(f"bounds of the loop: {ast.unparse(node.iter)}", node.lineno)
            turns = range(1)
        self._loop(node, turns)

    def _loop(self, node: ast.For, turns: range) -> None:
        counts, before = self.block.counts, self.block.counts.trips
        counts.loops[node.lineno] = counts.loops.get(node.lineno, 0.0) + self.block.weight * len(turns)
        for turn, share in _sampled(turns):
            self._bind(node.target, turn)
            self._weighted(node.body, share)
        if counts.trips == before:
            counts.trips += self.block.weight * len(turns)

    def _weighted(self, body: Sequence[ast.stmt], times: float) -> None:
        outer, self.block.weight = self.block.weight, self.block.weight * times
        try:
            self.statements(body)
        except _Left:
            pass
        finally:
            self.block.weight = outer

    def _while(self, node: ast.While) -> None:
        counter, turns, outer = self.value(node.test), 0, self.block.counts.trips
        if not is_number(counter):
            self._tell(f"condition of the loop: {ast.unparse(node.test)}", node.lineno)
            self._weighted(node.body, 1.0)
            return
        while is_number(again := self.value(node.test)) and again and turns < MOST_TURNS:
            self._weighted(node.body, 1.0)
            turns += 1
        counts = self.block.counts
        counts.loops[node.lineno] = counts.loops.get(node.lineno, 0.0) + self.block.weight * turns
        if counts.trips == outer:
            counts.trips += self.block.weight * turns

    def _turns(self, node: ast.AST) -> range | None:
        """The range of a loop, None where a bound is not known."""
        if not isinstance(node, ast.Call) or _name(node.func).rpartition(".")[2] not in ("range", "static_range"):
            return None
        bounds = [self.value(argument) for argument in node.args]
        if not bounds or not all(is_number(bound) for bound in bounds) or (len(bounds) == 3 and not bounds[2]):
            return None
        return range(*(int(bound) for bound in bounds))

    def value(self, node: ast.AST | None) -> Any:
        """What an expression stands for."""
        handler = getattr(self, f"_value_{type(node).__name__.lower()}", None)
        return handler(node) if handler else Unknown(f"{type(node).__name__} is not followed")

    def _value_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _value_name(self, node: ast.Name) -> Any:
        if node.id in self.names:
            return self.names[node.id]
        found = self.block.constants.get(node.id, Unknown(f"the name {node.id}"))
        return getattr(found, "value", found) if not isinstance(found, Unknown) else found

    def _value_tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.value(element) for element in node.elts)

    def _value_list(self, node: ast.List) -> Any:
        return [self.value(element) for element in node.elts]

    def _value_slice(self, _: ast.Slice) -> Any:
        return slice(None)

    def _value_attribute(self, node: ast.Attribute) -> Any:
        if node.attr == "T":
            return language.transposed(self.value(node.value))
        if node.attr == "shape":
            return shape_of(self.value(node.value)) or Unknown("a shape")
        return Unknown(f"the attribute {node.attr}")

    def _value_subscript(self, node: ast.Subscript) -> Any:
        return language.subscripted(self.value(node.value), self.value(node.slice))

    def _value_unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if not is_number(value):
            return combined(value)
        return {ast.USub: operator.neg, ast.Not: operator.not_, ast.Invert: operator.invert}.get(
            type(node.op), operator.pos
        )(value)  # type: ignore[operator]

    def _value_binop(self, node: ast.BinOp) -> Any:
        return self._operated(node.op, self.value(node.left), self.value(node.right))

    def _operated(self, op: ast.AST, left: Any, right: Any) -> Any:
        if is_number(left) and is_number(right) and type(op) in OPERATORS:
            try:
                return OPERATORS[type(op)](left, right)
            except (ArithmeticError, TypeError, ValueError):
                return Unknown("arithmetic that fails")
        if isinstance(left, tuple | list) and isinstance(right, tuple | list) and isinstance(op, ast.Add):
            return (*left, *right)
        return combined(left, right)

    def _value_compare(self, node: ast.Compare) -> Any:
        sides = [self.value(side) for side in (node.left, *node.comparators)]
        results = [self._compared(op, a, b) for op, a, b in zip(node.ops, sides, sides[1:], strict=False)]
        if all(is_number(result) for result in results):
            return all(results)
        return combined(*results)

    def _compared(self, op: ast.AST, a: Any, b: Any) -> Any:
        plain = isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and not any(
            isinstance(side, Tile | Address | Unknown) for side in (a, b)
        )
        if isinstance(op, ast.Is | ast.IsNot) and None in (a, b) and not isinstance(a, Unknown):
            return (a is b) == isinstance(op, ast.Is)
        return OPERATORS[type(op)](a, b) if plain and type(op) in OPERATORS else self._operated(op, a, b)

    def _value_boolop(self, node: ast.BoolOp) -> Any:
        values = [self.value(each) for each in node.values]
        deciding = isinstance(node.op, ast.Or)
        if any((is_number(value) or value is None) and bool(value) == deciding for value in values):
            return deciding
        known = [value for value in values if not is_number(value) and value is not None]
        return combined(*known) if known else not deciding

    def _value_ifexp(self, node: ast.IfExp) -> Any:
        condition = self.value(node.test)
        if is_number(condition) or condition is None:
            return self.value(node.body if condition else node.orelse)
        return _either(self.value(node.body), self.value(node.orelse))

    def _value_call(self, node: ast.Call) -> Any:
        name = _name(node.func)
        last = name.rpartition(".")[2]
        given = [self.value(argument) for argument in node.args if not isinstance(argument, ast.Starred)]
        named = {word.arg: self.value(word.value) for word in node.keywords if word.arg}
        if isinstance(node.func, ast.Attribute) and not _is_module(node.func.value, self.names):
            given = [self.value(node.func.value), *given]
        inner = self.block.functions(name)
        if inner is not None:
            return self._called(inner, given, named)
        return self._language(last, given, named, node.lineno)

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

    def _language(self, name: str, given: list[Any], named: dict[str, Any], line: int) -> Any:
        """A function of the language."""
        handler = getattr(self, f"_call_{name}", None)
        if handler is not None:
            return handler(given, named)
        first = given[0] if given else Unknown(name)
        if name in language.NUMBERS and not (name in language.REDUCTIONS and isinstance(first, Tile)):
            return language.number(name, [*given, *named.values()])
        if name in language.REDUCTIONS:
            return language.reduced(first, named.get("axis", given[1] if len(given) > 1 else None))
        if name in language.SAME or name in language.CARRIED:
            return first
        if any(isinstance(value, Tile | Address) for value in given):
            return combined(*given)
        return Unknown(f"the function {name} (line {line})")

    def _call_program_id(self, given: list[Any], named: dict[str, Any]) -> Any:
        axis = int(named.get("axis", given[-1] if given else 0))
        return self.block.ids[axis] if axis < len(self.block.ids) else 0

    def _call_num_programs(self, given: list[Any], named: dict[str, Any]) -> Any:
        axis = int(named.get("axis", given[-1] if given else 0))
        return self.block.grid[axis] if axis < len(self.block.grid) else 1

    def _call_constexpr(self, given: list[Any], _: dict[str, Any]) -> Any:
        return given[0]

    def _call_arange(self, given: list[Any], _: dict[str, Any]) -> Any:
        return language.arange(*given[-2:])

    def _call_zeros(self, given: list[Any], named: dict[str, Any]) -> Any:
        return language.full(named.get("shape", given[0] if given else None))

    _call_full = _call_zeros

    def _call_zeros_like(self, given: list[Any], _: dict[str, Any]) -> Any:
        return combined(given[0])

    def _call_where(self, given: list[Any], _: dict[str, Any]) -> Any:
        return language.where(*given[-3:])

    def _call_dot(self, given: list[Any], named: dict[str, Any]) -> Any:
        a, b = (named.get(name, given[i] if len(given) > i else None) for i, name in enumerate(("input", "other")))
        product, flops = language.dot(a, b)
        self.block.counts.flops += self.block.weight * flops
        return product

    def _call_dot_scaled(self, given: list[Any], _: dict[str, Any]) -> Any:
        return self._call_dot([given[0], given[3]], {}) if len(given) > 3 else Unknown("operands of a dot")

    def _call_trans(self, given: list[Any], _: dict[str, Any]) -> Any:
        rest = given[1:]
        return language.transposed(given[0], rest[0] if len(rest) == 1 else rest or None)

    _call_permute = _call_trans

    def _call_expand_dims(self, given: list[Any], named: dict[str, Any]) -> Any:
        return language.expanded(given[0], int(named.get("axis", given[-1])))

    def _call_reshape(self, given: list[Any], _: dict[str, Any]) -> Any:
        shape = given[1] if len(given) == 2 else tuple(given[1:])
        return language.reshaped(given[0], shape)

    _call_view = _call_broadcast_to = _call_reshape

    def _call_make_block_ptr(self, given: list[Any], named: dict[str, Any]) -> Any:
        return language.block(named.get("base", given[0] if given else None), named.get("block_shape", _at(given, 4)))

    def _call_make_tensor_descriptor(self, given: list[Any], named: dict[str, Any]) -> Any:
        return language.block(named.get("base", given[0] if given else None), named.get("block_shape", _at(given, 3)))

    def _call_advance(self, given: list[Any], _: dict[str, Any]) -> Any:
        return given[0]

    def _call_load(self, given: list[Any], _: dict[str, Any]) -> Any:
        address = given[0] if given else None
        if not isinstance(address, Address):
            self._tell("an address that is not followed", 0)
            return Unknown("a value loaded from an unknown address")
        self._moved(self.block.counts.read, address)
        return Tile(address.shape) if address.shape else Unknown(f"a value loaded from {address.base}")

    def _call_store(self, given: list[Any], _: dict[str, Any]) -> Any:
        if given and isinstance(given[0], Address):
            address = given[0]
            value = shape_of(given[-1]) if len(given) > 1 else None
            wide = address if address.shape or not value else Address(address.base, value)
            self._moved(self.block.counts.written, wide)

    def _call_atomic_add(self, given: list[Any], named: dict[str, Any]) -> Any:
        self._call_store(given[:2], named)
        return self._call_load(given[:1], named)

    def _moved(self, into: dict[str, float], address: Address) -> None:
        tensor = self.block.tensors.get(address.base)
        size = elements(address.shape) * (tensor.element_bytes if tensor else 2)
        into[address.base] = into.get(address.base, 0.0) + self.block.weight * size

    def _tell(self, why: str, line: int) -> None:
        self.block.counts.unknown.setdefault(why, line)


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


def _sampled(turns: range) -> Iterator[tuple[int, float]]:
    """Turns to read and how many each stands for: all of few, else the first, the middle and the last (Simpson)."""
    if len(turns) <= 3:
        yield from ((turn, 1.0) for turn in turns)
        return
    for at, share in ((0, 1 / 6), (len(turns) // 2, 4 / 6), (-1, 1 / 6)):
        yield turns[at], share * len(turns)


def _either(one: Any, other: Any) -> Any:
    if type(one) is type(other) and one == other:
        return one
    if isinstance(one, Tile | Address) and not isinstance(other, Tile | Address):
        return one
    if isinstance(other, Tile | Address):
        return other
    return Unknown("one of two values")


def _name(node: ast.AST) -> str:
    """Dotted name of a function that is called."""
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_module(node: ast.AST, names: Mapping[str, Any]) -> bool:
    """Whether an attribute is looked up on a module (`tl.load`) and not on a value (`x.to`)."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id not in names


def _loaded(node: ast.AST) -> ast.AST:
    return ast.Name(node.id, ast.Load()) if isinstance(node, ast.Name) else node


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if len(values) > index else None
