"""An engine's own kernels on the current GPU, called as the engine calls them. Needs that engine, torch and a GPU.

A configuration is put where the engine would have found a file's: `override_config` for routed experts, the function
that reads the file for block-scaled products.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

from pipewave.errors import MissingExtra
from pipewave.tune.engine.lookups import BLOCK, Lookup, rules
from pipewave.tune.user_kernels.gpu import FEW, ColdTimer, Gpu, compiling_in_threads

KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
USUAL = {"num_warps": 4, "num_stages": 3, "GROUP_SIZE_M": 1}  # where an engine's rule leaves them to Triton
Config = Mapping[str, int]
Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Installed:
    """An engine as it is installed: its modules, and what calls of their functions differ by."""

    moe: str  # has the call of routed experts
    rules: str  # which files there are, and the rule without one
    overrides: str
    block_fp8: str
    matmul: str  # its block-scaled product
    stages: int  # of that, without a file
    no_blocks: Sequence[int | None]  # sizes of blocks for weights without them
    layer: str  # its call of routed experts: of rows, both weights, weights of pairs, experts of pairs
    rule_flags: Sequence[bool]  # arguments more of its rule
    layer_options: Callable[[Lookup, tuple[Any, ...]], dict[str, Any]]  # of that call, by the scales of both weights
    prepare: Callable[[], None] = lambda: None  # what must be said before its kernels can be called

    def experts(self, of: Lookup, tensors: tuple[Any, ...], scales: tuple[Any, ...]) -> Callable[[], Any]:
        """What launches the layer once."""
        return partial(getattr(import_module(self.moe), self.layer), *tensors, **self.layer_options(of, scales))

    def default(self, of: Lookup, m: int) -> dict[str, int]:
        """What the engine runs as it is installed: of the file that it ships, else by its rule."""
        shipped = self.shipped(of)
        if shipped:
            found = shipped[min(shipped, key=lambda key: abs(key - m))]
        elif of.kind == "block_fp8":
            found = dict(zip(KEYS, (64, BLOCK, BLOCK, 32, 4, self.stages), strict=True))
        else:
            rule = import_module(self.rules).get_default_config
            found = rule(m, of.e, of.n, of.k, of.top_k, _file_type(of), *self.rule_flags, _blocks(of))
        return {key: int({**USUAL, **found}[key]) for key in KEYS}

    def shipped(self, of: Lookup) -> Mapping[int, Config]:
        """The file that the engine brings for this GPU, by number of tokens; empty without one."""
        if of.kind == "block_fp8":
            return import_module(self.block_fp8).get_w8a8_block_fp8_configs(of.n, of.k, BLOCK, BLOCK) or {}
        files = import_module(self.rules).get_moe_configs
        return files(of.e, of.n, _file_type(of), *(of.blocks or self.no_blocks)) or {}

    def override(self, of: Lookup, m: int, config: dict[str, int]) -> Context:
        """What puts a configuration where the engine would have found a file's."""
        if of.kind == "moe":
            return partial(import_module(self.overrides).override_config, config)
        return partial(
            patch.object, import_module(self.block_fp8), "get_w8a8_block_fp8_configs", lambda *_: {m: config}
        )


def _file_type(of: Lookup) -> str | None:
    return "fp8_w8a8" if of.dtype.startswith("fp8") else None


def _blocks(of: Lookup) -> list[int] | None:
    return list(of.blocks) if of.blocks else None


def _vllm_options(of: Lookup, scales: tuple[Any, ...]) -> dict[str, Any]:
    if not scales:
        return {}
    make = import_module("vllm.model_executor.layers.fused_moe.config").fp8_w8a8_moe_quant_config
    return {"quant_config": make(w1_scale=scales[0], w2_scale=scales[1], block_shape=_blocks(of))}


def _sglang_options(of: Lookup, scales: tuple[Any, ...]) -> dict[str, Any]:
    whole = {"filter_expert": False}  # experts are filtered only where a GPU holds some of them
    if not scales:
        return whole
    return whole | {"use_fp8_w8a8": True, "w1_scale": scales[0], "w2_scale": scales[1], "block_shape": _blocks(of)}


def _sglang_settings() -> None:
    """SGLang's kernels ask for the settings of a server: those of one that was started without any."""
    settings = import_module("sglang.srt.server_args")
    settings.set_global_server_args_for_scheduler(settings.ServerArgs(model_path="dummy"))


INSTALLED: Mapping[str, Installed] = {
    "vllm": Installed(**rules()["vllm"]["installed"], layer_options=_vllm_options),
    "sglang": Installed(**rules()["sglang"]["installed"], layer_options=_sglang_options, prepare=_sglang_settings),
}


