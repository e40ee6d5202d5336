"""A kernel of the user's own: its function, the configurations to choose from, and how its launches look."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipewave.tune.source.formula import constants_of, is_size
from pipewave.tune.source.launch import called_of, source, tensor_of

Kind = tuple[tuple[str, str], ...]  # what of a launch is no size: flags, types, which arguments there are


@dataclass(frozen=True, slots=True)
class KernelDescription:
    """`fn`: what launches, a `triton.jit` function under any `triton.heuristics`; `configs`: keyword arguments of each
    configuration, the first being the default; `key`: arguments that upstream would tune anew for.
    """  # fmt: skip

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
    held: list[Any] = field(default_factory=list)

    @property
    def inner(self) -> Any:
        """The `triton.jit` function itself."""
        return jit(self.fn)

    def kind(self, named: Mapping[str, Any]) -> Kind:
        """The kind of a launch, by its arguments by name: binaries and laws of one kind do not serve another."""
        return tuple(
            (name, text)
            for name, value in named.items()
            if name not in self.unused and (text := _kind(name, value, self.constants))
        )


def _kind(name: str, value: Any, constants: Sequence[str]) -> str:
    if is_size(name, value, constants):
        return ""
    if name in constants or isinstance(value, bool | str) or value is None:
        return repr(value)
    tensor = tensor_of(value)
    if tensor is None:
        return ""
    return str(
        getattr(value, "dtype", "") or getattr(getattr(value, "base", None), "dtype", "") or tensor.element_bytes
    )


def described(
    fn: Any, configs: Sequence[Mapping[str, Any]], key: Sequence[str], trips: Any = None
) -> KernelDescription:
    """Describe a kernel. BadInput where its source cannot be read."""
    heuristics: dict[str, Any] = {}
    inner, outer = jit(fn), fn
    while outer is not inner:
        heuristics |= outer.values
        outer = outer.fn
    constants = constants_of(inner)
    return KernelDescription(fn, str(getattr(inner, "__name__", "kernel")), tuple(configs), tuple(key),
                     tuple(inner.arg_names), constants, heuristics, source_hash(inner), trips,
                             frozenset(constants) - _named(inner))  # fmt: skip


def _named(kernel: Any) -> set[str]:
    """Names in a kernel's body."""
    code, _ = source(kernel)
    return {node.id for part in code.body for node in ast.walk(part) if isinstance(node, ast.Name)}


def jit(fn: Any) -> Any:
    """The `triton.jit` function under all heuristics."""
    while hasattr(fn, "values") and hasattr(fn, "fn"):
        fn = fn.fn
    return fn


def source_hash(kernel: Any) -> str:
    """Hash of a kernel's code and of the kernel functions it calls; comments, layout and place in the file apart."""
    digest = hashlib.sha256()
    for text in sorted(_sources(kernel, set())):
        digest.update(text.encode())
    return digest.hexdigest()


def _sources(kernel: Any, seen: set[str]) -> Iterator[str]:
    code, names = source(kernel)
    text = ast.unparse(code)
    if text in seen:
        return
    seen.add(text)
    yield text
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and (called := called_of(node, names)) is not None:
            yield from _sources(called, seen)


def config_hash(configs: Sequence[Mapping[str, Any]]) -> str:
    """Hash of configurations in order: what is stored refers to them by number."""
    return hashlib.sha256(repr([sorted(config.items(), key=str) for config in configs]).encode()).hexdigest()
