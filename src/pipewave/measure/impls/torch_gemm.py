"""Matrix products through PyTorch: cuBLAS for bf16 and fp16, cuBLASLt or CUTLASS for fp8."""

from __future__ import annotations

from pipewave.measure.impls import Prepared
from pipewave.measure.job import Case
from pipewave.measure.pools import Pools


def linear(case: Case, pools: Pools) -> Prepared:
    """`F.linear`, what vLLM calls for unquantised layers."""
    from torch.nn.functional import linear as call

    dtype = case.get("dtype", "bf16")
    x = pools.take("activation", dtype, case["m"], case["k"])
    w = pools.take("weight", dtype, case["n"], case["k"])
    return Prepared(lambda: call(x, w))


def scaled_mm(case: Case, pools: Pools) -> Prepared:
    """`torch._scaled_mm` with one scale a tensor and fast accumulation, bf16 out."""
    return _scaled(case, pools, rowwise=False)


def scaled_mm_rowwise(case: Case, pools: Pools) -> Prepared:
    """`torch._scaled_mm` with a scale a token and a scale an output channel."""
    return _scaled(case, pools, rowwise=True)


def _scaled(case: Case, pools: Pools, *, rowwise: bool) -> Prepared:
    import torch

    m, n, k = case["m"], case["n"], case["k"]
    x = pools.take("activation", "fp8", m, k)
    w = pools.take("weight", "fp8", n, k).t()
    scale_a = torch.ones((m, 1) if rowwise else (), device=pools.device)
    scale_b = torch.ones((1, n) if rowwise else (), device=pools.device)

    def call() -> object:
        return torch._scaled_mm(x, w, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)

    return Prepared(call)
