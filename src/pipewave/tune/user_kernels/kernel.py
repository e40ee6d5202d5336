"""A kernel of the user's own: its function, the configurations to choose from, and how its launches look."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipewave.tune.source.expressions import name_of
from pipewave.tune.source.formula import constants_of, is_size, unwrapped
from pipewave.tune.source.launch_work import kernel_function, source, tensor_of

BRANCHES = ast.If, ast.While, ast.IfExp
NUMBERS = int, float
Kind = tuple[tuple[str, str], ...]  # what of a launch is no size: flags, types, which arguments there are


@dataclass(frozen=True, slots=True)
class KernelDescription:
    """`fn`: what launches, a `triton.jit` function under any `triton.heuristics`; `configs`: keyword arguments of each
    configuration, the first being the default; `key`: arguments that upstream would tune anew for.
    """

    fn: Any
    name: str
    configs: tuple[Mapping[str, Any], ...]
    key: tuple[str, ...]
    arg_names: tuple[str, ...]
    constants: tuple[str, ...]
    heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]]
    source_sha256: str
    trips: Any = None
    unused: frozenset[str] = frozenset()  # constants that the source never names: a key's only, no part of a kind
    flags: frozenset[str] = frozenset()  # constants that may decide which way the source takes: the others are numbers

    @property
    def inner(self) -> Any:
        """The `triton.jit` function itself."""
        return unwrapped(self.fn)[0]

    def is_free(self, name: str, value: Any) -> bool:
        """Whether an argument is a constant that may be any number: no branch of the source asks for it."""
        return type(value) in NUMBERS and name in self.constants and name not in self.flags

    def kind(self, named: Mapping[str, Any]) -> Kind:
        """The kind of a launch, by its arguments by name: binaries and laws of one kind do not serve another."""
        found = []
        for name, value in named.items():
            if name in self.unused or is_size(name, value, self.flags) or self.is_free(name, value):
                continue
            if name in self.constants or isinstance(value, bool | str) or value is None:
                found.append((name, repr(value)))
            elif (tensor := tensor_of(value)) is not None:
                dtype = getattr(value, "dtype", "") or getattr(getattr(value, "base", None), "dtype", "")
                found.append((name, str(dtype or tensor.element_bytes)))
        return tuple(found)


def described(
    fn: Any, configs: Sequence[Mapping[str, Any]], key: Sequence[str], trips: Any = None
) -> KernelDescription:
    """Describe a kernel. BadInput where its source cannot be read."""
    inner, heuristics = unwrapped(fn)
    constants, (code, _) = constants_of(inner), source(inner)
    unused = frozenset(constants) - {name for part in code.body for name in _names(part)}
    return KernelDescription(fn, str(getattr(inner, "__name__", "kernel")), tuple(configs), tuple(key),
                             tuple(inner.arg_names), constants, heuristics, source_hash(inner), trips,
                             unused, unused | deciding(inner) & frozenset(constants))  # fmt: skip


@lru_cache(maxsize=512)
def deciding(kernel: Any) -> frozenset[str]:
    """Names of a kernel's source that a branch asks for, here or in a kernel function that they are handed to, and all
    that such a name is worked out from.
    """
    code, names = source(kernel)
    nodes = [node for part in code.body for node in ast.walk(part)]
    asked = {name for node in nodes if isinstance(node, BRANCHES) for name in _names(node.test)}
    for node in nodes:
        called = kernel_function(name_of(node.func), names) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and called is not None and called is not kernel:
            asks, parameters = deciding(called), [each.arg for each in source(called)[0].args.args]
            given = dict(zip(parameters, node.args, strict=False)) | {each.arg: each.value for each in node.keywords}
            asked |= {name for of, value in given.items() if of in asks for name in _names(value)}
    made = [(_names(target), _names(value)) for target, value in _worked_out(nodes)]
    while more := {name for into, of in made if into & asked for name in of} - asked:
        asked |= more
    return frozenset(asked)


def _worked_out(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What is assigned, and from what; a loop's variable from what it runs over."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.For):
            yield node.target, node.iter


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def source_hash(kernel: Any) -> str:
    """Hash of a kernel's code and of the kernel functions it calls; comments, layout and place in the file apart."""
    return hashlib.sha256("".join(sorted(_sources(kernel, set()))).encode()).hexdigest()


def _sources(kernel: Any, seen: set[str]) -> Iterator[str]:
    code, names = source(kernel)
    text = ast.unparse(code)
    if text in seen:
        return
    seen.add(text)
    yield text
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and (called := kernel_function(name_of(node.func), names)) is not None:
            yield from _sources(called, seen)


def config_hash(configs: Sequence[Mapping[str, Any]]) -> str:
    """Hash of configurations in order: what is stored refers to them by number."""
    return hashlib.sha256(repr([sorted(config.items(), key=str) for config in configs]).encode()).hexdigest()
