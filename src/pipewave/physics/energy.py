"""How a board at its power limit gives way, and joules of FLOPs by architecture.

Kernels measured one by one after a flush run at burst clocks. Back to back, the board holds its power limit by lowering
the clock: an H200 multiplies bf16 at 778 TFLOP/s for a few calls and at 660 for good (1470 MHz, 691 W,
`data/measured/h200/microbench.json`). Energy adds up over a step, so kernels that idle the tensor cores pay for those
that do not. `power.py` counts the joules.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pipewave.errors import BadInput, UnknownGPU
from pipewave.gpus import GPU, find
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.overlap import overlapped

SHARPNESS = 20  # of the bend from the sum of kernels to the power limit
# Time goes with this root of the power that work would draw over what the board has (`python -m qa.energy limit`).
LIMIT_EXPONENT = 3.5
# µs at the limit that a board draws beyond it before its clock gives way. Prompts of 50 ms alone, between decodes or
# idle, take 4 % less than one after another (H200: `data/measured/h200/engine` beside `steady`); of a second, as much.
SLACK_US = 10_000.0
LEAST_LIMIT = 0.25  # of a board's own power limit: no clock is low enough to hold less
# Of a product alone, over before the board has averaged its power: joules of a 16-bit dense FLOP by tensor instruction,
# of a byte of DRAM, and the share of idle watts. A robust fit of rows of five architectures (`studies.gemm_base`).
PRODUCT_FLOP_J: Mapping[str, float] = {"mma": 1.25e-12, "wgmma": 0.68e-12, "tcgen05": 0.43e-12}
PRODUCT_BYTE_J, PRODUCT_IDLE = 6e-12, 0.2


class Work(NamedTuple):
    """What the implementation of calls really does, per call; a `Demand` holds the least that any must do."""

    flops: Any  # on the tensor cores, two per multiply-add, without the padding of tiles
    dram: Any  # bytes exchanged with DRAM
    l2: Any  # bytes to and from SMs, each operand once: what tiles read again is counted with FLOPs
    product: str = ""  # type of the products where it is not that of the call

    def laid_out(self, calls: int) -> Work:
        """As arrays over `calls`, from amounts some of which may be numbers that hold for all."""
        amounts = np.empty((3, calls))
        amounts[0], amounts[1], amounts[2] = self.flops, self.dram, self.l2
        return Work(amounts[0], amounts[1], amounts[2], self.product)


@lru_cache(maxsize=256)
def joules_per_flop(gpu: GPU, dtype: str, wide_j: float | None = None) -> float:
    """Joules of one dense FLOP of a type: power of the tensor cores is the same at the peak of each.

    `wide_j`: of a 16-bit FLOP; that of the architecture where none is given.
    """
    wide = gpu.peak_flops("bf16" if gpu.supports("bf16") else "fp16")
    return (wide_j or gpu.traits.joules_per_flop) * wide / gpu.peak_flops(dtype)


@lru_cache(maxsize=1024)
def product_w(gpu: GPU) -> float:
    """Watts that the board has for a product alone; under another limit as many as its clocks fall."""
    own = as_made(gpu).tdp_w
    left = max(gpu.tdp_w / own, LEAST_LIMIT) - PRODUCT_IDLE
    return float((left / (1.0 - PRODUCT_IDLE)) ** (1.0 / LIMIT_EXPONENT) * (1.0 - PRODUCT_IDLE) * own)


@lru_cache(maxsize=256)
def as_made(gpu: GPU) -> GPU:
    """The part that a what-if changes."""
    try:
        return find(gpu.origin) if gpu.origin else gpu
    except UnknownGPU:
        return gpu


def limited(gpu: GPU, power_limit_w: float | None) -> GPU:
    """The GPU under another power limit, as `nvidia-smi -pl` sets it. Raises BadInput for one that no board holds."""
    if power_limit_w is None:
        return gpu
    least, most = LEAST_LIMIT * gpu.tdp_w, gpu.tdp_w
    if not least <= power_limit_w <= most:
        must = f"power_limit_w = {power_limit_w:g}: must be from {least:g} to {most:g} W on a {gpu.name}"
        raise BadInput(must, field="power_limit_w")
    return gpu.what_if(tdp_w=power_limit_w)


def limited_us(kernel_us: Any, at_limit_us: Any, xp: Arith = ARRAY, slack_us: Any = 0.0) -> Any:
    """Time of kernels that take `kernel_us` at burst clocks, and whose joules take `at_limit_us` at the power limit, of
    which the board draws `slack_us` beyond it.
    """
    over = overlapped(SHARPNESS, 1.0, at_limit_us / xp.maximum(kernel_us + slack_us, 1e-9), xp=xp)
    return kernel_us * over ** (1.0 / LIMIT_EXPONENT)
