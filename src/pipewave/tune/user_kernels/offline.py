"""Measure a kernel of the user's own ahead of time: at launches seen in a real run, or at sizes written down.

Every launch measured is appended to the store at once, so that a killed run goes on where it was, and several may share
the work. Then one sealed table is written, to ship with the kernel and to pin (`autotune(table=…)`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadFile, BadInput
from pipewave.tune import store
from pipewave.tune.source.formula import inputs_of
from pipewave.tune.source.inspect import arguments, expression_grid, tuned
from pipewave.tune.store import KindTable
from pipewave.tune.user_kernels.device import Device, Options
from pipewave.tune.user_kernels.hooks import launch_of, read_log
from pipewave.tune.user_kernels.kernel import Kind
from pipewave.tune.user_kernels.tuned import TunedKernel

TORCH = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn",
         "int4": "int8"}  # fmt: skip
TensorFactory = Callable[[Mapping[str, Any]], Any]  # a tensor as it was noted → one like it


@dataclass(frozen=True, slots=True)
class Noted:
    """A launch that can be made again: arguments as noted, and its grid under each configuration."""

    args: Mapping[str, Any]
    grid: Any
    record: Mapping[str, Any]


def kernel_of(named: str, device: Device, cache: str | Path | bool = True) -> TunedKernel:
    """The decorated kernel of `FILE.py:name`, to be measured on a device. Raises as `tuned`."""
    found = tuned(named)
    upstream, trips = (found.upstream, found.options.trips) if isinstance(found, TunedKernel) else (found, None)
    return TunedKernel(upstream, Options(0.0, trips, None, cache, device))


def from_log(source: Path, kernel: TunedKernel) -> list[Noted]:
    """Launches of a kernel that a real run noted. BadFile where there are none."""
    return [noted(record, kernel) for record in read_log(source, kernel.of.name)]


def noted(record: Mapping[str, Any], kernel: TunedKernel) -> Noted:
    """A launch as a log or a table has it. BadFile where it is of other configurations."""
    grids, configs = record["grids"], kernel.of.configs
    if len(grids) != len(configs):
        raise BadFile(f"the launch was noted with {len(grids)} configurations, {kernel.of.name} has {len(configs)}",
                      field="from_log")  # fmt: skip

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        sizes = zip(grids, configs, strict=True)
        fits = (size for size, config in sizes if all(meta.get(name, one) == one for name, one in config.items()))
        return tuple(next(fits, grids[0]))

    return Noted(record["args"], grid, record)


def from_shapes(source: Path) -> list[Noted]:
    """Launches written down as JSON: `{"grid": "cdiv(M, BM)", "launches": [{"M": 4096, "x": "bf16[4096,128]"}, …]}`."""
    try:
        body = json.loads(source.read_text())
        rows, grid = [dict(row) for row in body["launches"]], expression_grid(str(body["grid"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:  # not there, or not of this form
        raise BadFile(f'{source}: must be {{"grid": …, "launches": [{{…}}]}} ({problem})', field="shapes") from problem
    return [Noted(arguments([f"{name}={value}" for name, value in row.items()]), grid, {}) for row in rows]


def measure_all(
    kernel: TunedKernel, launches: Sequence[Noted], device: Device, make: TensorFactory, seconds: float = 120.0,
    clock: Callable[[], float] = time.monotonic,
) -> Path | None:  # fmt: skip
    """Measure what the store lacks until the time is spent, and write the table; its path, None where nothing ran."""
    end = clock() + seconds
    for one in launches:
        if clock() >= end:
            break
        named, numbers = _made(kernel, one, make)
        state = kernel.state(kernel.of.kind(named), one.grid, named, inputs_of(one.grid, named, kernel.of.flags))
        if all(dict(known) != numbers for known in state.numbers):
            counts = np.array(one.record["counts"]) if "counts" in one.record else state.formulas.counts(numbers)
            launch = launch_of(kernel, (), named, one.grid)
            kernel.timed(state, device, launch, numbers, counts, range(len(kernel.configs)))
    return write_table(kernel, device)


def _made(kernel: TunedKernel, one: Noted, make: TensorFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments by name with tensors like those noted, and the numbers of the launch."""
    named = {name: make(value) if (isinstance(value, dict) and "tensor" in value) or hasattr(value, "element_size")
             else value for name, value in one.args.items()}  # fmt: skip
    return named, dict(one.record.get("numbers") or inputs_of(one.grid, named, kernel.of.flags))


def write_table(kernel: TunedKernel, device: Device) -> Path | None:
    """Fit every kind that was measured and write the table beside the store."""
    path = kernel.path()
    kinds: dict[Kind, KindTable] = {}
    for kind, state in kernel.kinds.items():
        if state.measured:
            model, of, _ = state.fitted(device.peaks)
            kinds[kind] = KindTable(model, state.numbers, of.names)
    if path is None or not kinds:
        return None
    return store.write_table(path, kernel.of, device.env, kinds)


def on_cuda(value: Any) -> Any:
    """A tensor like the one noted, on the GPU. BadInput for a type that torch lacks."""
    import torch

    if not isinstance(value, dict):
        return torch.zeros(value.numel(), dtype=getattr(torch, TORCH.get(value.of, value.of)), device="cuda")
    kind = getattr(torch, str(value["tensor"]).removeprefix("torch."), None)
    if kind is None:
        raise BadInput(f"a tensor of {value['tensor']!r} cannot be made", field="args")
    strides = value.get("strides") or torch.empty(value["shape"], device="meta").stride()
    return torch.empty_strided(tuple(value["shape"]), tuple(strides), dtype=kind, device="cuda").zero_()