class GpuTimer:
    """Times an engine's kernels with a cold L2; one product a kernel, all of it."""

    def __init__(self, engine: str) -> None:
        """MissingExtra where the engine is not installed."""
        try:
            import torch

            import_module(engine)
        except ImportError as problem:
            raise MissingExtra(f"{problem.name} is not installed: profiling runs the engine's own kernels",
                               field="engine") from None  # fmt: skip
        self._torch, self._engine = torch, INSTALLED[engine]
        self.default = self._engine.default
        gpu = Gpu()
        self._engine.prepare()
        self.env, self.peaks = gpu.env, gpu.peaks
        self._timer, self._made = ColdTimer(queued=FEW), dict[Any, Callable[[], Any]]()
        self._runs = dict[tuple[int, ...], Callable[[], Any] | None]()  # by configuration, of the call that is made
        self._pool, self._uncaptured = torch.cuda.graph_pool_handle(), 0
        # a generator that no capture holds: PyTorch's own gives nothing any more after a capture that failed
        self._random = torch.Generator("cuda").manual_seed(0)
        self._weights: tuple[Any, Any] = (None, None)
        self._failed = ""  # why the last configuration that does not run does not

    def time(self, of: Lookup, m: int, configs: Sequence[Mapping[str, int]]) -> list[float]:
        """µs of each configuration in this order, NaN where it does not run; RuntimeError where none does, and why."""
        call = self._call(of, m)
        launches = {_values(config): partial(_under, self._engine.override(of, m, dict(config)), call)
                    for config in configs}  # fmt: skip
        new = [each for each in launches if each not in self._runs]
        compile_ahead([launches[each] for each in new])
        self._runs |= {each: self._recorded(launches[each]) for each in new}
        timed = [self._runs[_values(config)] for config in configs]
        running = [i for i, replay in enumerate(timed) if replay is not None]
        if not running:
            raise RuntimeError(f"no configuration runs: {self._failed}")
        us = self._timer([[replay] for replay in timed if replay is not None])
        found = dict(zip(running, us, strict=True))
        return [found.get(i, float("nan")) for i in range(len(configs))]

    def _recorded(self, launch: Callable[[], Any]) -> Callable[[], Any] | None:
        """A call as a CUDA graph, None where it does not run: an engine's Python around a kernel takes longer than a
        short kernel, and the GPU would wait for it within the time measured. A call that cannot be captured is timed
        as it is.
        """
        if why := _failure(launch):
            self._failed = why
            return None
        graph = self._torch.cuda.CUDAGraph()
        try:
            with self._torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                launch()
        except RuntimeError as problem:
            if not self._uncaptured:
                warnings.warn(f"timed without a CUDA graph: {problem}", stacklevel=2)
            self._uncaptured += 1
            self._torch.cuda.synchronize()
            return launch
        replay: Callable[[], Any] = graph.replay
        return replay

    def _call(self, of: Lookup, m: int) -> Callable[[], Any]:
        """The engine's call for m tokens, on random values."""
        if (of, m) not in self._made:
            self._made = {(of, m): (self._experts if of.kind == "moe" else self._matmul)(of, m)}
            self._runs = {}
        return self._made[of, m]

    def _matmul(self, of: Lookup, m: int) -> Callable[[], Any]:
        torch, run = self._torch, getattr(import_module(self._engine.block_fp8), self._engine.matmul)
        a, b = self._fp8(m, of.k), self._kept(of, lambda: self._fp8(of.n, of.k))
        scales = [torch.ones(*size, device="cuda") for size in ((m, -(-of.k // BLOCK)), _scales(of.n, of.k))]
        return partial(run, a, b, *scales, [BLOCK, BLOCK], torch.bfloat16)

    def _experts(self, of: Lookup, m: int) -> Callable[[], Any]:
        torch = self._torch
        drawn = torch.rand(m, of.e, device="cuda", generator=self._random)
        ids, x = drawn.topk(of.top_k, dim=1).indices.to(torch.int32), self._drawn(m, of.k)
        weights = torch.rand(m, of.top_k, device="cuda", generator=self._random)
        w13, w2, scales = self._kept(of, lambda: self._expert_weights(of))
        return self._engine.experts(of, (x, w13, w2, weights, ids), scales)

    def _expert_weights(self, of: Lookup) -> tuple[Any, Any, tuple[Any, ...]]:
        torch, sizes = self._torch, ((of.e, 2 * of.n, of.k), (of.e, of.k, of.n))
        if not of.dtype.startswith("fp8"):
            w13, w2 = (self._drawn(*size) for size in sizes)
            return w13, w2, ()
        by_block = of.blocks is not None
        scales = tuple(torch.ones(e, *_scales(n, k), device="cuda") if by_block else torch.ones(e, device="cuda")
                       for e, n, k in sizes)  # fmt: skip
        w13, w2 = (self._fp8(*size) for size in sizes)
        return w13, w2, scales

    def _kept(self, of: Lookup, make: Callable[[], Any]) -> Any:
        """The weights of a kernel, made once for all numbers of tokens."""
        if self._weights[0] != of:
            self._made, self._weights = {}, (None, None)
            self._torch.cuda.empty_cache()
            self._weights = of, make()
        return self._weights[1]

    def _fp8(self, *size: int) -> Any:
        return self._drawn(*size).to(self._torch.float8_e4m3fn)

    def _drawn(self, *size: int) -> Any:
        torch = self._torch
        return torch.randn(*size, dtype=torch.bfloat16, device="cuda", generator=self._random)


def compile_ahead(launches: Sequence[Callable[[], Any]]) -> None:
    """Compile what calls would launch, in threads where this Triton can, without the launches themselves."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:  # noqa: ARG001
        return run(kernel, *args, grid=grid, warmup=True, **kwargs)

    with compiling_in_threads() as ahead, patch.object(JITFunction, "run", compile_only):
        for launch in launches if ahead else ():
            _failure(launch)


def _failure(launch: Callable[[], Any]) -> str:
    """Why a call does not run; empty where it does."""
    try:
        launch()
    except Exception as problem:  # noqa: BLE001  the compiler raises whatever its passes raise: it is out by that
        return f"{type(problem).__name__}: {problem}"
    return ""


def _values(config: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(config[key] for key in KEYS)


def _scales(n: int, k: int) -> tuple[int, int]:
    return -(-n // BLOCK), -(-k // BLOCK)


def _under(context: Callable[[], AbstractContextManager[Any]], call: Callable[[], Any]) -> Any:
    with context():
        return call()
