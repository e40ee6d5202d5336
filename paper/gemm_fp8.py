"""FP8 block-scaled GEMM (vLLM's CUTLASS kernel on Hopper): fixed 128 x 128 x 128 tiles in hardware waves.

Not modelled by the paper: the block scales and the bf16 output.
"""

from __future__ import annotations

from paper.demand import Array, Demand, Load, ceil_div
from paper.hardware import Hardware

TILE = 128


def demand(hw: Hardware, *, m: Array, n: Array, k: Array) -> Demand:
    """Demand of y[m,n] = x[m,k]·W[k,n] with one-byte operands."""
    tiles_m, tiles_n = ceil_div(m, TILE), ceil_div(n, TILE)
    padded_k = TILE * ceil_div(k, TILE)
    waves = ceil_div(tiles_m * tiles_n, hw.sms)
    return Demand(
        tensor_dtype="fp8",
        tensor_ops=Load(2 * TILE * TILE * tiles_m * tiles_n * padded_k, 2 * TILE * TILE * padded_k * waves),
        read_bytes=Load(TILE * (tiles_m + tiles_n) * padded_k, 2 * TILE * padded_k * waves),
    )
