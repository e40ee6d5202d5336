"""Kernels that only stream memory: RoPE, embedding rows, KV-cache writes, sampling. Bytes are named by the caller."""

from __future__ import annotations

import numpy as np

from pipewave.calls import Elementwise
from pipewave.demand import Array, demand
from pipewave.gpus import GPU
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.elementwise_stream import Stream, describe, least_bytes, times
from pipewave.kernels.estimate import log2

IN_PLACE = ("rope",)
KNOWN = ("quantize", "rope", "kv_write")  # operations with measured rows; all others count as plain copies
LEAST_SHARE = -12.0  # log2


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """`weight_bytes` come from DRAM in serving, the other bytes were just written by the kernel before."""
    op = ctx.option("op", "elementwise")
    read, written = cols["bytes_read"], np.maximum(cols["bytes_written"], 1.0)
    work = Stream(cols["weight_bytes"], read, written, in_place=op in IN_PLACE)
    least = demand(len(read), dram=least_bytes(ctx.gpu, ctx.protocol, work), l2=work.moved, launch=1.0)
    moving = times(ctx, work)
    features = describe(ctx, work, moving) | _shares(work) | _rates(ctx.gpu, len(read))
    features |= {name: np.full(len(read), float(op == name)) for name in KNOWN}
    return Analysis(least, moving.base, features, "elementwise")


def _shares(work: Stream) -> dict[str, Array]:
    """Parts of the traffic that tell how long a row is: tables and indices come once a row."""
    unequal = np.abs(work.read - work.written)
    return {
        "log_fresh": np.maximum(log2(work.fresh / work.moved), LEAST_SHARE),
        "log_unequal": np.maximum(log2(unequal / work.moved), LEAST_SHARE),
    }


def _rates(gpu: GPU, n: int) -> dict[str, Array]:
    rates = {"log_sms": gpu.sms, "log_clock": gpu.sustained_clock_mhz, "log_dram_rate": gpu.dram_gbps}
    return {name: np.full(n, np.log2(rate)) for name, rate in rates.items()}


FAMILY = register(Family("elementwise", Elementwise, analyse, options=("op",), nets=("elementwise",)))
