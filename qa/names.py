"""Names of engines, GPUs, architectures and models in code: rules that should be data. `python -m qa.house --names`.

Found are comparisons with such a name, with a constant that holds some (`if impl in CUSTOM`), `startswith` and
`endswith` of one, `case` patterns, and dictionaries that lead from names to functions or classes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from pipewave.gpus import find
from pipewave.gpus import names as gpu_names
from pipewave.models.load import names as builtins
from pipewave.software.engine_rules import NAMES as ENGINES

Trees = Mapping[str, ast.Module]


def known_names() -> frozenset[str]:
    """Names of engines, GPUs, architectures and models that rules of data speak of."""
    gpus = [find(name) for name in gpu_names()]
    known = {*ENGINES, *builtins(), *(gpu.name for gpu in gpus), *(gpu.architecture for gpu in gpus)}
    return frozenset(name.lower() for name in known)


def comparisons(trees: Trees, known: frozenset[str]) -> list[str]:
    """Every place, as `module:line code`."""
    constants = named_constants(trees, known)
    return [
        f"{name}:{node.lineno} {ast.unparse(node).splitlines()[0][:120]}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.expr | ast.pattern) and _asks(node, known, constants)
    ]


def named_constants(trees: Trees, known: frozenset[str]) -> frozenset[str]:
    """Upper-case constants whose value is made of such names alone."""
    found = set()
    for tree in trees.values():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and value is not None and _holds(value, known):
                found |= {target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()}
    return frozenset(found)


def _holds(value: ast.expr, known: frozenset[str]) -> bool:
    if isinstance(value, ast.Call) and value.args:  # frozenset((...))
        return _holds(value.args[0], known)
    texts = list(_texts(value))
    return bool(texts) and all(text in known for text in texts)


def _asks(node: ast.expr | ast.pattern, known: frozenset[str], constants: frozenset[str]) -> bool:
    if isinstance(node, ast.Dict):
        return _dispatches(node, known)
    if isinstance(node, ast.MatchValue):
        return any(text in known for text in _texts(node.value))
    sides: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith"):
        sides = node.args
    return any(_constant(side) in constants or any(text in known for text in _texts(side)) for side in sides)


def _dispatches(node: ast.Dict, known: frozenset[str]) -> bool:
    """Whether a dictionary leads from such names to code: functions, classes, lambdas."""
    named = any(text in known for key in node.keys if key is not None for text in _texts(key))
    return named and any(isinstance(value, ast.Name | ast.Attribute | ast.Lambda) for value in node.values)


def _constant(side: ast.expr) -> str:
    return side.id if isinstance(side, ast.Name) else side.attr if isinstance(side, ast.Attribute) else ""


def _texts(side: ast.expr) -> Iterator[str]:
    for each in side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value.strip("-_").lower()
