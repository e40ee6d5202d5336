"""Products and attention through PyTorch: cuBLAS, cuBLASLt, CUTLASS, and one backend of SDPA forced."""

from __future__ import annotations

from functools import partial

from pipewave.measure.impls import Pools, Prepared, Skip
from pipewave.measure.plan import Case


def linear(case: Case, pools: Pools) -> Prepared:
    """`F.linear`, what vLLM calls for unquantised layers."""
    from torch.nn.functional import linear as call

    dtype = case.get("dtype", "bf16")
    x = pools.take("activation", dtype, case["m"], case["k"])
    w = pools.take("weight", dtype, case["n"], case["k"])
    return Prepared(lambda: call(x, w))


def scaled_mm(case: Case, pools: Pools) -> Prepared:
    """`torch._scaled_mm` with fast accumulation, bf16 out, one scale a tensor."""
    import torch

    m, n, k = case["m"], case["n"], case["k"]
    x = pools.take("activation", "fp8", m, k)
    w = pools.take("weight", "fp8", n, k).t()
    one = torch.ones((), device=pools.device)
    return Prepared(lambda: torch._scaled_mm(x, w, one, one, out_dtype=torch.bfloat16, use_fast_accum=True))


def sdpa(case: Case, pools: Pools, *, backend: str) -> Prepared:
    """Attention by one backend of PyTorch, whole prompts of equal length."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q_lens, kv_lens = case["q_lens"], case["kv_lens"]
    if len(set(q_lens)) > 1 or list(q_lens) != list(kv_lens):
        raise Skip("SDPA is measured on whole prompts of equal length")
    batch, length, width = len(q_lens), q_lens[0], case["head_dim"]
    q = pools.take("activation", case["dtype"], batch, length, case["heads"], width).transpose(1, 2)
    k, v = (
        pools.take("weight", case["dtype"], batch, length, case["kv_heads"], width).transpose(1, 2) for _ in range(2)
    )
    causal, grouped = bool(case.get("causal", True)), case["heads"] != case["kv_heads"]
    chosen = getattr(SDPBackend, backend)

    def call() -> object:
        with sdpa_kernel(chosen):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return Prepared(call)


flash = partial(sdpa, backend="FLASH_ATTENTION")
cudnn = partial(sdpa, backend="CUDNN_ATTENTION")
