"""A kernel function as its source has it, and what its arguments look like there."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pipewave.errors import BadInput
from pipewave.tune.source.interpreter import Reader
from pipewave.tune.source.traced import Traced
from pipewave.tune.source.values import Address, Block, Counts, Tensor, Unknown


def unwrapped(fn: Any) -> tuple[Any, dict[str, Any]]:
    """The `triton.jit` function under all `triton.heuristics`, and these by the argument that they work out."""
    heuristics: dict[str, Any] = {}
    while hasattr(fn, "values") and hasattr(fn, "fn"):
        heuristics |= fn.values
        fn = fn.fn
    return fn, heuristics


@lru_cache(maxsize=512)
def source(kernel: Any) -> tuple[ast.FunctionDef, Mapping[str, Any]]:
    """Syntax tree and global names of a kernel function. BadInput where it has no source."""
    function = getattr(kernel, "fn", kernel)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError) as problem:
        raise BadInput(f"{getattr(kernel, '__name__', kernel)!r}: its source cannot be read ({problem})",
                       field="kernel") from problem  # fmt: skip
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    if not found:
        raise BadInput(f"{getattr(kernel, '__name__', kernel)!r} is no function", field="kernel")
    closed = inspect.getclosurevars(function).nonlocals if getattr(function, "__closure__", None) else {}
    return found[0], {**getattr(function, "__globals__", {}), **closed}


def reading_of(
    code: ast.FunctionDef, constants: Mapping[str, Any], names: Mapping[str, Any],
    tensors: Mapping[str, Tensor], ids: tuple[Any, ...], grid: tuple[Any, ...],
) -> Counts:  # fmt: skip
    """Counts of the block at one place of the grid."""

    def functions(name: str) -> tuple[ast.FunctionDef, Mapping[str, Any]] | None:
        found = kernel_function(name, block.constants)
        return None if found is None else source(found)

    block = Block(ids, grid, tensors, functions, constants)
    Reader(block, dict(names)).run(code.body)
    return block.counts


def kernel_function(name: str, constants: Mapping[str, Any]) -> Any:
    """The kernel function of a dotted name, None for functions of the language and of Python."""
    first, *rest = name.split(".")
    found: Any = constants.get(first)
    for part in rest:
        found = getattr(found, part, None)
    function = getattr(found, "fn", None)
    is_language = (getattr(function, "__module__", "") or "").startswith("triton.")
    return found if callable(function) and not is_language else None


def seen(name: str, value: Any) -> Any:
    """An argument as the source sees it."""
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return Address(name, tuple(int(extent) for extent in value.block_shape))
    if tensor_of(value) is not None:
        return Address(name)
    plain = isinstance(value, int | float | bool | str | tuple | list | Traced) or value is None
    return value if plain else Unknown(f"the argument {name}")


def tensor_of(value: Any) -> Tensor | None:
    """Extent of a tensor argument, of a descriptor's tensor, or None for anything else."""
    value = getattr(value, "base", value) if hasattr(value, "block_shape") else value
    if not (hasattr(value, "data_ptr") and hasattr(value, "element_size")):
        return None
    elements = int(value.numel()) if hasattr(value, "numel") else None
    return Tensor(elements, int(value.element_size()))
