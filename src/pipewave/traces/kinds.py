"""What kernel names mean, as data: the first pattern found in a name decides. Names carry templates and arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kernel is. `role`: its part in a model; `family`: what predicts it (None: nothing does); `impl`: whose.

    `joins`: the kernel belongs to the call of the `previous` or `next` kernel of its family.
    """

    pattern: str
    role: str
    family: str | None
    impl: str | None = None
    joins: str = ""


def _kinds(family: str | None, *rows: tuple[str, ...]) -> tuple[Kind, ...]:
    return tuple(Kind(row[0], row[1], family, *row[2:]) for row in rows)


# Templates of torch.compile carry the operator they replace.
TEMPLATES = (
    *_kinds("attention", (r"^triton_tem_\w*attention", "attention", "triton")),
    *_kinds("gemm", (r"^triton_tem_\w*mm_", "gemm")),
)
# Kernels of other families contain the words of GEMMs and copies in their templates, so the order matters.
COLLECTIVES = (
    *_kinds(
        "all_reduce",
        (r"nccl(Dev)?Kernel_AllReduce", "all_reduce", "nccl"),
        (r"cross_device_reduce|allreduce_fusion|multimem_all_reduce|(one|two)_shot_all_reduce", "all_reduce", "custom"),
        (r"AllReduceKernel|lamport|customAllReduce", "all_reduce", "custom"),
    ),
    *_kinds("all_gather", (r"nccl(Dev)?Kernel_AllGather|multimem_all_gather", "all_gather", "nccl")),
    *_kinds("reduce_scatter", (r"nccl(Dev)?Kernel_ReduceScatter", "reduce_scatter", "nccl")),
    *_kinds(
        "all_to_all",
        (r"nccl(Dev)?Kernel_AllToAll", "all_to_all", "nccl"),
        (r"deep_ep::.*(dispatch|combine)|moeAllToAll", "all_to_all", "custom"),
    ),
    *_kinds("send_recv", (r"nccl(Dev)?Kernel_SendRecv", "send_recv", "nccl")),
    *_kinds(None, (r"nccl", "collective")),
)
# Layers with a state instead of a cache, which nothing here predicts.
STATES = _kinds(
    None,
    (r"causal_conv1d|selective_(scan|state)|chunk_(scan|state|fwd|cumsum)|state_passing|delta_rule|wkv", "state_space"),
)
MLA = _kinds(
    "mla",
    (r"flash_fwd_mla_combine|mla_combine|MLA.*[Rr]eduction|mla.*_stage2", "mla_combine", "", "previous"),
    (r"get_mla_metadata", "mla_prepare", "", "next"),
    (
        r"splitkv_mla|flash_mla|FlashMLA|BatchMLA|cutlass_mla|Sm100FmhaMla|mla_decode|fmhaSm100.*(Mla|HQk576)",
        "mla",
        "flashmla",
    ),
)
ATTENTION = _kinds(
    "attention",
    (r"FlashAttnFwdCombine|splitkv_combine|MergeStates|merge_attn_states|reduce_segments", "combine", "", "previous"),
    (r"_fwd_kernel_stage2|_fwd_grouped_kernel_stage2", "combine", "", "previous"),
    (r"prepare_varlen_num_blocks|get_scheduler_metadata", "prepare", "", "next"),
    (r"FlashAttnFwdSm\d+|FlashAttentionForwardSm90", "attention", "fa3"),
    (r"FlashAttentionForwardSm100|flash_attn_cute", "attention", "fa4"),
    (r"flash_fwd_(splitkv_)?kernel|fmha_cutlassF|flash_attention_2", "attention", "fa2"),
    (
        r"Batch(Prefill|Decode)With|flashinfer::PrefillWith|SinglePrefillWith|SingleDecodeWith|PersistentKernelTemplate",
        "attention",
        "flashinfer",
    ),
    (
        r"kernel_unified_attention|_fwd_grouped_kernel_stage1|\b_fwd_kernel(?!_ep)|_paged_attn|att(entio)?n_fwd",
        "attention",
        "triton",
    ),
    (r"fmhaSm\d+|fmha_v2|masked_multihead_attention|Sm100FmhaFwd|kernel_mha", "attention", "trtllm"),
    (r"cudnn.*(sdpa|flash_fprop)", "attention", "cudnn"),
    (r"paged_attention_v2_reduce", "combine", "", "previous"),
    (r"paged_attention_v\d", "attention", "triton"),
)
MOE = (
    *_kinds(
        "fused_moe",
        (r"moe_align_block_size|count_and_sort_expert_tokens|moe_permute|expandInputRows", "moe_prepare", "", "next"),
        (r"prepare_moe_input|routingIndices|_routing_(compute|memset)|_combined_routing", "moe_prepare", "", "next"),
        (r"moe_sum|moe_unpermute|finalizeMoeRouting|sum_reduce_kernel|ep_scatter|ep_gather", "moe_sum", "", "previous"),
        (r"moe::dev::finalize", "moe_sum", "", "previous"),
        (
            r"fused_moe_kernel|grouped_gemm|moe_wna16|MoeMarlin|Marlin_moe|moe_gemm|GroupProblemShape|matmul_ogs",
            "moe",
            "triton",
        ),
        (r"m_grouped_\w*gemm|deep_gemm::GemmType\)[1-9]|bmm_.*(swiGlu|dynBatch|routeAct)", "moe", "triton"),
    ),
    *_kinds(
        "elementwise",
        (r"topkGating|topk_softmax|moeSoftmax|moeTopK|grouped_topk|topk_sigmoid|biased_topk", "topk"),
        (r"moe_fused_gate|fused_topk|^_topk_forward", "topk"),
    ),
)
NORMS = _kinds(
    "rmsnorm",
    (r"fused_add_rms_norm|FusedAddRMSNorm|fused_add_rmsnorm|add_rmsnorm", "fused_add_norm", "vllm"),
    (r"rms_norm|RMSNormKernel|rmsnorm|RmsNorm", "norm", "vllm"),
    (r"layer_norm|LayerNorm", "norm", "torch"),  # moves the same bytes
)
# Fusions of torch.compile carry the operators they fuse, or nothing.
FUSED = (
    *_kinds("elementwise", (r"^triton_\w*embedding\w*rms_norm|^triton_\w*embedding", "embedding_norm", "triton")),
    *_kinds(
        "rmsnorm",
        (r"^triton_\w*(fused_add_rms_norm|add\w*rms_norm|rsqrt\w*add|add\w*rsqrt)", "fused_add_norm", "triton"),
    ),
    *_kinds("rmsnorm", (r"^triton_\w*(rms_norm|rsqrt)", "norm", "triton")),
    *_kinds("silu_and_mul", (r"^triton_\w*(silu|swiglu|gelu)", "act", "triton")),
    *_kinds(
        "elementwise", (r"^triton_red_|^triton_per_", "fused_reduction", "triton"), (r"^triton_poi_", "fused", "triton")
    ),
)
POINTWISE = (
    *_kinds("silu_and_mul", (r"act_and_mul|silu_(and_)?mul|swiglu|SiluAndMul|doActivation", "act", "vllm")),
    *_kinds(
        "elementwise",
        (r"rotary_embedding|ApplyRotary|[Rr]ope(?!rt)|apply_rotary", "rope", "vllm"),
        (
            r"reshape_and_cache|concat_and_cache|AppendPagedKVCache|store_kv|set_kv_buffer|set_mla_kv",
            "kv_write",
            "vllm",
        ),
        (
            r"scaled_fp8_quant|per_token_group_quant|per_token_quant|quantize_(kernel|with)|cvt_fp16_to_fp4|scaled_quant",
            "quantize",
        ),
        (
            r"argmax|ArgMax|[Ss]ampling|TopPRenorm|TopKMask|top_k_top_p|_topk_topp|softmax|SoftMax|multinomial|gumbel",
            "sample",
        ),
        (r"^_(apply_write|prepare_|combine_sampled|gather_block|compute_slot|post_update)|slot_mapping", "bookkeeping"),
        (r"req_to_token|flashinfer_kv_indices|^compute_position|^alloc_(extend|decode)|get_last_loc", "bookkeeping"),
        (r"vectorized_gather_kernel|indexSelect|embedding|gather", "gather"),
        (r"index_elementwise|index_kernel", "index"),
    ),
)
GEMMS = _kinds(
    "gemm",
    (r"splitKreduce|splitK_reduce|splitk_reduce|reduce_1Block_kernel", "gemm_reduce", "", "previous"),
    (r"nvjet", "gemm", "cublas"),
    (r"xmma_gemm|s\d+gemm|[hsi]\d*gemm_|gemv|gemmk1|gemmSN|dot_kernel|cublas", "gemm", "cublas"),
    (r"cutlass_3x_gemm|cutlass_\d+_(tensorop|wmma)|cutlass.*[Gg]emm|GemmUniversal|cutlass_scaled", "gemm", "cutlass"),
    (r"^(gemm|bmm)_[A-Z]|tinygemm|gemm_forward|weight_only|fpA_intB|_w8a8_", "gemm"),
    (
        r"deep_gemm|fp8_gemm|w8a8_block|marlin|Marlin|machete|awq_gemm|gptq|gemm_kernel|matmul_kernel|scaled_mm|_gemm",
        "gemm",
    ),
)
STREAMING = (
    *_kinds(None, (r"Memcpy (HtoD|DtoH|HtoH|PtoP)", "host_copy"), (r"spin_kernel", "spin")),
    *_kinds(
        "elementwise",
        (r"^Memcpy|^memcpy\d*_|direct_copy|CatArray|copy_kernel", "copy"),
        (r"^Memset|FillFunctor|fill_kernel", "fill"),
        (r"reduce_kernel<.*sum_functor|reduce_kernel<.*Sum", "sum"),
        (
            r"elementwise_kernel|reduce_kernel|scan_kernel|arange|distribution_|CompareEq|_cumsum|[Ss]ort|cub::|multi_tensor",
            "pointwise",
        ),
    ),
)
KINDS: tuple[Kind, ...] = (
    *TEMPLATES, *FUSED, *COLLECTIVES, *STATES, *MLA, *ATTENTION, *MOE, *NORMS, *POINTWISE, *GEMMS, *STREAMING
)  # fmt: skip
UNKNOWN = Kind("", "unknown", None)

# Operand types as kernel names spell them; the first found wins, so narrow types come before what they are scaled in.
DTYPES: tuple[tuple[str, str], ...] = (
    (r"nvfp4|mxfp4|float_e2m1|fp4_t|e2m1", "nvfp4"),
    (r"nvjet_(sm\d+_)?q|e4m3|Float8|fp8", "fp8"),
    (r"int8_t|_i8|imma|s8_s8", "int8"),
    (r"nvjet_(sm\d+_)?h|f16f16|_fp16_|__half|half_t|c10::Half|_f16_", "fp16"),
    (r"nvjet_(sm\d+_)?t|bf16|bfloat|BFloat", "bf16"),
)
