"""vLLM's CUDA kernels between the matrix products. What they write in place lies in the scratch pool."""

from __future__ import annotations

from typing import Any

from pipewave.measure.impls import Prepared
from pipewave.measure.job import Case
from pipewave.measure.pools import Pools

EPSILON = 1e-6
PAGE = 16
POSITIONS = 65536


def rmsnorm(case: Case, pools: Pools) -> Prepared:
    """RMSNorm out of place, or fused with the residual addition in place."""
    from vllm import _custom_ops as ops

    rows, dim = case["rows"], case["dim"]
    weight = pools.take("weight", "bf16", dim)
    if case.get("fused_add"):
        x, residual = (pools.take("scratch", "bf16", rows, dim) for _ in range(2))
        return Prepared(lambda: ops.fused_add_rms_norm(x, residual, weight, EPSILON))
    source, out = pools.take("activation", "bf16", rows, dim), pools.take("scratch", "bf16", rows, dim)
    return Prepared(lambda: ops.rms_norm(out, source, weight, EPSILON))


def silu_and_mul(case: Case, pools: Pools) -> Prepared:
    """SiLU of the first half times the second."""
    import torch
    from vllm import _custom_ops as _registers_ops  # noqa: F401

    x = pools.take("activation", "bf16", case["rows"], 2 * case["dim"])
    out = pools.take("scratch", "bf16", case["rows"], case["dim"])
    return Prepared(lambda: torch.ops._C.silu_and_mul(out, x))


def rope(case: Case, pools: Pools) -> Prepared:
    """Rotary embedding (half-split) in place on queries and keys that are slices of one qkv tensor, as in a layer."""
    import torch
    from vllm import _custom_ops as ops

    rows, heads, kv_heads, width = case["rows"], case["heads"], case["kv_heads"], case["head_dim"]
    qkv = pools.take("scratch", "bf16", rows, (heads + 2 * kv_heads) * width)
    q, k, _ = qkv.split([heads * width, kv_heads * width, kv_heads * width], dim=-1)
    cache = _cos_sin(width, pools.device)
    positions = torch.arange(rows, device=pools.device) % POSITIONS
    return Prepared(lambda: ops.rotary_embedding(positions, q, k, width, cache, True))


def _cos_sin(width: int, device: str) -> Any:
    import torch

    rates = 10000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(POSITIONS, device=device)[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(torch.bfloat16)


def kv_write(case: Case, pools: Pools) -> Prepared:
    """`reshape_and_cache_flash`: new keys and values into pages scattered over a cache of twice the size."""
    import torch
    from vllm import _custom_ops as ops

    rows, kv_heads, width = case["rows"], case["kv_heads"], case["head_dim"]
    key, value = (pools.take("activation", "bf16", rows, kv_heads, width) for _ in range(2))
    pages = max(256, 2 * -(-rows // PAGE))
    keys, values = (pools.take("scratch", "bf16", pages, PAGE, kv_heads, width) for _ in range(2))
    slots = (torch.randperm(pages, device=pools.device)[:, None] * PAGE + torch.arange(PAGE, device=pools.device)).view(
        -1
    )
    slots, one = slots[:rows].contiguous(), torch.ones(1, device=pools.device)
    return Prepared(lambda: ops.reshape_and_cache_flash(key, value, keys, values, slots, "auto", one, one))
