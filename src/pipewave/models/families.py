"""What a `model_type` means where its config.json does not say it: one row of data a family, no code a family.

A string in a row is the name of the config field that decides; a bool or number is the family's fixed choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Setting = bool | str


@dataclass(frozen=True, slots=True)
class MoeFields:
    """Config field names of a family's routed experts."""

    experts: str
    topk: str = "num_experts_per_tok"
    inter: str = "moe_intermediate_size"
    shared_count: str | None = None  # number of shared experts, each `inter` wide
    shared_inter: str | None = None  # or the shared expert's own width
    shared_gate: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    correction: Setting = False
    module: str = "mlp"  # checkpoint name of the block
    dense_first: str | None = None  # number of leading dense layers
    dense_listed: str | None = None  # indices of dense layers
    step: str | None = None  # every n-th layer is sparse


@dataclass(frozen=True, slots=True)
class Family:
    """Conventions of one architecture family."""

    qkv_bias: Setting = False
    o_bias: Setting = False
    mlp_bias: Setting = False
    head_bias: Setting = False
    qk_norm: Setting = False  # True: over each head; "full" means over all heads together
    heads_apart: bool = False  # the norm of each head has weights of its own
    norms: str = "pre"
    norm_bias: bool = False
    gated: bool = True
    tied: bool = False  # default of tie_word_embeddings
    window: str = "none"  # none, all, late (from max_window_layers), alternate, pattern (every n-th is full)
    window_pattern: int = 0
    sinks: bool = False
    mla: bool = False
    positions: bool = False  # learned position embeddings
    moe: MoeFields | None = None
    defaults: tuple[tuple[str, int], ...] = ()  # what the family's config class supplies where files leave it out
    fixed: tuple[tuple[str, bool | float | str], ...] = ()  # fields of which only this value is modelled


LLAMA = Family(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
QWEN_MOE = MoeFields("num_experts", step="decoder_sparse_step", dense_listed="mlp_only_layers")
DEEPSEEK_MOE = MoeFields(
    "n_routed_experts", shared_count="n_shared_experts", dense_first="first_k_dense_replace", step="moe_layer_freq"
)
MISTRAL = Family(window="all")
QWEN2 = Family(qkv_bias=True, window="late")
QWEN3 = Family(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm=True, window="late")
DEEPSEEK_V2 = Family(mla=True, qkv_bias="attention_bias", moe=DEEPSEEK_MOE)
DEEPSEEK_V3 = replace(DEEPSEEK_V2, moe=replace(DEEPSEEK_MOE, correction=True))
GEMMA = Family(tied=True, qkv_bias="attention_bias", o_bias="attention_bias")
GLM4_MOE = replace(DEEPSEEK_MOE, correction=True, step=None)
MIXTRAL_MOE = MoeFields("num_local_experts", inter="intermediate_size", module="block_sparse_moe")
# One norm feeds attention and MLP; the layers with full attention have no RoPE, which only saves time.
COHERE = Family(norms="parallel", tied=True, qkv_bias="attention_bias", o_bias="attention_bias")
COHERE2_FIXED = (
    ("use_parallel_block", True),
    ("use_gated_activation", True),
    ("use_parallel_embedding", True),
    ("use_embedding_sharing", True),
    ("position_embedding_type", "rope_gptj"),
    ("order_of_interleaved_layers", "local_attn_first"),
    ("rotary_pct", 1.0),
)
GPT_OSS_MOE = MoeFields("num_local_experts", inter="intermediate_size", expert_bias=True, router_bias=True)

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": replace(MISTRAL, moe=MIXTRAL_MOE),
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen2_moe": replace(
        QWEN2,
        qkv_bias="qkv_bias",
        defaults=(("qkv_bias", 1),),
        moe=replace(QWEN_MOE, shared_inter="shared_expert_intermediate_size", shared_gate=True),
    ),
    "qwen3_moe": replace(QWEN3, moe=QWEN_MOE),
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, norms="sandwich", window="alternate"),
    "gemma3_text": replace(
        GEMMA,
        norms="sandwich",
        window="pattern",
        window_pattern=6,
        qk_norm=True,
        # Published Gemma 3 configs leave these to the config class.
        defaults=(("vocab_size", 262208), ("num_attention_heads", 8), ("num_key_value_heads", 4), ("head_dim", 256)),
    ),
    "phi": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, head_bias=True, norms="parallel", norm_bias=True, gated=False
    ),
    "phi3": Family(window="all"),
    "phimoe": replace(
        MISTRAL,
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        head_bias="lm_head_bias",
        norm_bias=True,
        moe=MIXTRAL_MOE,
    ),
    "gpt_oss": Family(
        qkv_bias="attention_bias", o_bias="attention_bias", window="alternate", sinks=True, moe=GPT_OSS_MOE
    ),
    "glm": Family(qkv_bias="attention_bias"),
    "glm4": Family(qkv_bias="attention_bias", norms="sandwich"),
    "glm4_moe": Family(qkv_bias="attention_bias", qk_norm="use_qk_norm", moe=GLM4_MOE),
    "olmo2": Family(norms="post", qk_norm="full", qkv_bias="attention_bias", o_bias="attention_bias"),
    "olmoe": Family(
        qk_norm="full",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        moe=MoeFields("num_experts", inter="intermediate_size"),
    ),
    "cohere": replace(COHERE, qk_norm="use_qk_norm", heads_apart=True),
    "cohere2": replace(COHERE, window="pattern", window_pattern=4, fixed=COHERE2_FIXED),
    "granite": LLAMA,
    "smollm3": replace(LLAMA, tied=True, window="late"),
}
ALIASES = {"gemma3": "gemma3_text", "mistral3": "mistral"}
