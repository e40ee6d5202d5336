"""PyTorch's scaled_dot_product_attention with one backend forced; equal lengths, contiguous keys and values."""

from __future__ import annotations

from pipewave.measure.impls import Prepared, Skip
from pipewave.measure.job import Case
from pipewave.measure.pools import Pools


def flash(case: Case, pools: Pools) -> Prepared:
    """The FlashAttention-2 backend."""
    return _forced(case, pools, "FLASH_ATTENTION")


def cudnn(case: Case, pools: Pools) -> Prepared:
    """The cuDNN backend."""
    return _forced(case, pools, "CUDNN_ATTENTION")


def _forced(case: Case, pools: Pools, backend: str) -> Prepared:
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
