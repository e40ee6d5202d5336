"""What a `model_type` means where its config.json does not say it: one row of data a family, no code a family.

A string in a row is the name of the config field that decides; a bool or number is the family's fixed choice.
A type that has no row is read by the row `STANDARD`: its fields alone say what it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

FlagOrField = bool | str


@dataclass(frozen=True, slots=True)
class Family:
    """Conventions of one architecture family."""

    # attention
    qkv_bias: FlagOrField = "attention_bias"
    o_bias: FlagOrField = "attention_bias"
    qk_norm: FlagOrField = "use_qk_norm"  # True: over each head; "full": over all heads together; "plain": no weights
    norm_weights_per_head: bool = False  # the norm of each head has weights of its own
    sinks: FlagOrField = "use_sinks"
    gate: FlagOrField = "attn_output_gate"  # the output is multiplied by a gate that the input map gives
    window: str = "all"  # none, all, late (from max_window_layers), alternate, pattern (every n-th is full)
    window_pattern: int = 0
    rope_from: int = 1  # layers whose number this divides have no RoPE, counted from one (1 = all have it)
    # feed-forward
    mlp_bias: FlagOrField = "mlp_bias"
    gated: bool | None = None  # None: the activation tells
    halved: bool = False  # intermediate_size counts both maps of a gated block
    shared_gate: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    correction: FlagOrField = False  # a learned score offset for each expert
    shared_default: int = 0  # shared experts where a config names none
    router_scales: bool = False  # the router scales its input and each expert's weight
    beside: bool = False  # the dense block runs beside the routed one, in every layer
    # recurrence
    interleaved: bool = False  # a delta net's input map leaves q, k, v and z of a head side by side
    linear: str = ""  # what "linear_attention" means where fields do not tell: gdn, kda, lightning, mamba2, mamba1
    mixers: tuple[str, ...] = ("attention",)  # of layers that no field describes
    ffns: tuple[str, ...] | None = None  # None: dense or sparse as fields say
    # whole
    head_bias: FlagOrField = "lm_head_bias"
    norms: str = "pre"
    norm_bias: bool = False
    more_norms: int = 0  # norms over the hidden size beside those of `norms`, a layer
    tied: bool = False  # default of tie_word_embeddings
    positions: str = ""  # field that counts learned position embeddings
    encoder: bool = False
    drafts: bool = False  # a head that drafts: it reads embedding and target side by side, and borrows the embedding
    mtp_heads: int = 0  # heads for drafting that checkpoints have where their config does not count them
    head_map: bool = False  # a map as wide as the model before what is pooled or predicted
    double: bool = False  # one layer of the config holds two attentions and two dense blocks
    defaults: tuple[tuple[str, Any], ...] = ()  # what the config class supplies where files leave it out
    fixed: tuple[tuple[str, bool | float | str], ...] = ()  # fields of which only this value is modelled


STANDARD = Family()
LLAMA = STANDARD
QWEN2 = Family(qkv_bias=True, o_bias=False, window="late")
QWEN3 = Family(qk_norm=True, window="late")
QWEN2_MOE = replace(QWEN2, qkv_bias="qkv_bias", shared_gate=True, defaults=(("qkv_bias", True),))
QWEN_NEXT = Family(qk_norm=True, gate=True, shared_gate=True, linear="gdn")
MISTRAL = Family(qkv_bias=False, o_bias=False)
DEEPSEEK_V2 = Family(window="none")
DEEPSEEK_V3 = Family(correction=True, window="none")
GEMMA = Family(tied=True, window="none")
GEMMA3 = replace(
    GEMMA,
    norms="sandwich",
    window="pattern",
    window_pattern=6,
    qk_norm=True,
    # Published Gemma 3 configs leave these to the config class.
    defaults=(("vocab_size", 262208), ("num_attention_heads", 8), ("num_key_value_heads", 4), ("head_dim", 256)),
)
GEMMA4 = replace(
    GEMMA, norms="sandwich", qk_norm=True, window="pattern", window_pattern=6, beside=True, router_scales=True
)
GLM4_MOE = Family(o_bias=False, correction=True)
# One norm feeds attention and MLP; the layers with full attention have no RoPE, which only saves time.
COHERE = Family(norms="parallel", tied=True, window="none")
COHERE2_FIXED = (
    ("use_parallel_block", True),
    ("use_gated_activation", True),
    ("use_parallel_embedding", True),
    ("use_embedding_sharing", True),
    ("position_embedding_type", "rope_gptj"),
    ("order_of_interleaved_layers", "local_attn_first"),
    ("rotary_pct", 1.0),
)
OLMO2 = Family(norms="post", qk_norm="full")
NEMOTRON_H = Family(
    window="none", gated=False, correction=True, linear="mamba2", defaults=(("mamba_groups", 8), ("mamba_conv", 4))
)
PHI = Family(qkv_bias=True, o_bias=True, mlp_bias=True, head_bias=True, norms="parallel", norm_bias=True, gated=False)
LIGHTNING = Family(linear="lightning", window="none")
BERT = Family(
    qkv_bias=True, o_bias=True, mlp_bias=True, norms="post", norm_bias=True, gated=False, tied=True, encoder=True,
    positions="max_position_embeddings", window="none", head_map=True,
)  # fmt: skip
GPT = Family(
    qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True, gated=False, tied=True, positions="n_positions",
    window="none",
)  # fmt: skip
STARCODER2 = Family(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", norm_bias=True, gated=False)

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": replace(MISTRAL, defaults=(("num_attention_heads", 32),)),  # Pixtral 12B leaves it to the config class
    "mixtral": MISTRAL,
    "qwen": Family(qkv_bias=True, halved=True),
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3,
    "qwen3_next": replace(QWEN_NEXT, interleaved=True, mtp_heads=1),
    "qwen3_5": QWEN_NEXT,
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v4": DEEPSEEK_V3,
    "kimi_linear": replace(DEEPSEEK_V3, linear="kda"),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, norms="sandwich", window="alternate"),
    "gemma3_text": GEMMA3,
    "gemma3n_text": GEMMA3,
    "gemma4_text": GEMMA4,
    "phi": PHI,
    "phi3": Family(),
    "phimoe": replace(MISTRAL, qkv_bias="attention_bias", o_bias="attention_bias", norm_bias=True),
    "gpt_oss": Family(window="alternate", sinks=True, expert_bias=True, router_bias=True, gated=True),
    "glm": Family(o_bias=False),
    "glm4": Family(o_bias=False, norms="sandwich"),
    "glm4_moe": GLM4_MOE,
    "glm4_moe_lite": DEEPSEEK_V3,
    "glm_moe_dsa": DEEPSEEK_V3,
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, window="pattern", window_pattern=4),
    "olmoe": Family(qk_norm="full"),
    "flex_olmo": replace(OLMO2, window="none"),
    "cohere": replace(COHERE, norm_weights_per_head=True),
    "cohere2": replace(COHERE, window="pattern", window_pattern=4, fixed=COHERE2_FIXED),
    "granite": LLAMA,
    "smollm3": replace(LLAMA, tied=True, window="late"),
    "llama4_text": Family(
        qk_norm="plain", shared_default=1, rope_from=4, window="none", defaults=(("moe_inter_field", "own"),)
    ),
    "minimax_m2": Family(qk_norm="full", correction="use_routing_bias"),
    "minimax_m3": Family(qk_norm=True, correction="use_routing_bias", window="none", gated=True),
    "minimax": LIGHTNING,
    "bailing_moe": Family(qkv_bias="use_qkv_bias", o_bias="use_bias", window="none"),
    "bailing_moe_v2": Family(
        qkv_bias="use_qkv_bias", o_bias="use_bias", correction="moe_router_enable_expert_bias", window="none"
    ),
    "bailing_moe_linear": replace(LIGHTNING, qk_norm=True, correction="moe_router_enable_expert_bias"),
    "bailing_hybrid": Family(
        linear="kda", correction=True, window="none",
        defaults=(("mla_use_output_gate", True), ("full_rank_decay", True), ("full_rank_gate", True)),
    ),
    "nemotron_h": NEMOTRON_H,
    "nemotron": Family(gated=False, norm_bias=True),
    "mimo_v2_flash": Family(correction=True, sinks=False, mtp_heads=3),
    "step3p5": Family(qk_norm=True, gate="use_head_wise_attn_gate", correction="use_moe_router_bias"),
    "exaone4": Family(norms="post", qk_norm=True, window="pattern", window_pattern=4),
    "exaone_moe": Family(norms="pre", qk_norm=True, window="pattern", window_pattern=4, correction=True),
    "afmoe": Family(norms="sandwich", qk_norm=True, gate=True, correction=True, window="pattern", window_pattern=4),
    "longcat_flash": Family(double=True, correction=True, window="none", mtp_heads=1),
    "hunyuan_v1_dense": Family(qk_norm=True),
    "hunyuan_v1_moe": Family(qk_norm=True),
    "hy_v3": Family(qk_norm=True, correction=True),
    "falcon_h1": Family(linear="mamba2", mixers=("mamba", "attention"), defaults=(("mamba_rms_norm", False),)),
    "falcon_mamba": Family(linear="mamba1", mixers=("mamba",), ffns=(), tied=True),
    "mamba": Family(linear="mamba1", mixers=("mamba",), ffns=(), tied=True),
    "mamba2": Family(linear="mamba2", mixers=("mamba",), ffns=()),
    "jamba": Family(linear="mamba1", window="none"),
    "bamba": Family(linear="mamba2", mixers=("mamba",)),
    "granitemoehybrid": Family(linear="mamba2", window="none"),
    "lfm2": Family(qk_norm=True, qkv_bias=False, o_bias=False, tied=True, window="none"),
    "lfm2_moe": Family(
        qk_norm=True, qkv_bias=False, o_bias=False, tied=True, window="none", correction="use_expert_bias"
    ),
    "ouro": Family(norms="sandwich", fixed=(("total_ut_steps", 1),)),
    "PanguEmbedded": Family(qkv_bias="bias", o_bias="bias"),
    "dots1": Family(qk_norm=True, correction=True, window="late"),
    "apertus": Family(qk_norm=True, gated=False),
    "arcee": Family(gated=False),
    "seed_oss": Family(o_bias="attention_out_bias"),
    "ernie4_5": Family(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", tied=True),
    "ernie4_5_moe": Family(
        qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", tied=True, correction=True
    ),
    "starcoder2": STARCODER2,
    "stablelm": Family(qkv_bias="use_qkv_bias", o_bias=False, norm_bias=True),
    "internlm": Family(qkv_bias="bias", o_bias="bias"),
    "internlm2": Family(qkv_bias="bias", o_bias="bias"),
    "internlm3": Family(qkv_bias="qkv_bias", o_bias="bias", mlp_bias="bias"),
    "chatglm": Family(qkv_bias="add_qkv_bias", o_bias="add_bias_linear", mlp_bias="add_bias_linear", gated=True),
    "falcon": replace(GPT, qkv_bias="bias", o_bias="bias", mlp_bias="bias", positions="", norms="parallel"),
    "gpt2": GPT,
    "ctrl": replace(GPT, positions="", head_bias=True),
    "gptj": replace(GPT, qkv_bias=False, o_bias=False, positions="", tied=False, norms="parallel", head_bias=True),
    "bloom": replace(GPT, positions=""),
    "gpt_bigcode": GPT,
    "gpt_neox": replace(GPT, positions="", tied=False),
    "opt": replace(GPT, positions="max_position_embeddings"),
    "mpt": replace(GPT, qkv_bias=False, o_bias=False, mlp_bias=False, positions=""),
    "dbrx": Family(norm_bias=False, gated=True, window="none", defaults=(("num_key_value_heads", 8),)),
    "grok": Family(norms="sandwich", window="none", gated=True),
    "minicpm3": Family(window="none", defaults=(("v_head_dim", 64),), tied=True),
    "bert": BERT,
    "distilbert": replace(BERT, defaults=(("hidden_act", "gelu"),)),
    "jina_embeddings_v3": replace(BERT, positions=""),
    "roformer": replace(BERT, positions=""),
    "modernbert": Family(encoder=True, tied=True, gated=True, window="pattern", window_pattern=3),
    "modernbert-decoder": Family(tied=True, gated=True, window="pattern", window_pattern=3),
    "bitnet": Family(gated=True, more_norms=1),
    "axk2": replace(DEEPSEEK_V3, defaults=(("query_gates_output", True),)),
    "hy_v4": replace(DEEPSEEK_V3, sinks=True, defaults=(("mla_use_output_gate", True),)),
    "inkling_text": Family(qk_norm=True),
    "inkling2_text": Family(gate=True),
    "muse_glimmer_text": Family(norms="sandwich", gate=True),
    # One norm before attention, two around the experts; a gate as wide as the residual after each block.
    "muse_spark_text": Family(more_norms=3, gate=True, defaults=(("latent_moe_use_norm", True),)),
    "qwen4_exp_text": replace(QWEN_NEXT, window="none"),
    "eagle3": Family(drafts=True, tied=True, more_norms=1),
    "zaya": Family(tied=True, more_norms=4),
    "gte": replace(BERT, mlp_bias=False, gated=True, positions="", head_map=False),
    "nomic_bert": replace(BERT, qkv_bias=False, o_bias=False, mlp_bias=False, gated=True, positions="", head_map=False),
}  # fmt: skip
# By the model class of a config, where its model_type is another model's or stands for several.
ARCHITECTURES = {
    "Grok1ForCausalLM": "grok",
    "Grok1ModelForCausalLM": "grok",
    "LlamaForCausalLMEagle3": "eagle3",
    "Eagle3LlamaForCausalLM": "eagle3",
    "Eagle3Speculator": "eagle3",
    "Eagle3DraftModel": "eagle3",
}
ALIASES = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "mistral3": "mistral",
    "ministral": "mistral",
    "ministral3": "mistral",
    "mistral4": "deepseek_v2",
    "kimi_k2": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "deepseek_v32": "deepseek_v3",
    "deepseek_ref": "deepseek_v4",
    "dots1_vlm": "dots1",
    "glm4v": "glm4",
    "glm46v": "glm4",
    "glm4v_text": "glm4",
    "glm4v_moe": "glm4_moe",
    "glm4v_moe_text": "glm4_moe",
    "llama4": "llama4_text",
    "mllama_text_model": "llama",
    "nemotron-nas": "llama",
    "minimax_m3_vl": "minimax_m3",
    "minimax_m3_vl_text": "minimax_m3",
    "minimax_text_01": "minimax",
    "minimax_m1": "minimax",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5",
    "qwen3_6": "qwen3_5",
    "qwen3_6_moe": "qwen3_5",
    "step3p7": "step3p5",
    "inkling_mm_model": "inkling_text",
    "muse_glimmer": "muse_glimmer_text",
    "muse_spark": "muse_spark_text",
    "qwen4_exp": "qwen4_exp_text",
    "bailing_moe_v2_5": "bailing_moe_linear",
    "granitemoeshared": "granitemoehybrid",
    "granitemoe": "granitemoehybrid",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "xlm-roberta-xl": "bert",
    "bert-generation": "bert",
    "camembert": "bert",
    "ernie": "bert",
    "ibert": "bert",
    "mpnet": "bert",
    "data2vec-text": "bert",
    "megatron-bert": "bert",
    "roberta-prelayernorm": "bert",
    "biogpt": "opt",
    "openai-gpt": "gpt2",
    "internvl_chat": "qwen2",
    "solar_open": "glm4_moe",
    "cwm": "llama",
}


def row(model_type: str) -> Family | None:
    """The row of a model type, or None where the table has none."""
    return FAMILIES.get(ALIASES.get(model_type, model_type))
