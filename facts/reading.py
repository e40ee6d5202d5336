"""Finds definitions in a release's source: classes' defaults, constants, functions, each with its file and line; and
puts those of several places or settings together.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from facts.evaluate import Evaluation, Namespace, Symbol, Unknown
from facts.sources import Release

MEMORIES_GIB = range(8, 321, 8)  # of GPUs; where a default changes between two, the exact GiB is looked for
CONSTANTS: Mapping[str, Any] = {"GiB_bytes": 1 << 30, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class Found:
    """A value with the line that it was read from; `questions` where the source did not settle it."""

    value: Any
    at: str  # file:line
    questions: tuple[str, ...] = ()  # file:line: code


Reader = Callable[[Release], Found]


class NotThere(LookupError):
    """A release defines no such thing."""


@cache
def tree(release: Release, path: str) -> ast.Module:
    """A file of a release, parsed."""
    return ast.parse(release.files[path])


def defined(release: Release, pattern: str, under: str = "") -> tuple[str, int]:
    """File and line of the first line that a pattern matches at its start; NotThere where none does."""
    found = _defined(release, pattern, under)
    if found is None:
        raise NotThere(f"{release.engine} {release.version}: {pattern!r} under {under or 'the package'}")
    return found


@cache
def _defined(release: Release, pattern: str, under: str) -> tuple[str, int] | None:
    """Files are searched for the words that the pattern begins with first: a release holds 60 MB of source."""
    matcher, begin = re.compile(rf"^ *{pattern}", re.MULTILINE), re.match(r"(?:[\w ]|\\[.()])*", pattern)
    words = begin[0].replace("\\", "") if begin else ""
    for path, text in release.files.items():
        if words in text and path.endswith(".py") and path.startswith(under):
            found = matcher.search(text)
            if found:
                return path, text[: found.end()].count("\n") + 1
    return None


def constant(release: Release, name: str, under: str = "") -> Found:
    """The value of `NAME = …` in a module, or of `NAME: type = …` in a module or class."""
    path, line = defined(release, rf"{name}(: [^=\n]+)? = ", under)
    for node in ast.walk(tree(release, path)):
        target = _target(node)
        if target == name and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value and node.lineno == line:
            return _found(path, line, _module(release, path), _default(node.value))
    raise NotThere(f"{release.engine} {release.version}: {name} in {path}")


def default(release: Release, owner: str, name: str) -> Found:
    """Default of a field of a class; of `Field(default=…)` its default."""
    path, _ = defined(release, rf"class {owner}\b")
    for node in ast.walk(tree(release, path)):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for field in node.body:
                if _target(field) == name and isinstance(field, (ast.Assign, ast.AnnAssign)) and field.value:
                    return _found(path, field.lineno, _module(release, path), _default(field.value))
    raise NotThere(f"{release.engine} {release.version}: {owner}.{name}")


def _fields(release: Release, owner: str, under: str = "") -> tuple[str, int, dict[str, ast.expr | None]]:
    path, line = defined(release, rf"class {owner}\b", under)
    for node in ast.walk(tree(release, path)):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            named = {_target(each): each.value for each in node.body if isinstance(each, ast.AnnAssign)}
            return path, line, {name: each for name, each in named.items() if name}
    raise NotThere(f"{release.engine} {release.version}: class {owner}")


def fields(release: Release, owner: str) -> Found:
    """Names of a class's fields with their defaults as written."""
    path, line, found = _fields(release, owner)
    return Found({name: ast.unparse(value) if value else "" for name, value in found.items()}, f"{path}:{line}")


def defaults(release: Release, owner: str, under: str) -> dict[str, Any]:
    """Defaults of a class's fields; None where there is none."""
    path, _, found = _fields(release, owner, under)
    names = _module(release, path)
    return {name: _found(path, 0, names, _default(value)).value if value else None for name, value in found.items()}


