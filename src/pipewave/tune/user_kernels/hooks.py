"""What happens around launches: hooks, the user's own benchmark, the store, upstream's cache and listener, the log.

With PIPEWAVE_TUNE_LOG set to a file, every new launch of a real run is noted there as a line of JSON, which
`pipewave tune profile FILE.py:kernel --from-log FILE` then measures.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadFile
from pipewave.files import whole
from pipewave.tune import store
from pipewave.tune.law.anchors import Floats
from pipewave.tune.source.launch_work import tensor_of
from pipewave.tune.store import Measured
from pipewave.tune.user_kernels.call_sites import named
from pipewave.tune.user_kernels.device import Built, Device, Launch
from pipewave.tune.user_kernels.kernel import KernelDescription
from pipewave.tune.user_kernels.measuring import Timed

VARIABLE = "PIPEWAVE_TUNE_LOG"
QUANTILES = (0.5, 0.2, 0.8)  # that Triton asks a benchmark for


def launch_of(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any) -> Launch:
    """A launch of a `TunedKernel` to measure, with the hooks that upstream runs around each. A configuration's own hook
    runs before it is compiled too: it may set what the binary depends on, such as the block of a host descriptor.
    """
    by_name = named(kernel.of, args, kwargs)

    def full(index: int) -> dict[str, Any]:
        return {**by_name, **kernel.of.configs[index]}

    def prepare(index: int) -> None:
        hook = kernel.configs[index].pre_hook
        if hook is not None:
            hook(full(index))

    def before(index: int) -> None:
        prepare(index)
        kernel.upstream.pre_hook(full(index))

    def after(index: int, failed: Exception | None = None) -> None:
        kernel.upstream.post_hook(full(index), exception=failed)

    return Launch(kernel.fn, grid, args, kwargs, kernel.of.configs, before, after, prepare)


def failures_told(upstream: Any, launch: Launch, timed: Timed) -> None:
    """Run the user's own hooks around configurations that have no binary, as upstream does."""
    if getattr(upstream, "user_defined_post_hook", False):
        for index, built in timed.built.items():
            if built.error:
                launch.before(index)
                launch.after(index, RuntimeError(built.error))


def user_benchmark(upstream: Any) -> Callable[..., Any] | None:
    """The `do_bench` that the user gave; not the one that Triton makes of `warmup` and `rep`."""
    old_ways = (getattr(upstream, name, None) for name in ("num_warmups", "num_reps", "use_cuda_graph"))
    return None if any(old_ways) else getattr(upstream, "_do_bench", None)


class Benched:
    """A device whose times come from the benchmark that the user gave: `do_bench(call, quantiles=…)`, in ms."""

    def __init__(self, device: Device, bench: Callable[..., Any]) -> None:
        self.peaks, self.env, self.idle = device.peaks, device.env, device.idle
        self._device, self._bench = device, bench
        self._known: dict[int, float] = {}
        self._launch: Launch | None = None

    def build(self, launch: Launch, configs: Sequence[int]) -> dict[int, Built]:
        """Compile configurations."""
        return self._device.build(launch, configs)

    def time(self, launch: Launch, order: Sequence[int]) -> list[float]:
        """µs of each; asked once a launch, for such a benchmark repeats by itself."""
        if launch is not self._launch:
            self._launch, self._known = launch, {}
        for index in order:
            if index not in self._known:
                self._known[index] = self._one(launch, index)
        return [self._known[index] for index in order]

    def _one(self, launch: Launch, index: int) -> float:
        given = {**launch.kwargs, **launch.configs[index]}

        def call() -> None:
            launch.before(index)
            launch.fn.run(*launch.args, grid=launch.grid, warmup=False, **given)
            launch.after(index)

        found = self._bench(call, quantiles=QUANTILES)
        return 1e3 * float(found[0] if isinstance(found, list | tuple) else found)


def kept(kernel: Any, one: Measured) -> None:
    """Append a measured launch of a `TunedKernel` to its store; a full disk costs the record, not the launch."""
    path, device = kernel.path(), kernel.tuned_on
    if path is None or device is None:
        return
    try:
        store.append(path, kernel.of, device.env, one)
    except OSError as problem:
        warnings.warn(f"{kernel.of.name}: what was measured is not kept: {problem}", stacklevel=2)


def announced(kernel: Any, by_name: Mapping[str, Any], timed: Timed, best: int) -> None:
    """Leave what upstream leaves after it measured: `cache` by its key, `configs_timings`, and a call of the listener
    that Triton knows (`triton.knobs.autotuning.listener`).
    """
    given = {name: value for name, value in by_name.items() if name in kernel.arg_names}
    types = [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
    key = (*(given[name] for name in kernel.keys if name in given), *types)
    kernel.cache[key] = kernel.configs[best]
    ms = [value / 1e3 for value in timed.us.tolist()]
    kernel.configs_timings = {config: [one, one, one] for config, one in zip(kernel.configs, ms, strict=True)
                              if one == one}  # fmt: skip
    try:
        from triton import knobs
    except ImportError:
        return
    listener = getattr(knobs.autotuning, "listener", None)
    if listener is not None:
        listener(fn=kernel.of.inner, key=key, best_config=kernel.configs[best],
                 configs_timings=kernel.configs_timings, duration=timed.seconds, cache_hit=False)  # fmt: skip


def noted(target: Path, of: KernelDescription, named: Mapping[str, Any], grid: Any, numbers: Mapping[str, Any],
          counts: Floats) -> None:  # fmt: skip
    """Append a launch as one line, in one write, so that processes do not mix theirs."""
    given = [{**named, **config} for config in of.configs]
    sizes = [grid(each) if callable(grid) else grid for each in given]
    grids = [[int(extent) for extent in (size if isinstance(size, tuple | list) else (size,))] for size in sizes]
    record = {"kernel": of.name, "source_sha256": of.source_sha256, "args": {n: _plain(v) for n, v in named.items()},
              "grids": grids, "numbers": dict(numbers), "counts": np.round(counts, 6).tolist()}  # fmt: skip
    line = json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _plain(value: Any) -> Any:
    """An argument as text that makes another like it: a tensor by type and extents."""
    tensor = tensor_of(value)
    if tensor is None:
        return value if isinstance(value, int | float | str | bool) or value is None else str(value)
    of = getattr(value, "base", value) if hasattr(value, "block_shape") else value
    extents = list(getattr(of, "shape", [tensor.elements]))
    return {"tensor": str(getattr(of, "dtype", tensor.element_bytes)), "shape": [int(extent) for extent in extents],
            "strides": [int(step) for step in of.stride()] if hasattr(of, "stride") else None}  # fmt: skip


def read_log(source: Path, kernel: str) -> list[dict[str, Any]]:
    """Launches of a kernel, each once. BadFile where there is no such file or a line is no record."""
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(whole.read(source, "from_log").splitlines(), 1):
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as problem:
            raise BadFile(f"{source}:{number}: no launch ({problem})", field="from_log") from problem
        if isinstance(record, dict) and "args" in record and record.get("kernel") == kernel:
            found[line] = record
    if not found:
        raise BadFile(
            f"{source} has no launch of {kernel}; run your program with {VARIABLE}={source}", field="from_log"
        )
    return list(found.values())
