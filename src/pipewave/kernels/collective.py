"""Collectives: a latency per step and a share of the link's bandwidth, with a small-message regime."""

from __future__ import annotations

from collections.abc import Callable

from pipewave.calls import AllGather, AllReduce, AllToAll, Collective, ReduceScatter, SendRecv
from pipewave.demand import Array, demand
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.estimate import log2

Share = Callable[[Array], Array]


def _ring(world: Array) -> Array:
    return (world - 1.0) / world


# Bytes each rank must send, as a share of the contract's `bytes` (nccl-tests, PERFORMANCE.md).
TRAFFIC: dict[type[Collective], Share] = {
    AllReduce: lambda world: 2.0 * _ring(world),
    AllGather: _ring,
    ReduceScatter: _ring,
    AllToAll: _ring,
    SendRecv: lambda world: 1.0 + 0.0 * world,
}
STEP_S = {"nvlink": 4e-6, "pcie": 9e-6}


def _analyse(call: type[Collective]) -> Callable[[Columns, Context], Analysis]:
    def analyse(cols: Columns, ctx: Context) -> Analysis:
        sent = cols["bytes"] * TRAFFIC[call](cols["world"])
        work = demand(len(sent), link=sent, launch=1.0)
        base = STEP_S[ctx.gpu.link] + sent / (0.8e9 * ctx.gpu.link_gbps)
        features = {"bytes": log2(cols["bytes"]), "world": log2(cols["world"])}
        return Analysis(work, base, features, call.kernel)

    return analyse


FAMILIES = tuple(register(Family(call.kernel, call, _analyse(call), nets=(call.kernel,))) for call in TRAFFIC)
