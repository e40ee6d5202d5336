"""An engine's own kernels on the current GPU, called as the engine calls them. Needs that engine, torch and a GPU.

A configuration is put where the engine would have found a file's: `override_config` for routed experts, the function
that reads the file for block-scaled products. So all that an engine runs around its kernel is timed as it runs it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from typing import Any

from pipewave.errors import MissingExtra
from pipewave.tune import machine
from pipewave.tune.engine.lookups import BLOCK, Lookup
from pipewave.tune.own.gpu import Gpu
from pipewave.tune.own.peaks import peaks_of

KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
USUAL = {"num_warps": 4, "num_stages": 3, "GROUP_SIZE_M": 1}  # where an engine's rule leaves them to Triton
MODULES = {
    ("vllm", "moe"): "vllm.model_executor.layers.fused_moe.fused_moe",
    ("vllm", "block_fp8"): "vllm.model_executor.layers.quantization.utils.fp8_utils",
    ("sglang", "moe"): "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe",
    ("sglang", "block_fp8"): "sglang.srt.layers.quantization.fp8_kernel",
}
OVERRIDES = {"vllm": "vllm.model_executor.layers.fused_moe", "sglang": "sglang.srt.layers.moe.moe_runner.triton_utils"}
MATMULS = {"vllm": "w8a8_triton_block_scaled_mm", "sglang": "w8a8_block_fp8_matmul_triton"}


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
        from pipewave.tune.timing import FEW, ColdTimer

        self._torch, self._engine = torch, engine
        torch.cuda.init()
        if engine == "sglang":
            _as_served()
        self.env: Mapping[str, Any] = machine.current()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.peaks = peaks_of(properties.name, properties.multi_processor_count)
        self._timer, self._made = ColdTimer(queued=FEW), dict[Any, Callable[[], Any]]()
        self._runs = dict[tuple[int, ...], Callable[[], Any] | None]()  # by configuration, of the call that is made
        self._pool, self._uncaptured = torch.cuda.graph_pool_handle(), 0
        # a generator that no capture holds: PyTorch's own gives nothing any more after a capture that failed
        self._random = torch.Generator("cuda").manual_seed(0)
        self._weights: tuple[Any, Any] = (None, None)

    def default(self, of: Lookup, m: int) -> dict[str, int]:
        """What the engine runs as it is installed: of the file that it ships, else by its rule."""
        shipped = self._shipped(of)
        if shipped:
            found = shipped[min(shipped, key=lambda key: abs(key - m))]
        elif of.kind == "block_fp8":
            stages = 2 if of.engine == "vllm" else 3
            found = dict(zip(KEYS, (64, BLOCK, BLOCK, 32, 4, stages), strict=True))
        else:
            found = self._rule(of, m)
        return {key: int({**USUAL, **found}[key]) for key in KEYS}

    def _shipped(self, of: Lookup) -> Mapping[int, Mapping[str, int]]:
        """The file that the engine brings for this GPU, by number of tokens; empty without one."""
        name = "fp8_w8a8" if of.dtype.startswith("fp8") else None
        blocks = (BLOCK, BLOCK) if of.blocks else (0, 0) if of.engine == "vllm" else (None, None)
        if of.kind == "block_fp8":
            found = import_module(MODULES[of.engine, of.kind]).get_w8a8_block_fp8_configs(of.n, of.k, BLOCK, BLOCK)
        elif of.engine == "vllm":
            found = import_module(MODULES["vllm", "moe"]).get_moe_configs(of.e, of.n, name, *blocks)
        else:
            rules = import_module(f"{OVERRIDES['sglang']}.fused_moe_triton_config")
            found = rules.get_moe_configs(of.e, of.n, name, *blocks)
        return found or {}

    @staticmethod
    def _rule(of: Lookup, m: int) -> Mapping[str, int]:
        name = "fp8_w8a8" if of.dtype.startswith("fp8") else None
        blocks = [BLOCK, BLOCK] if of.blocks else None
        if of.engine == "vllm":
            moe = import_module(MODULES["vllm", "moe"])
            return dict(moe.get_default_config(m, of.e, of.n, of.k, of.top_k, name, blocks))
        rules = import_module(f"{OVERRIDES['sglang']}.fused_moe_triton_config")
        return dict(rules.get_default_config(m, of.e, of.n, of.k, of.top_k, name, False, blocks))

    def time(self, of: Lookup, m: int, configs: Sequence[Mapping[str, int]]) -> list[tuple[float, ...]]:
        """µs of each configuration in this order, NaN where it does not run."""
        call = self._call(of, m)
        launches = {_values(config): self._launch(of, m, dict(config), call) for config in configs}
        new = [each for each in launches if each not in self._runs]
        compile_ahead([launches[each] for each in new])
        self._runs |= {each: self._recorded(launches[each]) for each in new}
        timed = [self._runs[_values(config)] for config in configs]
        running = [i for i, replay in enumerate(timed) if replay is not None]
        us = self._timer([[replay] for replay in timed if replay is not None])
        found = dict(zip(running, us, strict=True))
        return [(found.get(i, float("nan")),) for i in range(len(configs))]

    def _recorded(self, launch: Callable[[], Any]) -> Callable[[], Any] | None:
        """A call as a CUDA graph, None where it does not run: an engine's Python around a kernel takes longer than a
        short kernel, and the GPU would wait for it within the time measured. A call that cannot be captured is timed
        as it is."""  # fmt: skip
        if not _runs(launch):
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

    def _launch(self, of: Lookup, m: int, config: dict[str, int], call: Callable[[], Any]) -> Callable[[], Any]:
        return partial(_under, self._override(of, m, config), call)

    def _override(self, of: Lookup, m: int, config: dict[str, int]) -> Callable[[], AbstractContextManager[Any]]:
        """What puts a configuration where the engine would have found a file's."""
        if of.kind == "moe":
            return partial(import_module(OVERRIDES[of.engine]).override_config, config)
        module = import_module(MODULES[of.engine, of.kind])
        return partial(_Replaced, module, "get_w8a8_block_fp8_configs", lambda *_: {m: config})

    def _call(self, of: Lookup, m: int) -> Callable[[], Any]:
        """The engine's call for m tokens, on random values."""
        if (of, m) not in self._made:
            self._made = {(of, m): (self._experts if of.kind == "moe" else self._matmul)(of, m)}
            self._runs = {}
        return self._made[of, m]

    def _matmul(self, of: Lookup, m: int) -> Callable[[], Any]:
        torch, run = self._torch, getattr(import_module(MODULES[of.engine, of.kind]), MATMULS[of.engine])
        a, b = self._fp8(m, of.k), self._kept(of, lambda: self._fp8(of.n, of.k))
        scales = [torch.ones(*size, device="cuda") for size in ((m, -(-of.k // BLOCK)), _scales(of.n, of.k))]
        return partial(run, a, b, *scales, [BLOCK, BLOCK], torch.bfloat16)

    def _experts(self, of: Lookup, m: int) -> Callable[[], Any]:
        from pipewave.tune.operands import routing

        torch = self._torch
        shape = {"m": m, "e": of.e, "top_k": of.top_k, "skew": 0, "seed": m}
        ids, x = routing(shape, "cuda").to(torch.int32), self._drawn(m, of.k)
        weights = torch.rand(m, of.top_k, device="cuda", generator=self._random)
        w13, w2, scales = self._kept(of, lambda: self._expert_weights(of))
        run = import_module(MODULES[of.engine, "moe"])
        if of.engine == "vllm":
            quantised = {"quant_config": _vllm_quantised(of, *scales)} if scales else {}
            return partial(run.fused_experts, x, w13, w2, weights, ids, **quantised)
        blocks = [BLOCK, BLOCK] if of.blocks else None
        more = (
            {"use_fp8_w8a8": True, "w1_scale": scales[0], "w2_scale": scales[1], "block_shape": blocks}
            if scales
            else {}
        )
        # Experts are filtered only where a GPU holds some of them.
        return partial(run.outplace_fused_experts, x, w13, w2, weights, ids, filter_expert=False, **more)

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


def _as_served() -> None:
    """SGLang's kernels ask for the settings of a server: those of one that was started without any."""
    settings = import_module("sglang.srt.server_args")
    settings.set_global_server_args_for_scheduler(settings.ServerArgs(model_path="dummy"))


def compile_ahead(launches: Sequence[Callable[[], Any]]) -> None:
    """Compile what calls would launch, beside each other where this Triton can, without the launches themselves."""
    mode = Gpu.async_mode()
    if mode is None:
        return
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) - 1)) as pool, mode(pool, ignore_errors=True), _OnlyCompiled():
        for launch in launches:
            _runs(launch)


class _OnlyCompiled:
    """Triton's launches compile and do not run for a while."""

    def __enter__(self) -> None:
        from triton.runtime.jit import JITFunction

        self._of, self._run = JITFunction, JITFunction.run

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            return self._run(kernel, *args, grid=grid, warmup=True, **kwargs)

        JITFunction.run = run

    def __exit__(self, *_: object) -> None:
        self._of.run = self._run


def _runs(launch: Callable[[], Any]) -> bool:
    try:
        launch()
    except Exception:  # noqa: BLE001  the compiler raises whatever its passes raise: such a configuration is out
        return False
    return True


def _values(config: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(config[key] for key in KEYS)


def _scales(n: int, k: int) -> tuple[int, int]:
    return -(-n // BLOCK), -(-k // BLOCK)


def _vllm_quantised(of: Lookup, w13: Any, w2: Any) -> Any:
    make = import_module("vllm.model_executor.layers.fused_moe.config").fp8_w8a8_moe_quant_config
    return make(w1_scale=w13, w2_scale=w2, block_shape=[BLOCK, BLOCK] if of.blocks else None)


def _under(context: Callable[[], AbstractContextManager[Any]], call: Callable[[], Any]) -> Any:
    with context():
        return call()


class _Replaced:
    """A function of a module, replaced for a while."""

    def __init__(self, module: Any, name: str, by: Any) -> None:
        self._module, self._name, self._by = module, name, by

    def __enter__(self) -> None:
        self._old = getattr(self._module, self._name)
        setattr(self._module, self._name, self._by)

    def __exit__(self, *_: object) -> None:
        setattr(self._module, self._name, self._old)
