"""Tables of our own shipped kernels: `load_table(kernel).select(**shape)`.

They are tables like those of any kernel, chosen from by the same short lists. What is ours alone: launches are named by
shape fields, their counts are stated (`law.launch_counts`), and the default depends on the shape. Where a launch has a
load beyond its shape (routing, cache lengths), there are two kinds: with it and in expectation.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile, BadInput
from pipewave.gpus import find
from pipewave.tune import machine, store
from pipewave.tune.choose.chooser import MEMO, Chooser, Key
from pipewave.tune.law.anchors import Floats, columns
from pipewave.tune.law.launch_counts import LINE, SHAPE_FIELDS, family, flops, routed, stated
from pipewave.tune.law.margin import defaults
from pipewave.tune.law.model import moved
from pipewave.tune.law.peaks import peaks_of
from pipewave.tune.space import space
from pipewave.tune.store import KindTable
from pipewave.tune.user_kernels.kernel import KernelDescription, Kind
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas
from pipewave.tune.user_kernels.sizes import Sizes

FROM = "H200"  # the GPU whose tables are shipped
SHAPE: Kind = ()  # kinds: no load, or in expectation
LOAD: Kind = (("load", "known"),)
FUNCTIONS = {"gemm": ("gemm", "gemm"), "moe": ("grouped", "grouped_gemm"), "prefill": ("prefill", "prefill"),
             "decode": ("decode", "decode"), "moe_up": ("moe_experts", "up"),
             "moe_down": ("moe_experts", "down")}  # file and function, by kernel or family  # fmt: skip
MOST_PREPARED = 8192  # tokens
Config = Mapping[str, int]


def load_table(kernel: str, *, gpu: str | None = None, path: str | Path | None = None,
               env: Mapping[str, Any] | None = None, transfer: bool = False) -> Any:  # fmt: skip
    """Load a shipped kernel's table, ready to `select(...)` from.

    Args:
        kernel: a name of `space.kernels()`.
        gpu: whose table; default: this machine's GPU, or the H200 where none is known. One in
            your own folder of tables goes before the shipped one.
        path: a table file instead; it must hold `kernel`, unless that is empty.
        env: the machine to serve; default: this one, as far as it can be known without touching the GPU. `{}` checks
            nothing, for a machine that only reads.
        transfer: where the GPU has no table, carry the H200's over by the physics of both GPUs: a warm start, half as
            sure of itself.

    Raises:
        UnknownKernel: no such kernel. BadFile: no table, or a corrupted one.
        TableMismatch: a table of another kernel, kernel source, configuration space or GPU.
    """
    of = description(kernel or (store.kernel_of(Path(path)) if path else ""))
    here = machine.current() if env is None else machine.flat(env)
    name = gpu or here.get("gpu") or FROM
    try:
        meta, kinds = store.read_table(Path(path) if path else store.locate(of.name, name), of)
    except BadFile:
        if not transfer or path is not None:
            raise
        meta, kinds = store.read_table(store.locate(of.name, FROM), of)
        return _TABLES[family(kernel)](of, *_carried_over(meta, kinds, name))
    store.check_environment(meta, here)
    return _TABLES[family(kernel)](of, meta, kinds)


def _carried_over(meta: dict[str, Any], kinds: store.Kinds, gpu: str) -> tuple[dict[str, Any], store.Kinds]:
    """A table as it is expected on another GPU. UnknownGpu where the GPU has no specification."""
    target = peaks_of(find(gpu).name)
    made = {kind: KindTable(moved(one.model, target), one.launches, one.sizes, one.lists)
            for kind, one in kinds.items()}  # fmt: skip
    return {**meta, "env": {**meta["env"], "carried_over_to": target.gpu}}, made


@cache
def description(kernel: str) -> KernelDescription:
    """A shipped kernel as any kernel is described. UnknownKernel for another name."""
    of = space(kernel)
    configs = tuple(MappingProxyType(of.as_dict(config)) for config in of.configs)
    fields = SHAPE_FIELDS[family(kernel)]
    return KernelDescription(None, of.kernel, configs, fields, (), (), {}, source_sha256(of.kernel))


@cache
def source_sha256(kernel: str) -> str:
    """Hash of a shipped kernel's code, as `user_kernels.kernel.source_hash` makes it, without importing Triton."""
    file, function = FUNCTIONS.get(kernel, FUNCTIONS[family(kernel)])
    text = files("pipewave.triton_kernels").joinpath(f"{file}.py").read_text()
    every = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    found: set[str] = set()
    wanted = [function]
    while wanted:
        node = every[wanted.pop()]
        found.add(ast.unparse(node))
        called = {each.func.id for each in ast.walk(node) if isinstance(each, ast.Call)
                  and isinstance(each.func, ast.Name) and each.func.id in every}  # fmt: skip
        wanted += [name for name in called if ast.unparse(every[name]) not in found]
    digest = hashlib.sha256()
    for code in sorted(found):
        digest.update(code.encode())
    return digest.hexdigest()


