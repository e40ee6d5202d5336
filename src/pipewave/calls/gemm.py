"""Matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pipewave.calls.fields import Call, documented, of


@dataclass(frozen=True, slots=True)
class Gemm(Call):
    """y[m,n] = x[m,k] · W[n,k]ᵀ. `quantize`: the call also quantises x. `tile`, `ctas`: when known from a trace.

    A product that reads x in 16 bits (bf16, fp16, int4, mxfp4) quantises nothing, whatever `quantize` says.
    `sm_clock_mhz`: the SM clock during the call where it was read; null means a GPU that was idle before the call
    (`cold`) or is busy serving (`serving`). Other protocols take no notice of it.
    """

    kernel: ClassVar[str] = "gemm"
    m: int = of("int")
    n: int = of("int")
    k: int = of("int")
    quantize: bool = of("bool", False)
    tile: tuple[int, ...] | None = of("ints", None, length=3)
    ctas: int | None = of("int", None)
    sm_clock_mhz: float | None = of("float", None, low=50, high=10_000)


@documented
def gemm(m: int, n: int, k: int, **options: Any) -> Gemm:
    """A matrix product y[m,n] = x[m,k] · W[n,k]ᵀ.

    Args:
        m: rows of x and y (tokens).
        n: rows of W (output features).
        k: columns of x and W (input features).
        **options: fields of `Gemm`: `quantize` (the call quantises x too), `tile`, `ctas`, `sm_clock_mhz`, {options}.

    {call}

    Work: 2·m·n·k FLOPs; m·k + n·k + m·n elements in and out (`kernels/gemm/machine.py`).
    """
    return Gemm(m, n, k, **options)
