"""How profiles show attention: names of kernels, and operators that hold heads, types and lengths."""

from __future__ import annotations

from pipewave.calls.attention import Attention
from pipewave.kernels.attention.lengths import VARLEN, Lengths, of_op, of_step
from pipewave.kernels.faces import KernelName, Profile
from pipewave.kernels.launched import Given, Launched, Op, Shaped, Step

NAMES = (
    KernelName(10, r"^triton_tem_\w*attention", "attention", "triton"),
    KernelName(
        60,
        r"FlashAttnFwdCombine|splitkv_combine|MergeStates|merge_attn_states|reduce_segments",
        "combine",
        "",
        "previous",
    ),
    KernelName(60, r"_fwd_kernel_stage2|_fwd_grouped_kernel_stage2", "combine", "", "previous"),
    KernelName(60, r"prepare_varlen_num_blocks|get_scheduler_metadata", "prepare", "", "next"),
    KernelName(60, r"FlashAttnFwdSm\d+|FlashAttentionForwardSm90", "attention", "fa3"),
    KernelName(60, r"FlashAttentionForwardSm100|flash_attn_cute", "attention", "fa4"),
    KernelName(60, r"flash_fwd_(splitkv_)?kernel|fmha_cutlassF|flash_attention_2", "attention", "fa2"),
    KernelName(
        60,
        r"Batch(Prefill|Decode)With|flashinfer::PrefillWith|SinglePrefillWith|SingleDecodeWith|PersistentKernelTemplate",
        "attention",
        "flashinfer",
    ),
    KernelName(
        60,
        r"kernel_unified_attention|_fwd_grouped_kernel_stage1|\b_fwd_kernel(?!_ep)|_paged_attn|att(entio)?n_fwd",
        "attention",
        "triton",
    ),
    KernelName(60, r"fmhaSm\d+|fmha_v2|masked_multihead_attention|Sm100FmhaFwd|kernel_mha", "attention", "trtllm"),
    KernelName(60, r"cudnn.*(sdpa|flash_fprop)", "attention", "cudnn"),
    KernelName(60, r"paged_attention_v2_reduce", "combine", "", "previous"),
    KernelName(60, r"paged_attention_v\d", "attention", "triton"),
)


def _read(launched: Launched, step: Step | None, given: Given) -> Shaped | None:
    if op := launched.op("aten::scaled_dot_product_attention"):
        return _dense(op, launched)
    op = launched.op(*VARLEN)
    if op and op.dims:
        return _call(op, of_op(op, given), launched, window=op.value(VARLEN[op.name].window_left))
    op = launched.op("vllm::unified_attention_with_output", "vllm::unified_attention")
    return _call(op, of_step(step, given), launched) if op and op.dims else None


def _call(op: Op, found: Lengths | None, launched: Launched, window: str = "") -> Shaped | None:
    """q [tokens, heads, dim]; keys [tokens, heads, dim] or paged [pages, page, heads, dim]."""
    q, k, dtype = op.shape(0), op.shape(1), op.dtype(0, launched)
    if found is None or len(q) != 3 or len(k) not in (3, 4) or dtype is None:
        return None
    call = Attention(
        found.q_lens,
        found.kv_lens,
        q[1],
        k[-2],
        q[2],
        window=int(window) + 1 if window.isdecimal() and len(window) < 10 else None,
        dtype=dtype,
        kv_dtype="fp8" if "Float8" in op.type(1) else None,
        page_size=k[1] if len(k) == 4 else None,
        impl=launched.impl,
    )
    return Shaped("attention", call, read=not found.note, note=found.note)


def _dense(op: Op, launched: Launched) -> Shaped | None:
    """PyTorch's operator: [batch, heads, length, dim]."""
    q, k, dtype = op.shape(0), op.shape(1), op.dtype(0, launched)
    if len(q) != 4 or len(k) != 4 or dtype is None or q[0] > 1 << 16:
        return None
    causal = op.value(5) == "True"
    call = Attention((q[2],) * q[0], (k[2],) * q[0], q[1], k[1], q[3], causal=causal, dtype=dtype, impl=launched.impl)
    return Shaped("attention", call)


PROFILE = Profile(NAMES, group=_read, anchors=("attention",))
