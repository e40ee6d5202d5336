"""Evaluates small functions of an engine from their syntax tree, without importing or running the engine.

Known arguments give known values. What depends on anything else becomes `Unknown`: it spreads through expressions. Of
a branch whose test is unknown neither side is taken, so that what it would have set is unknown, too. A reader gets a
value that the source surely gives, or the line on which that could not be settled.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Not: operator.not_,
    ast.USub: operator.neg, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip
BUILTINS: Mapping[str, Any] = {
    each.__name__: each
    for each in (min, max, range, list, len, sorted, set, int, float, dict, sum, round, abs, tuple, str, bool)
} | {"math.ceil": math.ceil, "math.floor": math.floor}
TRANSPARENT = (
    "copy.deepcopy",
    "copy.copy",
    "deepcopy",
    "cast",
    "EnvFloat",
    "EnvInt",
    "EnvBool",
)  # calls that return their last argument
MOST_TURNS = 4096  # of a loop


class Symbol(str):
    """A dotted name that the source names and nobody defines here, such as a member of an enumeration."""


@dataclass(frozen=True)
class Unknown:
    """A value that the source does not settle: the code that asks for more."""

    line: int
    code: str


@dataclass
class Namespace:
    """An object with known attributes; others are `otherwise`, or unknown where it is None."""

    values: dict[str, Any]
    known_none: bool = False  # attributes that nobody set are None, as options before their defaults


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Stop(Exception):
    """`break`, `continue` or `raise`."""


@dataclass
class Evaluation:
    """One run of one function: names, functions that it may call, and what could not be settled."""

    names: dict[str, Any]
    calls: Mapping[str, Any]  # value or function by the dotted name of a call
    functions: Mapping[str, ast.FunctionDef] = field(default_factory=dict)
    questions: list[Unknown] = field(default_factory=list)

    def run(self, function: ast.FunctionDef) -> Any:
        """The function's value; its names stay in `names`."""
        try:
            self.block(function.body)
        except _Return as found:
            return found.value
        except _Stop:
            return Unknown(function.lineno, f"{function.name} raises")
        return None

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Statements in order."""
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:  # noqa: C901 - a case for each kind
        """One statement; kinds that set nothing are skipped."""
        match node:
            case ast.Return(value):
                raise _Return(self.value(value) if value else None)
            case ast.Raise() | ast.Break() | ast.Continue():
                raise _Stop
            case ast.Assign(targets, value):
                for target in targets:
                    self.assign(target, self.value(value))
            case ast.AnnAssign(target, _, value) if value is not None:
                self.assign(target, self.value(value))
            case ast.AugAssign(target, op, value):
                self.assign(target, self._apply(node, type(op), [self.value(target), self.value(value)]))
            case ast.If(test, body, other):
                self._branch(node, self.value(test), body, other)
            case ast.Expr(value):
                self.value(value)
            case ast.Try(body):
                self.block(body)
            case ast.With(_, body):
                self.block(body)
            case ast.For(target, over, body):
                self._loop(target, self.value(over), body)
            case ast.FunctionDef():
                self.functions = {**self.functions, node.name: node}

    def _branch(self, node: ast.If, test: Any, body: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> None:
        if not isinstance(test, Unknown):
            self.block(body if test else other)
            return
        changes = list(_assigned([*body, *other]))
        if changes or any(isinstance(each, ast.Return) for part in body for each in ast.walk(part)):
            self.questions.append(test)
        for target in changes:
            self.assign(target, test)

    def _loop(self, target: ast.expr, values: Any, body: Sequence[ast.stmt]) -> None:
        if isinstance(values, Unknown):
            for each in _assigned(body):
                self.assign(each, values)
            return
        for one in list(values)[:MOST_TURNS]:
            self.assign(target, one)
            try:
                self.block(body)
            except _Stop:
                break

    def assign(self, target: ast.expr, value: Any) -> None:
        """Binds a name, the parts of a tuple, an attribute or an item."""
        match target:
            case ast.Name(name):
                self.names[name] = value
            case ast.Tuple(parts) | ast.List(parts):
                values = list(value) if isinstance(value, (tuple, list)) else [value] * len(parts)
                for each, one in zip(parts, values, strict=False):
                    self.assign(each, one)
            case ast.Attribute(owner, name):
                found = self.value(owner)
                if isinstance(found, Namespace):
                    found.values[name] = value
            case ast.Subscript(owner, index):
                found, place = self.value(owner), self.value(index)
                if isinstance(found, (dict, list)) and not isinstance(place, Unknown):
                    found[place] = value

    def value(self, node: ast.expr) -> Any:  # noqa: C901 - a case for each kind of expression
        """The value of an expression, or Unknown."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self._name(node, name)
            case ast.Attribute(owner, name):
                return self._attribute(node, self.value(owner), name)
            case ast.BoolOp(op, values):
                return self._either(node, isinstance(op, ast.Or), values)
            case ast.UnaryOp(op, value):
                return self._apply(node, type(op), [self.value(value)])
            case ast.BinOp(left, op, right):
                return self._apply(node, type(op), [self.value(left), self.value(right)])
            case ast.Compare(left, ops, rest):
                return self._compare(node, [left, *rest], ops)
            case ast.IfExp(test, body, other):
                found = self.value(test)
                return found if isinstance(found, Unknown) else self.value(body if found else other)
            case ast.List(parts) | ast.Set(parts):
                return self._items(parts)
            case ast.Tuple(parts):
                return tuple(self._items(parts))
            case ast.Dict(keys, values):
                pairs = zip(keys, values, strict=True)
                return {self._key(key): self.value(value) for key, value in pairs if key is not None}
            case ast.ListComp(part, [generator]) | ast.GeneratorExp(part, [generator]) | ast.SetComp(part, [generator]):
                return self._comprehended(node, part, generator)
            case ast.Subscript(owner, index):
                return self._item(node, self.value(owner), index)
            case ast.Call():
                return self._call(node)
            case ast.JoinedStr():
                return Symbol(ast.unparse(node))
            case ast.NamedExpr(target, value):
                self.assign(target, found := self.value(value))
                return found
        return self._unknown(node)

    def _unknown(self, node: ast.expr) -> Unknown:
        return Unknown(node.lineno, ast.unparse(node))

    def _key(self, node: ast.expr) -> Any:
        found = self.value(node)
        return Symbol(found.code) if isinstance(found, Unknown) else found

    def _items(self, parts: Sequence[ast.expr]) -> list[Any]:
        items: list[Any] = []
        for part in parts:
            found = self.value(part.value if isinstance(part, ast.Starred) else part)
            many = isinstance(part, ast.Starred) and isinstance(found, (list, tuple, range, set))
            items.extend(found if many else [found])
        return items

    def _name(self, node: ast.Name, name: str) -> Any:
        if name in self.names:
            return self.names[name]
        if name in BUILTINS:
            return BUILTINS[name]
        return Symbol(name) if name[:1].isupper() or name in ("torch", "current_platform") else self._unknown(node)

    def _attribute(self, node: ast.Attribute, owner: Any, name: str) -> Any:
        if isinstance(owner, Namespace):
            missing = None if owner.known_none else self._unknown(node)
            return owner.values.get(name, missing)
        if isinstance(owner, Symbol):
            return Symbol(f"{owner}.{name}")
        return self._unknown(node) if isinstance(owner, Unknown) else getattr(owner, name, self._unknown(node))

    def _either(self, node: ast.expr, is_or: bool, values: Sequence[ast.expr]) -> Any:
        """`and`, `or`: decided by any part that is known to decide."""
        found = [self.value(each) for each in values]
        for one in found:
            if not isinstance(one, Unknown) and bool(one) == is_or:
                return one
        return next((one for one in found if isinstance(one, Unknown)), found[-1])

    def _compare(self, node: ast.expr, parts: Sequence[ast.expr], ops: Sequence[ast.cmpop]) -> Any:
        values = [self.value(part) for part in parts]
        pairs = zip(values, ops, values[1:], strict=False)
        results = [self._apply(node, type(op), [left, right]) for left, op, right in pairs]
        return next((one for one in results if isinstance(one, Unknown)), all(results))

    def _apply(self, node: ast.AST, kind: type[ast.AST], values: Sequence[Any]) -> Any:
        where = Unknown(getattr(node, "lineno", 0), ast.unparse(node))
        if any(isinstance(each, Unknown) for each in values) or kind not in OPERATORS:
            return where
        enums = [each for each in values if isinstance(each, Symbol)]
        if enums and not all(isinstance(each, (str, list, tuple, set, dict, type(None))) for each in values):
            return where
        try:
            return OPERATORS[kind](*values)
        except (TypeError, ValueError, ZeroDivisionError):
            return where

    def _comprehended(self, node: ast.expr, part: ast.expr, generator: ast.comprehension) -> Any:
        over = self.value(generator.iter)
        if isinstance(over, (Unknown, Symbol, Namespace)):
            return self._unknown(node)
        items: list[Any] = []
        for one in list(over)[:MOST_TURNS]:
            self.assign(generator.target, one)
            tests = [self.value(each) for each in generator.ifs]
            if any(isinstance(each, Unknown) for each in tests):
                return self._unknown(node)
            if all(tests):
                items.append(self.value(part))
        return items

    def _item(self, node: ast.expr, owner: Any, index: ast.expr) -> Any:
        place = self.value(index) if not isinstance(index, ast.Slice) else Unknown(node.lineno, "slice")
        try:
            return self._unknown(node) if isinstance(place, Unknown) else owner[place]
        except (TypeError, KeyError, IndexError):
            return self._unknown(node)

    def _call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        values = self._items(node.args)
        options = {each.arg: self.value(each.value) for each in node.keywords if each.arg}
        if name in self.calls:
            found = self.calls[name]
            return found(*values, **options) if callable(found) else found
        if name in TRANSPARENT:
            return values[-1]
        short = name.removeprefix("self.").removeprefix("cls.")
        if short in self.functions:
            return self._own(self.functions[short], values, options)
        function = BUILTINS.get(name) or self._method(node)
        if function is None or any(isinstance(each, Unknown) for each in [*values, *options.values()]):
            return self._unknown(node)
        try:
            return function(*values, **options)
        except (TypeError, ValueError):
            return self._unknown(node)

    def _method(self, node: ast.Call) -> Any:
        """Methods of lists, dictionaries and text."""
        if not isinstance(node.func, ast.Attribute):
            return None
        owner = self.value(node.func.value)
        plain = isinstance(owner, (list, dict, set, str, tuple)) and not isinstance(owner, Symbol)
        return getattr(owner, node.func.attr, None) if plain else None

    def _own(self, function: ast.FunctionDef, values: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """A function of the same file, with its arguments and defaults."""
        arguments = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
        defaults = function.args.defaults
        given = dict(zip(arguments[len(arguments) - len(defaults) :], map(self.value, defaults), strict=False))
        given |= {**dict(zip(arguments, values, strict=False)), **options}
        kept = {name: self.names[name] for name in ("self", "cls") if name in self.names}
        inner = Evaluation(self.constants() | kept | given, self.calls, self.functions, self.questions)
        return inner.run(function)

    def constants(self) -> dict[str, Any]:
        """Names in capitals: constants of the module, which its functions share."""
        return {name: value for name, value in self.names.items() if name.isupper() or name.endswith("_bytes")}


def _assigned(body: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    for part in body:
        for node in ast.walk(part):
            if isinstance(node, ast.Assign):
                yield from node.targets
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
                yield node.target
