"""Many small products of one shape in one launch, such as those that absorb MLA's up-projections, one a head."""

from __future__ import annotations

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.calls.operators import BatchedGemm
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.stages import Stages, product
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.launch import log2

NET = "batched_gemm"


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    batch, m, n, k = (cols[name] for name in ("batch", "m", "n", "k"))
    part = product("products", m, n, k, ctx.dtype, batch)
    # Operands may come quantised, whatever this stack does.
    border = Stream(batch * n * k * OPERAND_BYTES[ctx.dtype], batch * m * k * OPERAND_BYTES[ctx.dtype], part.written)
    stages = Stages(ctx, len(m), (part,), border, 2.0 * batch * m * n * k)
    moved = ACTIVATION_BYTES * batch * (m * k + m * n) + part.fresh
    features = {
        "log_batch": np.minimum(log2(batch), 10.0),
        "log_m": np.minimum(log2(m), 18.0),
        "log_n": np.clip(log2(n), 4.0, 15.0),
        "log_k": np.clip(log2(k), 4.0, 15.0),
        "log_blocks_per_sm": np.clip(log2(part.blocks / ctx.gpu.sms), -8.0, 12.0),
        "in_l2": np.clip(log2(moved / (ctx.gpu.l2_mb * 2.0**20)), -12.0, 8.0),
    }
    return stages.analysis(features, NET)


FAMILY = Family(
    NET,
    BatchedGemm,
    analyse,
    nets=(NET,),
    reads="operands",
    example="pipewave predict batched_gemm 16 64 512 128 --gpu H200",
)