def code(release: Release, name: str, under: str = "") -> Found:
    """A function's statements without comments, docstring and layout, so that only a change of what it does shows."""
    path, line = defined(release, rf"def {name}\(", under)
    function = _function(release, path, name, line)
    body = [each for each in function.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    return Found("\n".join(map(ast.unparse, body)), f"{path}:{line}")


def evaluated(
    release: Release,
    name: str,
    names: Mapping[str, Any],
    calls: Mapping[str, Any],
    result: Callable[[Evaluation, Any], Any],
    under: str = "",
) -> Found:
    """What a function gives for the given names and calls. `result` takes it from the evaluation and its return."""
    path, line = defined(release, rf"def {name}\(", under)
    function = _function(release, path, name, line)
    evaluation = Evaluation({**_module(release, path), **names}, calls, _functions(release, path))
    value = result(evaluation, evaluation.run(function))
    asked = tuple(f"{path}:{each.line}: {each.code}" for each in dict.fromkeys(evaluation.questions))
    return Found(
        value, f"{path}:{line}", (*asked, f"{path}:{line}: {value.code}") if isinstance(value, Unknown) else asked
    )


def files(release: Release, pattern: str) -> Found:
    """Groups of a pattern in the names of a release's files."""
    matcher = re.compile(pattern)
    found = sorted({match.groups("") for match in map(matcher.search, release.files) if match})
    return Found([list(each) for each in found], f"names of {len(found)} files")


@cache
def _functions(release: Release, path: str) -> Mapping[str, ast.FunctionDef]:
    """Functions of a file, and those that it imports from elsewhere in the package."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.walk(tree(release, path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            origin = node.module.replace(".", "/") + ".py"
            names = {alias.name for alias in node.names}
            if origin in release.files and origin != path:
                body = tree(release, origin).body
                found |= {each.name: each for each in body if isinstance(each, ast.FunctionDef) and each.name in names}
    return found | {each.name: each for each in ast.walk(tree(release, path)) if isinstance(each, ast.FunctionDef)}


@cache
def _function(release: Release, path: str, name: str, line: int) -> ast.FunctionDef:
    for node in ast.walk(tree(release, path)):
        if isinstance(node, ast.FunctionDef) and node.name == name and abs(node.lineno - line) <= 1:
            return node
    raise NotThere(f"{release.engine} {release.version}: {name} in {path}")


def _found(path: str, line: int, names: Mapping[str, Any], node: ast.expr) -> Found:
    value = Evaluation(dict(names), {}).value(node)
    asked = (f"{path}:{value.line}: {value.code}",) if isinstance(value, Unknown) else ()
    return Found(value, f"{path}:{line}", asked)


@cache
def _module(release: Release, path: str) -> Mapping[str, Any]:
    """Constants of a module by name, of numbers and text only, and those of memory sizes."""
    names = dict(CONSTANTS)
    for node in tree(release, path).body:
        name = _target(node)
        if name and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            value = Evaluation(names, {}).value(node.value)
            if isinstance(value, (int, float, str, list, dict, tuple)):
                names[name] = value
    return names


def _target(node: ast.AST) -> str:
    targets: Sequence[ast.expr] = ()
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return targets[0].id if targets and isinstance(targets[0], ast.Name) else ""


def _default(node: ast.expr) -> ast.expr:
    """The default inside `Field(default=…)`, `A[type, Arg(…)] = …` and the like."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("Field", "field", "arg", "Arg"):
        for each in node.keywords:
            if each.arg == "default":
                return each.value
        if node.args:
            return node.args[0]
    return node


def forget() -> None:
    """Drop what was kept of the releases read so far."""
    for kept in (tree, _defined, _functions, _function, _module):
        kept.cache_clear()


def has(release: Release, pattern: str) -> bool:
    """Whether a pattern stands in the source."""
    try:
        defined(release, pattern)
    except NotThere:
        return False
    return True


# Facts of several places or settings as one.


def first(*readers: Reader) -> Reader:
    """The first of several places that a release defines: names move between versions."""

    def read(release: Release) -> Found:
        missing: list[str] = []
        for reader in readers:
            try:
                return reader(release)
            except NotThere as error:
                missing.append(str(error))
        raise NotThere("; ".join(missing))

    return read


def by_memory(read: Callable[[int], Found], **where: Any) -> Found:
    """Ranges of GPU memory with one value each: `{"gib_below": 70, "value": 2048}`, the last without an end."""
    asked = {gib: read(gib) for gib in MEMORIES_GIB}
    ranges: list[dict[str, Any]] = []
    for low, high in pairwise(MEMORIES_GIB):
        while high - low > 1 and asked[low].value != asked[high].value:
            middle = (low + high) // 2
            asked[middle] = read(middle)
            low, high = (middle, high) if asked[middle].value == asked[low].value else (low, middle)
        if asked[low].value != asked[high].value:
            ranges.append({**where, "gib_below": high, "value": asked[low].value})
    last = asked[MEMORIES_GIB[-1]]
    questions = dict.fromkeys(each for one in asked.values() for each in one.questions)
    return Found([*ranges, {**where, "value": last.value}], last.at, tuple(questions))


def joined(parts: Sequence[Found]) -> Found:
    """Ranges of several settings in one list."""
    questions = dict.fromkeys(each for part in parts for each in part.questions)
    return Found([each for part in parts for each in part.value], parts[0].at, tuple(questions))


def plain(value: Any) -> Any:
    """A value as YAML and JSON write it; what is unknown is its code."""
    match value:
        case Unknown(_, text):
            return f"? {text}"
        case Symbol():
            return str(value).rpartition(".")[2]
        case dict():
            return {str(plain(key)) if not isinstance(key, int) else key: plain(each) for key, each in value.items()}
        case list() | tuple() | set():
            return [plain(each) for each in value]
        case Namespace():
            return {name: plain(each) for name, each in value.values.items()}
    return value
