"""Which configurations of a kernel are worth timing, said without a GPU: compiled here, ranked by physics.

Triton and ptxas run on a CPU. A binary tells its registers and its shared memory, and so how many blocks an SM holds;
the source tells blocks, trips, bytes and FLOPs; the GPU's peaks tell the rest. What nobody measured on that GPU is not
known closer than `SPREAD`: the ranking says what to time, not what is fastest. Its loss is that of `studies.tune_rank`.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadInput, MissingExtra
from pipewave.gpus import find
from pipewave.tune.law.anchors import peaks_of
from pipewave.tune.law.model import physics_us
from pipewave.tune.source.formula import formula
from pipewave.tune.source.inspect import check_blocks, complete, tuned
from pipewave.tune.source.launch_work import tensor_of
from pipewave.tune.source.traced import plain
from pipewave.tune.user_kernels.device import Built
from pipewave.tune.user_kernels.kernel import KernelDescription, described
from pipewave.tune.user_kernels.launch_formulas import OPTIONS
from pipewave.tune.user_kernels.measuring import resident

SPREAD = 0.16  # of the log of times within 1.5 of a launch's best about physics: `python -m studies.tune_rank`
# Loss of the best of the first so many against the best of all: mean, and what nine of ten launches stay below.
LOSSES: Mapping[int, tuple[float, float]] = {1: (0.43, 0.89), 2: (0.164, 0.456), 4: (0.042, 0.158), 8: (0.011, 0.036)}
TYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8e4nv", "fp64": "fp64", "int4": "i8", "int8": "i8",
         "int32": "i32", "int64": "i64"}  # fmt: skip
ALIGNED = [["tt.divisibility", 16]]


def kernel_of(named: str) -> KernelDescription:
    """The kernel of `FILE.py:name` with its configurations. BadInput where it is under no tuner."""
    found = tuned(named)
    return described(found.fn, [dict(one.all_kwargs()) for one in found.configs], found.keys)


def rank(of: KernelDescription, launches: Sequence[tuple[Any, Mapping[str, Any]]], gpu: str) -> list[dict[str, Any]]:
    """A row of each configuration, the most promising first, those that cannot run last: mean `us` over the launches
    by physics, with the bounds that two spreads give; what the compiler says of it; `error` where it does not compile,
    or does not fit an SM. `launches`: grid and arguments by name of each.

    Raises:
        UnknownGPU, BadInput: an argument is missing, or ptxas knows no such GPU. MissingExtra: without triton.
    """
    card = find(gpu)
    if card.vendor != "nvidia":
        raise BadInput(
            f"gpu = {card.name!r}: binaries are read off ptxas, which compiles for NVIDIA alone", field="gpu"
        )
    peaks = peaks_of(card.name)
    for _, named in launches:
        complete(of.inner, {*named, *of.configs[0], *of.heuristics})
    every = [[formula(of.inner, grid, named, config, of.flags, of.trips, of.heuristics).traced[1]
              for config in of.configs] for grid, named in launches]  # fmt: skip
    counts = np.array([[[float(plain(value)) for value in one] for one in launch] for launch in every])
    check_blocks(float(counts[..., 0].min()))
    capability = int(card.compute_capability)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        reports = list(pool.map(lambda config: compiled(of, launches[0][1], config, capability), of.configs))
    built, stack_bytes = [one for one, _ in reports], np.array([stack for _, stack in reports])
    errors = [one.error or (f"needs {one.smem_bytes} bytes of shared memory, an SM has {peaks.smem_bytes}"
                            if one.smem_bytes > peaks.smem_bytes else "") for one in built]  # fmt: skip
    warps = np.array([int(config.get("num_warps", 4)) for config in of.configs])
    held = resident(built, warps, peaks)
    # Each trip also writes and reads what a block keeps on its stack.
    counts[..., 4] += 2 * counts[..., 0] * counts[..., 1] * stack_bytes * 32 * warps
    us = physics_us(counts, held, peaks)
    mean, slower = np.exp(np.log(us).mean(axis=0)), np.log(us / us.min(axis=1, keepdims=True)).mean(axis=0)
    wide = float(np.exp(2 * SPREAD))
    return [{"configuration": " ".join(f"{name}={value}" for name, value in of.configs[i].items()),
             "us": float(mean[i]), "low_us": float(mean[i]) / wide, "high_us": float(mean[i]) * wide,
             "registers": built[i].registers, "smem_bytes": built[i].smem_bytes, "stack_bytes": int(stack_bytes[i]),
             "blocks_per_sm": int(held[i]), "error": errors[i]}
            for i in sorted(range(len(mean)), key=lambda i: (bool(errors[i]), float(slower[i])))]  # fmt: skip


def compiled(of: KernelDescription, named: Mapping[str, Any], config: Mapping[str, Any],
             capability: int) -> tuple[Built, int]:  # fmt: skip
    """What the compiler says of a configuration, and bytes of stack of a thread. MissingExtra without triton."""
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError:
        raise MissingExtra("compiling needs triton: pip install 'pipewave[gpu]'", field="kernel") from None
    parameters = inspect.signature(of.inner.fn).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
    given = {**defaults, **named, **config}
    given |= {name: work_out(given) for name, work_out in of.heuristics.items()}
    signature, constants, attributes = _signature(of, given)
    options = {name: config[name] for name in OPTIONS if config.get(name) is not None}
    try:
        made = triton.compile(ASTSource(of.inner, signature, constants, attributes),
                              target=GPUTarget("cuda", capability, 32), options=options)  # fmt: skip
    except Exception as problem:  # noqa: BLE001  the compiler raises whatever its passes raise
        return Built(error=f"{type(problem).__name__}: {problem}".splitlines()[0][:200]), 0
    registers, stack = resources(made.asm["cubin"])
    return Built(int(made.metadata.shared), registers), stack


def _signature(
    of: KernelDescription, given: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any], dict[Any, Any]]:
    """Types, constants and alignments of a launch's arguments, as Triton specialises them."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[Any, Any] = {}
    for place, name in enumerate(of.arg_names):
        value: Any = given.get(name)
        is_tensor, whole = tensor_of(value) is not None, type(value) is int
        if name in of.constants or (value is None or isinstance(value, str)) or (whole and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        if is_tensor:
            signature[name] = f"*{TYPES[getattr(value, 'of', '') or 'bf16']}"
        elif whole:
            signature[name] = "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
        else:
            signature[name] = "u1" if isinstance(value, bool) else "fp32"
        if is_tensor or (whole and value % 16 == 0):
            attributes[place,] = ALIGNED
    return signature, constants, attributes


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread, as Triton's `cuobjdump` says; 32 and 0 without that tool."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return 32, 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=False).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (32, 0)


def loss_of(count: int) -> tuple[float, float]:
    """Mean loss of timing the first so many only, and what nine of ten launches stay below."""
    return LOSSES[max(known for known in LOSSES if known <= max(count, 1))]
