"""Expressions of a kernel's source for one block: numbers are worked out, tiles keep their extents."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from pipewave.tune.source.language import (
    Address,
    Block,
    LanguageCalls,
    Tile,
    Unknown,
    combined,
    is_known,
    shape_of,
    subscripted,
    transposed,
)
from pipewave.tune.source.traced import Traced, same

OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip

SIGNS: Mapping[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
}  # fmt: skip


class Expressions(LanguageCalls):
    """What an expression stands for, given what names stand for."""

    def __init__(self, block: Block, names: dict[str, Any]) -> None:
        self.block, self.names = block, names

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
            return transposed(self.value(node.value))
        if node.attr == "shape":
            return shape_of(self.value(node.value)) or Unknown("a shape")
        return Unknown(f"the attribute {node.attr}")

    def _value_subscript(self, node: ast.Subscript) -> Any:
        return subscripted(self.value(node.value), self.value(node.slice))

    def _value_unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        return SIGNS[type(node.op)](value) if is_known(value) else combined(value)

    def _value_binop(self, node: ast.BinOp) -> Any:
        return self._operated(node.op, self.value(node.left), self.value(node.right))

    def _operated(self, op: ast.AST, left: Any, right: Any) -> Any:
        if is_known(left) and is_known(right) and type(op) in OPERATORS:
            try:
                return OPERATORS[type(op)](left, right)
            except (ArithmeticError, TypeError, ValueError):  # by zero, a shift of a float or by less than none
                return Unknown("arithmetic that fails")
        if isinstance(left, tuple | list) and isinstance(right, tuple | list) and isinstance(op, ast.Add):
            return (*left, *right)
        return combined(left, right)

    def _value_compare(self, node: ast.Compare) -> Any:
        sides = [self.value(side) for side in (node.left, *node.comparators)]
        results = [self._compared(op, a, b) for op, a, b in zip(node.ops, sides, sides[1:], strict=False)]
        if len(results) == 1 and isinstance(results[0], Traced):
            return results[0]
        return all(results) if all(map(is_known, results)) else combined(*results)

    def _compared(self, op: ast.AST, a: Any, b: Any) -> Any:
        if isinstance(op, ast.Is | ast.IsNot) and None in (a, b) and not isinstance(a, Unknown):
            return (a is b) == isinstance(op, ast.Is)
        opaque = any(isinstance(side, Tile | Address | Unknown) for side in (a, b))
        if isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and not opaque:
            return OPERATORS[type(op)](a, b)
        return self._operated(op, a, b)

    def _value_boolop(self, node: ast.BoolOp) -> Any:
        values = [self.value(each) for each in node.values]
        deciding = isinstance(node.op, ast.Or)
        if any((is_known(value) or value is None) and bool(value) == deciding for value in values):
            return deciding
        known = [value for value in values if not is_known(value) and value is not None]
        return combined(*known) if known else not deciding

    def _value_ifexp(self, node: ast.IfExp) -> Any:
        condition = self.value(node.test)
        if is_known(condition) or condition is None:
            return self.value(node.body if condition else node.orelse)
        return either(self.value(node.body), self.value(node.orelse))

    def _value_call(self, node: ast.Call) -> Any:
        name = name_of(node.func)
        last = name.rpartition(".")[2]
        given = [self.value(argument) for argument in node.args if not isinstance(argument, ast.Starred)]
        named = {word.arg: self.value(word.value) for word in node.keywords if word.arg}
        if isinstance(node.func, ast.Attribute) and name.partition(".")[0] in ("", *self.names):  # no module's
            given = [self.value(node.func.value), *given]
        inner = self.block.functions(name)
        if inner is not None:
            return self._called(inner, given, named)
        return self._language(last, given, named, node.lineno)

    def _called(self, function: tuple[ast.FunctionDef, Mapping[str, Any]], given: list[Any], named: Any) -> Any:
        """A kernel function called by this one; statements know how."""
        raise NotImplementedError


def either(one: Any, other: Any) -> Any:
    """The first where both say the same, else a choice of the two."""
    if type(one) is type(other) and same(one, other):
        return one
    if isinstance(one, Tile | Address) and not isinstance(other, Tile | Address):
        return one
    return other if isinstance(other, Tile | Address) else Unknown("one of two values")


def name_of(node: ast.AST) -> str:
    """Dotted name of a function that is called."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
