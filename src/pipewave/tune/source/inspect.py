"""What was understood of a kernel, for people: loops and their bounds, bytes, FLOPs, and what the source leaves open.

A kernel is named `FILE.py:function`. Arguments are given as `M=4096` for numbers and `x=bf16[4096,4096]` for tensors;
the grid is an expression over them, `cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)`.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

from pipewave.errors import BadFile, BadInput, MissingExtra
from pipewave.tune.source.expressions import Expressions
from pipewave.tune.source.formula import constants_of, formula, unwrapped
from pipewave.tune.source.language import Block, is_known
from pipewave.tune.source.launch_work import source
from pipewave.tune.source.traced import plain

TENSOR = re.compile(r"(\w+)\[(\s*(?:[1-9]\d*\s*(?:,\s*|(?=\])))*)\]")
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int32": 4, "int64": 8, "fp64": 8, "int4": 1}
EXTRA = ("triton", "torch")
WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True)
class Shaped:
    """A tensor argument that is only described."""

    elements: int
    width: int
    of: str = ""

    def numel(self) -> int:
        """Elements."""
        return self.elements

    def element_size(self) -> int:
        """Bytes of one."""
        return self.width

    def data_ptr(self) -> int:
        """No address: nothing is read."""
        return 0


def kernel_file(named: str) -> tuple[ModuleType, str]:
    """The module of `FILE.py:name`, and the name. Runs the file, as an import would. BadInput: not of that form.
    BadFile: no such file, or it cannot be imported. MissingExtra: what it imports of the extra `gpu` is not installed.
    """
    text, _, name = named.rpartition(":")
    if not text or not name:
        raise BadInput(f"{named!r}: must be FILE.py:kernel", field="kernel")
    path = Path(text)
    if not path.is_file():
        raise BadFile(f"{path}: no such file", field="kernel")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadFile(f"{path}: no Python file", field="kernel")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    try:
        spec.loader.exec_module(module)
    except Exception as problem:  # a stranger's file may raise anything; whatever it is, the file is what is wrong
        if isinstance(problem, ModuleNotFoundError) and problem.name in EXTRA:
            raise MissingExtra(f"{path} needs {problem.name}: pip install 'pipewave[gpu]'", field="kernel") from problem
        raise BadFile(f"{path}: cannot be imported ({type(problem).__name__}: {problem})", field="kernel") from problem
    return module, name


def tuned(named: str) -> Any:
    """What stands under `FILE.py:name`, a kernel with configurations. Raises as `kernel_file`, BadInput for another."""
    module, name = kernel_file(named)
    found = getattr(module, name, None)
    if not hasattr(found, "configs") or not hasattr(found, "fn"):
        raise BadInput(f"{named}: no kernel under `pipewave.tune.autotune` or `triton.autotune`, which lists its "
                       "configurations, by that name", field="kernel")  # fmt: skip
    return found


def load(named: str) -> Any:
    """The kernel of `FILE.py:function` below any tuner, its heuristics kept. Raises as `kernel_file`."""
    module, function = kernel_file(named)
    found = getattr(module, function, None)
    if found is None:
        raise BadInput(f"{module.__file__} has no function {function!r}", field="kernel")
    while hasattr(getattr(found, "fn", None), "arg_names") and not hasattr(found, "values"):
        found = found.fn
    return found


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """Arguments by name from `M=4096`, `x=bf16[8,128]`, `causal=true`. BadInput for anything else."""
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise BadInput(f"{word!r}: must look like M=4096 or x=bf16[4096,4096]", field="args")
        found[name] = _argument(name, text.strip())
    return found


def _argument(name: str, text: str) -> Any:
    tensor = TENSOR.fullmatch(text)
    if tensor:
        dtype = tensor[1]
        if dtype not in ELEMENT_BYTES:
            raise BadInput(f"{name} = {dtype}[...]: known types are {', '.join(ELEMENT_BYTES)}", field="args")
        extents = [int(extent) for extent in tensor[2].split(",") if extent.strip()]
        return Shaped(prod(extents), ELEMENT_BYTES[dtype], dtype)
    if "[" in text:
        raise BadInput(f"{name} = {text}: a tensor is a type and extents from 1, such as bf16[4096,4096]", field="args")
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def expression_grid(expression: str) -> Callable[[Mapping[str, Any]], Any]:
    """A grid function of an expression over arguments and configuration. BadInput where it is none."""
    try:
        body = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError) as problem:  # characters that no source may hold are of the second kind
        raise BadInput(f"grid = {expression!r}: must be an expression ({problem})", field="grid") from problem

    def grid(values: Mapping[str, Any]) -> Any:
        found = Expressions(Block((), (), {}, lambda _: None, {}), dict(values)).value(body)
        extents = found if isinstance(found, tuple) else (found,)
        unknown = next((one for one in extents if not is_known(one)), None)
        if unknown is not None:
            raise TypeError(getattr(unknown, "why", f"{unknown!r} is no number"))
        return extents

    return grid


def understood(kernel: Any, expression: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What was understood of one launch, as a plain answer: counts, loops with their bounds, what is unknown. BadInput
    where the grid is none, or a size or a tensor that the kernel takes is not given.
    """
    kernel, heuristics = unwrapped(kernel)
    complete(kernel, {*given, *config, *heuristics})
    grid = expression_grid(expression)
    try:
        found = formula(kernel, grid, given, config, constants_of(kernel), heuristics=heuristics)
        counts = [float(plain(value)) for value in found.traced[1]]
        extents = [int(plain(extent)) for extent in grid({**given, **config})]
    except (KeyError, TypeError, ArithmeticError) as problem:
        text = f"grid = {expression!r}: must be an expression over arguments ({problem})"
        raise BadInput(text, field="grid") from problem
    check_blocks(min(extents))
    blocks, trips, longest, least, moved, flops = counts
    code, _ = source(kernel)
    over = {node.lineno: ast.unparse(node.iter if isinstance(node, ast.For) else node.test)
            for node in ast.walk(code) if isinstance(node, ast.For | ast.While)}  # fmt: skip
    return {
        "blocks": int(blocks),
        "trips_mean": trips if found.loops else 0.0,
        "trips_longest": longest if found.loops else 0.0,
        "flops": flops,
        "bytes_moved": moved,
        "bytes_least": least,
        "loops": [{"line": line, "turns": turns, "over": over.get(line, "")} for line, turns in found.loops.items()],
        "unknown": [{"line": line, "why": why} for why, line in found.unknown.items()],
        "grid": extents,
    }


def check_blocks(fewest: float) -> None:
    """BadInput for a launch of no block."""
    if fewest < 1:
        raise BadInput(f"grid = {fewest:g}: a launch needs a block; give sizes and a grid from 1 up", field="grid")


def complete(kernel: Any, known: set[str]) -> None:
    """BadInput for what a launch needs and nobody said, and how to say it."""
    code, _ = source(kernel)
    defaults = {one.arg for one in code.args.args[len(code.args.args) - len(code.args.defaults) :]}
    missing = [name for name in kernel.arg_names if name not in known | defaults]
    if missing:
        example = f"--arg {missing[0]}=4096 for a number, --arg {missing[0]}=bf16[4096,4096] for a tensor"
        raise BadInput(f"say what the launch is given for {', '.join(missing)}: {example}, --config {missing[-1]}=128 "
                       "for a block size", field="args")  # fmt: skip