def formulas(kernel: str, numbers: Mapping[str, Any], described: KernelDescription | None = None) -> LaunchFormulas:
    """Counts of a shipped kernel's launches, under every configuration (default: its own), with these numbers."""
    made, of = LaunchFormulas(described or description(kernel)), stated(kernel)

    def counts(values: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Any, ...]:
        found = of(values, config)
        return (*found[:5], flops(kernel, config, found), found.idle)

    made.state(counts, numbers)
    return made


def sizes(kernel: str) -> tuple[str, ...]:
    """The numbers that launches of a shipped kernel are placed by."""
    return (*SHAPE_FIELDS[family(kernel)], *(("split_lines",) if kernel == "gemm_fp8" else ()))


def with_derived(kernel: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Shape fields, numbers or columns, with what follows from them: whether rows of fp8 start inside cache lines."""
    return {**shape, "split_lines": 1 + (shape["k"] % LINE > 0)} if kernel == "gemm_fp8" else dict(shape)


class KernelTable:
    """A table ready to choose from; subclasses have the `select` of their kernel's family."""

    def __init__(self, of: KernelDescription, meta: Mapping[str, Any], kinds: store.Kinds) -> None:
        self.of, self.kernel, self.meta, self.kinds = of, of.name, meta, kinds
        self.configs: tuple[Config, ...] = of.configs
        self.config = columns(of.configs)
        self._choosers: dict[Kind, Chooser] = {}
        self._memo: dict[Any, Config] = {}
        self._blocks = tuple(sorted({int(config["BLOCK_M"]) for config in of.configs if "BLOCK_M" in config}))

    @property
    def gpu(self) -> str:
        """The GPU that it was measured on."""
        return str(self.meta["env"]["gpu"])

    def model(self, *, known_load: bool = False) -> Any:
        """The fitted model."""
        return self.kinds[LOAD if known_load and LOAD in self.kinds else SHAPE].model

    def chooser(self, kind: Kind) -> Chooser:
        """What chooses for a kind of launch; made when it is first asked for."""
        if kind not in self._choosers:
            of, example = self.kinds[kind], self.kinds[kind].launches[0]
            usable = np.flatnonzero(np.isfinite(of.model.sigma))
            at = Sizes(tuple(of.sizes), {})
            self._choosers[kind] = Chooser(formulas(self.kernel, example), at, of.model, usable, at.at(of.launches),
                                           default=self._default, lists=of.lists)  # fmt: skip
        return self._choosers[kind]

    def _default(self, numbers: Mapping[str, Floats]) -> NDArray[np.int64]:
        fields = SHAPE_FIELDS[family(self.kernel)]
        shape = {name: np.maximum(np.rint(numbers[name]), 1).astype(np.int64) for name in fields}
        return defaults(self.kernel, self.config, shape)

    def key(self, shape: Mapping[str, Any]) -> tuple[Chooser, Key]:
        """What chooses for a shape, and its key there."""
        numbers = with_derived(self.kernel, shape)
        routing = numbers.pop("counts", None)
        if routing is not None:
            numbers |= routed(routing, self._blocks)
        chooser = self.chooser(LOAD if routing is not None or "longest" in numbers else SHAPE)
        return chooser, tuple(numbers[name] for name in chooser.inputs)

    def choose(self, asked: Any, shape: Mapping[str, Any]) -> Config:
        """Choose, and remember it for what was asked."""
        least = min(value for name, value in shape.items() if name != "counts")
        if least < 1:
            raise BadInput(f"{dict(shape)}: must be at least 1", field="shape")
        chooser, key = self.key(shape)
        if len(self._memo) >= MEMO:
            self._memo = {}
        found = self._memo[asked] = self.configs[chooser.choose(key)]
        return found

    def forget(self) -> None:
        """Drop what was remembered; choices do not change."""
        self._memo = {}

    def is_foreseen(self, shape: Mapping[str, Any]) -> bool:
        """Whether a shape lies in the measured domain, or near it."""
        chooser, key = self.key(shape)
        return chooser.is_listed(key)

    def us(self, shape: Mapping[str, Any], *, sigmas: float = 0.0) -> Floats:
        """Predicted µs [s, c] at shapes given as columns, so many standard deviations up."""
        numbers = {name: np.asarray(value, float).reshape(-1) for name, value in shape.items()}
        numbers = with_derived(self.kernel, numbers)
        chooser = self.chooser(LOAD if "longest" in shape else SHAPE)
        size = max(len(value) for value in numbers.values())
        numbers = {name: np.broadcast_to(value, size) for name, value in numbers.items()}
        at = np.stack([numbers[name] for name in chooser.sizes.names], axis=1)
        found = chooser.model.us(chooser.formulas.many(numbers), np.log(np.maximum(at, 1.0)))
        return np.asarray(found * np.exp(sigmas * chooser.model.sigma))


class GemmTable(KernelTable):
    """Dense GEMM."""

    def select(self, m: int, n: int, k: int) -> Config:
        """Choose for C[m, n] = A[m, k] · W[n, k]ᵀ. BadInput for a size below 1."""
        found = self._memo.get((m, n, k))
        return found if found is not None else self.choose((m, n, k), {"m": m, "n": n, "k": k})

    def prepare(self, n: int, k: int, most: int = MOST_PREPARED) -> None:
        """Choose for every m up to `most` ahead of time; choices stay the same, only faster."""
        for m in range(1, most + 1):
            self.select(m, n, k)


class MoeTable(KernelTable):
    """One of the products of a fused MoE layer."""

    def select(
        self, m: int, e: int, top_k: int, hidden: int, inter: int, counts: tuple[int, ...] | None = None
    ) -> Config:
        """Choose for m tokens over e experts; `counts`, the tokens each expert got, replaces the expected routing."""
        key = (m, e, top_k, hidden, inter, counts)
        found = self._memo.get(key)
        if found is not None:
            return found
        shape: dict[str, Any] = {"m": m, "e": e, "top_k": top_k, "hidden": hidden, "inter": inter}
        return self.choose(key, shape if counts is None else shape | {"counts": counts})

    def prepare(self, e: int, top_k: int, hidden: int, inter: int, most: int = MOST_PREPARED) -> None:
        """Choose for every number of tokens up to `most` ahead of time."""
        for m in range(1, most + 1):
            self.select(m, e, top_k, hidden, inter)


class PrefillTable(KernelTable):
    """Attention over prompts."""

    def select(self, batch: int, q_len: int, kv_len: int, heads: int, kv_heads: int) -> Config:
        """Choose for `batch` sequences of q_len queries over kv_len keys."""
        key = (batch, q_len, kv_len, heads, kv_heads)
        found = self._memo.get(key)
        if found is not None:
            return found
        if heads < kv_heads or kv_len < q_len:
            raise BadInput(f"batch, q_len, kv_len, heads, kv_heads = {key}: kv_len ≥ q_len and heads ≥ kv_heads",
                           field="shape")  # fmt: skip
        return self.choose(key, dict(zip(SHAPE_FIELDS["prefill"], key, strict=True)))


class DecodeTable(KernelTable):
    """Paged decode attention."""

    def select(self, batch: int, kv_len: int, heads: int, kv_heads: int, longest: int | None = None) -> Config:
        """Choose for `batch` sequences with kv_len cached tokens each, on average; `longest`: of the longest one."""
        key = (batch, kv_len, heads, kv_heads, longest)
        found = self._memo.get(key)
        if found is not None:
            return found
        if heads < kv_heads or (longest is not None and longest < kv_len):
            raise BadInput(f"batch, kv_len, heads, kv_heads, longest = {key}: heads ≥ kv_heads and longest ≥ kv_len, "
                           "the mean", field="shape")  # fmt: skip
        shape = dict(zip(SHAPE_FIELDS["decode"], key, strict=False))
        return self.choose(key, shape if longest is None else shape | {"longest": longest})


_TABLES = {"gemm": GemmTable, "moe": MoeTable, "prefill": PrefillTable, "decode": DecodeTable}
