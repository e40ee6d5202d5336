"""Dispatch and combine of expert parallelism: copies of tokens over NVLink and network, moved by a few SMs.

High throughput (DeepEP) sends each token once to every rank that holds one of its experts, low latency once for every
expert, without waiting for counts; TensorRT-LLM writes over NVLink from one side or both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.calls.dtypes import OPERAND_BYTES, STREAMED_DTYPES
from pipewave.calls.operators import EXCHANGES, MoeAllToAll
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.expert_exchange.copies import Copies, copies, rates
from pipewave.kernels.stages import LOG_TIME, columns_of
from pipewave.physics.demand import Array, demand
from pipewave.physics.launch import log2
from pipewave.physics.overlap import overlapped

NET = "moe_all_to_all"
LINK_SHARE = 0.75  # of a link's rate, as NCCL's Simple protocol reaches
SM_RATE = 18e9  # bytes/s that one SM moves: 4 SMs send 76 GB/s of an H100's 450
USUAL_SMS = {"deepep_ht": 20.0, "deepep_v2": 64.0}
# Start of a kernel among ranks: counts or flags go round before and after the data.
START_S = {"deepep_ht": 25e-6, "deepep_v2": 80e-6, "deepep_ll": 10e-6}
START_OTHER_S, STEP_ACROSS_S = 8e-6, 10e-6


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    backend = str(ctx.option("backend", EXCHANGES[0]))
    sent = copies(ctx.gpu, cols["topk"], cols["ep"], cols["nodes"], backend)
    size = cols["tokens"] * cols["hidden"] * OPERAND_BYTES[ctx.dtype]
    start = START_S.get(backend, START_OTHER_S) + STEP_ACROSS_S * (cols["nodes"] > 1.0)
    inside, across, sms = _times(cols, ctx, sent, size, backend)
    base = start + overlapped(3, inside, across, sms)
    least = demand(len(size), link=size * sent.least, launch=1.0)
    features = _sizes(cols, ctx, size, backend) | _shares(base, inside, across, sms)
    return Analysis(least, base, columns_of(features, len(size)), NET)


def _times(cols: Columns, ctx: Context, sent: Copies, size: Array, backend: str) -> tuple[Array, Array, Array]:
    """Seconds on the link, on the network, and of the SMs that copy."""
    link, network = rates(ctx.gpu)
    usual = USUAL_SMS.get(backend, 0.4 * ctx.gpu.sms)
    sms = np.where(cols["sms"] > 0.0, cols["sms"], usual)
    moved = size * np.maximum(sent.inside, sent.across)
    return (
        size * sent.inside / (LINK_SHARE * link),
        size * sent.across / (LINK_SHARE * network),
        moved / (SM_RATE * sms),
    )


def _sizes(cols: Columns, ctx: Context, size: Array, backend: str) -> dict[str, Any]:
    flags: dict[str, Any] = {f"by_{name}": float(name == backend) for name in EXCHANGES}
    flags["combine"] = float(ctx.option("direction") == "combine")
    flags |= {f"combine_{name}": flags["combine"] * flags[f"by_{name}"] for name in EXCHANGES}
    return flags | {
        "log_tokens": np.minimum(log2(cols["tokens"]), 18.0),
        "log_hidden": np.clip(log2(cols["hidden"]), 9.0, 15.0),
        "log_bytes": np.clip(log2(size), 8.0, 34.0),
        "log_topk": np.minimum(log2(cols["topk"]), 6.0),
        "log_ep": np.minimum(log2(cols["ep"]), 7.0),
        "log_nodes": np.minimum(log2(cols["nodes"]), 4.0),
        "log_local": np.clip(log2(cols["experts"] / cols["ep"]), 0.0, 8.0),
        "log_sms": np.where(cols["sms"] > 0.0, np.minimum(log2(np.maximum(cols["sms"], 1.0)), 8.0), 0.0),
        "bytes_each": np.full(len(size), OPERAND_BYTES[ctx.dtype]),
    }


def _shares(base: Array, inside: Array, across: Array, sms: Array) -> dict[str, Array]:
    times = {"base": base, "inside": inside, "across": across + 1e-8, "copying": sms}
    return {f"log_{name}": np.clip(log2(took), *LOG_TIME) for name, took in times.items()} | {
        "share_inside": inside / base,
        "share_across": across / base,
        "share_copying": sms / base,
    }


FAMILY = Family(
    NET,
    MoeAllToAll,
    analyse,
    options=("direction", "backend"),
    nets=(NET,),
    dtypes=STREAMED_DTYPES,
    selected_by=("backend", "direction"),
    reads="operands",
    example="pipewave predict moe_all_to_all 4096 7168 8 256 8 --gpu H100",
)
