"""GEMM: names of kernels in profiles, measured rows, the first page."""

from __future__ import annotations

import numpy as np

from pipewave.kernels.base import Analysis, Columns, Context
from pipewave.kernels.family_metadata import (
    Case,
    FamilyMetadata,
    Measurements,
    Page,
    Profile,
    Runner,
    names_of,
    operators_of,
)
from pipewave.kernels.gemm.machine import machine, tiling
from pipewave.physics.arith import ARRAY
from pipewave.physics.demand import Array

PROFILE = Profile(names_of("gemm"), anchors=("gemm",), operators=operators_of("gemm"))


OPERAND_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "int8": 1}


def _work(case: Case) -> tuple[float, float]:
    m, n, k = case["m"], case["n"], case["k"]
    size = OPERAND_BYTES[case.get("dtype", "bf16")]
    quantize = 3 * m * k if case.get("quantize") else 0
    return 2.0 * m * n * k, size * (m * k + n * k) + 2.0 * m * n + quantize


ROWS = {
    "gemm": Measurements(
        runners={
            "cublas": Runner("pipewave.measure.impls.torch_kernels", "linear", "torch"),
            "torch_scaled_mm": Runner("pipewave.measure.impls.torch_kernels", "scaled_mm", "torch"),
            "torch_scaled_mm_rowwise": Runner("pipewave.measure.impls.torch_kernels", "scaled_mm_rowwise", "torch"),
            "cutlass": Runner("pipewave.measure.impls.vllm_layers", "cutlass", "vllm"),
            "triton": Runner("pipewave.measure.impls.own_triton", "matmul", "triton"),
        },
        usual={"": "cublas", "fp8": "cutlass", "fp8_block": "cutlass", "int8": "cutlass"},
        work=_work,
        group=("n", "k"),
    )
}


def waves(cols: Columns, ctx: Context, _analysis: Analysis) -> Array:
    """Of one tile for all calls, so that steps are steps of the size and not of the choice: the known tile, else the
    candidate that does best over all of them. One is resident on an SM.
    """
    m, n, k = cols["m"], cols["n"], cols["k"]
    at = machine(ctx)
    known = ctx.option("tile")
    if known:
        return np.asarray(np.ceil(m / known[0]) * np.ceil(n / known[1]) / at.sms)
    tiles = tiling(m, n, k, at, ARRAY)
    best = int(np.argmin(np.log(np.stack(tiles.seconds)).sum(axis=1)))
    return np.asarray(tiles.per_sm[best])


PAGE = Page({"n": 4096, "k": 4096}, {"field": "m", "from": 1, "to": 8192}, waves)
GEMM = FamilyMetadata(PROFILE, ROWS, PAGE)
