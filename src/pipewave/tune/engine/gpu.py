"""An engine's own kernels on the current GPU, called as the engine calls them. Needs that engine, torch and a GPU."""

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
from pipewave.tune.engine.installed import INSTALLED, KEYS
from pipewave.tune.engine.lookups import BLOCK, Lookup
from pipewave.tune.law.anchors import peaks_of
from pipewave.tune.user_kernels.gpu import FEW, ColdTimer, async_mode


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
        torch.cuda.init()
        self._engine.prepare()
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
        return self._engine.default(of, m)

    def time(self, of: Lookup, m: int, configs: Sequence[Mapping[str, int]]) -> list[tuple[float, ...]]:
        """µs of each configuration in this order, NaN where it does not run."""
        call = self._call(of, m)
        launches = {_values(config): partial(_under, self._engine.override(of, m, dict(config)), call)
                    for config in configs}  # fmt: skip
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
        as it is.
        """  # fmt: skip
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

    def _call(self, of: Lookup, m: int) -> Callable[[], Any]:
        """The engine's call for m tokens, on random values."""
        if (of, m) not in self._made:
            self._made = {(of, m): (self._experts if of.kind == "moe" else self._matmul)(of, m)}
            self._runs = {}
        return self._made[of, m]

    def _matmul(self, of: Lookup, m: int) -> Callable[[], Any]:
        torch, run = self._torch, self._engine.product()
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
    """Compile what calls would launch, beside each other where this Triton can, without the launches themselves."""
    mode = async_mode()
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

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:  # noqa: ARG001
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


def _under(context: Callable[[], AbstractContextManager[Any]], call: Callable[[], Any]) -> Any:
    with context():
        return call()
