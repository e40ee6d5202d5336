"""Typed access to the fields of a config.json, which remembers what was read so that nothing is dropped unseen."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipewave.errors import BadInput, MissingField, UnsupportedModel

# canonical name → names that configs use for it, the first that is present decides
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim", "dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "num_attention_heads": (
        "num_attention_heads_per_layer", "num_attention_heads", "n_head", "n_heads", "num_heads", "num_q_heads",
    ),
    "num_key_value_heads": (
        "num_key_value_heads", "multi_query_group_num", "num_attention_groups", "num_kv_heads", "n_kv_heads",
        "n_head_kv", "num_query_groups", "kv_n_heads",
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "head_size", "attention_head_size"),
    "intermediate_size": (
        "dense_intermediate_size", "intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "n_inner",
        "ffn_dim", "d_ff", "ff_hidden_size", "mlp_hidden_size", "block_ff_dim", "feed_forward_hidden_size",
        "hidden_dim", "dff",
    ),
    "vocab_size": ("vocab_size", "padded_vocab_size", "n_vocab", "embedding_size"),
    "max_position_embeddings": (
        "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len", "n_ctx",
        "model_max_length", "max_seq_length", "max_trained_positions", "max_position_embedding",
    ),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", "activation"),
    "dtype": ("dtype", "torch_dtype"),
    "tie_word_embeddings": ("tie_word_embeddings", "tie_embedding", "tied_lm_head", "share_embeddings"),
    "sliding_window": ("sliding_window", "sliding_window_size", "attention_window_size", "local_attention"),
    "attention_bias": ("attention_bias", "use_attention_bias", "use_qkv_bias", "qkv_bias", "add_qkv_bias"),
    "use_qk_norm": ("use_qk_norm", "qk_layernorm", "use_qk_layernorm", "qk_norm", "use_qkv_norm"),
    # experts
    "experts": (
        "n_routed_experts", "num_routed_experts", "num_local_experts", "num_experts", "moe_num_experts",
        "num_moe_experts", "n_experts",
    ),
    "topk": (
        "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k_experts",
        "experts_per_token", "moe_router_topk", "num_selected_experts", "num_experts_per_topk",
    ),
    "moe_inter": (
        "moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_intermediate_size",
        "expert_hidden_size", "expert_ffn_dim", "expert_hidden_dim",
    ),
    "shared_count": (
        "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts", "n_shared_expert",
    ),
    "shared_inter": (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
        "share_expert_dim", "share_expert_dims",
        "shared_experts_intermediate_size",
    ),
    "moe_latent": ("moe_latent_size", "routed_expert_hidden_size", "moe_hidden_size"),
    "idle_experts": ("zero_expert_num",),
    "hc_mult": ("hc_mult", "hc_count"),
    # recurrences
    "mamba_heads": ("mamba_num_heads", "mamba_n_heads", "mamba_heads", "n_mamba_heads"),
    "mamba_head_dim": ("mamba_head_dim", "mamba_d_head", "mamba_headdim"),
    "mamba_state": ("ssm_state_size", "mamba_d_state", "mamba_state_dim", "state_size"),
    "mamba_groups": ("n_groups", "mamba_n_groups", "mamba_ngroups"),
    "mamba_conv": ("conv_kernel", "mamba_d_conv", "conv_kernel_size", "mamba_conv_kernel"),
    "mamba_expand": ("expand", "mamba_expand"),
    "mamba_chunk": ("chunk_size", "mamba_chunk_size"),
    "mamba_inner": ("mamba_d_ssm", "mamba_intermediate_size"),
    "state_dtype": ("mamba_ssm_cache_dtype", "mamba_ssm_dtype", "ssm_dtype"),
    "conv_bias": ("use_conv_bias", "mamba_conv_bias"),
    "mamba_bias": ("mamba_proj_bias", "use_bias"),
    "time_rank": ("time_step_rank", "mamba_dt_rank"),
    # heads that predict further tokens; the first name that is set decides
    "mtp_heads": (
        "num_mtp_modules", "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers",
    ),
    # layer patterns
    "layer_types": ("layer_types", "layers_block_type", "block_types", "layer_types_list"),
}  # fmt: skip

# Fields that change no shape and launch no kernel: identity, training, generation, numerics of existing kernels.
HARMLESS = frozenset(
    """
    architectures model_type transformers_version torch_dtype dtype auto_map name_or_path task_specific_params
    use_cache use_return_dict return_dict output_attentions output_hidden_states n_group topk_group ep_size
    experts_per_token moe_capacity_factor pretraining_tp num_expert_group num_labels seq_length
    num_nextn_predict_layers mtp_transformer_layers num_mtp_modules mtp_num_hidden_layers mtp_hybrid_override_pattern
    mtp_layers_block_type mtp_use_dedicated_embeddings use_mtp keys_to_ignore_at_inference cache_implementation
    max_length min_length do_sample temperature top_k top_p num_beams num_beam_groups num_return_sequences
    no_repeat_ngram_size encoder_no_repeat_ngram_size chunk_size_feed_forward early_stopping length_penalty
    diversity_penalty repetition_penalty typical_p bad_words_ids suppress_tokens begin_suppress_tokens
    add_cross_attention cross_attention_hidden_size exponential_decay_length_penalty forced_bos_token_id
    forced_eos_token_id remove_invalid_values return_dict_in_generate output_scores tf_legacy_loss is_decoder
    num_logits_to_keep rescale_prenorm_residual residual_in_fp32 use_mamba_kernels mm_tokens_per_image
    full_attn_mod interpolate_factor max_window_layers use_mla moe_router_dtype image_size video_size
    initial_context_length original_max_position_embeddings model_max_length rotary_dim partial_rotary_factor
    hc_sinkhorn_iters swiglu_limit swiglu_alpha hidden_act hidden_activation routed_scaling_factor layer_group_size
    vision_soft_tokens_per_image head_dim num_key_value_heads qk_head_dim v_head_dim expand time_step_rank
    base_model_tp_plan base_model_pp_plan base_model_ep_plan is_encoder_decoder tokens_per_block norm_topk_prob
    num_vision_tokens vocab_size_per_layer_input image_seq_length max_image_size vision_feature_layer
    num_attention_heads intermediate_size mlp_hidden_act use_sliding_window sliding_window attention_chunk_size
    full_attention_interval layer_types num_hash_layers index_skip_topk_offset index_topk_freq index_topk_pattern
    global_attn_every_n_layers attn_layer_period attn_layer_offset attn_layer_indices full_attn_idxs attn_type_list
    expert_layer_period expert_layer_offset first_k_dense_replace moe_layer_freq moe_layer_interval moe_layers
    decoder_sparse_step interleave_moe_layer_step no_rope_layer_interval cross_attention_layers dim_model_base
    scale_emb scale_depth activation_sparsity_pattern conv_L_cache index_n_heads index_head_dim index_block_size
    index_topk_blocks index_local_blocks num_image_tokens audio_config vision_config audio_processor img_processor
    embd_layer vision_lora speech_lora word_embed_proj_dim keep_window_size prefix_dense_sliding_window_pattern
    moe_renormalize use_grouped_topk use_bidirectional_attention mamba_hidden_act moe_shared_expert_overlap
    mlp_expansion_factor block_dim conv_dim conv_dim_out group_norm_size moe_every_n_layer use_moe norm_expert_weight
    need_fp32_gate swiglu_limits_shared zero_centered postnorm normalization_function moe_capacity moe_gate use_rmsnorm
    attention_softmax_in_fp32 multi_query_attention post_layer_norm rmsnorm attn_config ffn_config context_len
    moe_layer_num_skipped cla_share_factor dense_list num_media_embeds org_vocab_size class_num quantization_bit
    true_head_dim att_impl_type pad_vocab_size_multiple perceiver_config patch_size query_num vision_batch_size
    slice_config eagle_config has_lm_head target_model_type
    anyres_pooling_size anyres_vit_max_image_size task_type_vocab_size relative_attention_num_buckets num_task_types
    attn_output_gate additional_vocab_size audio_token_index max_window_size num_sliding_attention_heads
    swa_num_attention_heads type_vocab_size
    number_of_conv_states unpadded_vocab_size ple_embed_dim ple_conv_kernel_size ngram_size heads_per_ngram
    ngram_vocab_size_base make_ngram_vocab_size_divisible_by split_ngram_parts indexer_kv_heads local_layer_ids
    log_scaling_n_floor n_layers_per_attn_res_block
    index_share_for_mtp_iteration attn_res_block_size sliding_window_pattern hybrid_layer_pattern mlp_layer_types
    """.split()  # noqa: SIM905
)
HARMLESS_PATTERN = re.compile(
    r"(_ids?$|_token_index$|_index$|token$|dropout|_pdrop$|_loss|loss_|_coef$|_eps$|epsilon|_std$|initializer|"
    r"rope|rotary|_theta$|theta$|yarn|mrope|scaling|_scale$|_scale_|_multiplier$|jitter|_prob$|seq_aux|aux_|router_|"
    r"topk_method|scoring|score_|_func$|_activation|^output_|^return_|^use_cache|tokenizer|^generation|^gradient_|"
    r"chat_template|pruned|prune_heads|torchscript|fp16|bf16|bfloat16|label|_impl$|_implementation$|^use_flash|"
    r"^log_|name$|_type$|_version$|_method$|_mode$|_format$|decay|_init$|_init_|^init_|_alpha$|_beta$|_bound$|"
    r"_temp|temperature|attn_scale|floor_scale|time_step|_limits?$|^mtp_|_mtp_|nextn|_multipliers?$|_alpha_factor|_beta_factor|_tokens_per_image|_soft_tokens|placeholder|_style$|_dtype$|dtype$|_plan$|logit_scale|"
    r"_norm_type$|z_loss|balanc|load_|train|_seed$|checkpoint|^is_|deterministic|_padding_idx$|mask_|"
    r"extrapolat|longrope|^quantization|kv_cache_scheme)"
)
# Names that speak of a shape: where such a field is set and no part explains it, the model is not known well enough.
# Counts whose value 1 says that nothing is repeated, skipped or grouped.
UNIT = re.compile(r"(every|interval|freq|period|step|group|stride|expan|merge|_tp$|_mult$|ratio)")
SHAPELY = re.compile(
    r"(size|dims?($|_)|^d_|^n_|^num_|_num$|num_|head|layer|expert|kernel|state|window|width|depth|rank|group|block|"
    r"conv|chunk|latent|hidden|inter|ffn|mlp|stride|ratio|pattern|topk|top_k|freq|interval|memory|adapter|lora|"
    r"config$|vocab|embed|expan|bottleneck)"
)


LARGEST = 2**31 - 1
_MISSING: Any = object()


def is_off(value: Any) -> bool:
    """True for values by which configs say "not used": null, false, zero, empty."""
    return value is None or value is False or value in (0, 0.0, "", [], {}, "none")


class Fields:
    """Typed, checked access to a config; every field is in the end either read, harmless, off, noted, or an error.

    Names are canonical: `get("experts")` reads the first of the names that configs use for it. `defaults`: what the
    family's config class supplies where files leave a field out.
    """

    def __init__(self, raw: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.raw = raw
        self.defaults = defaults or {}
        self.seen: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value; null counts as absent."""
        found = self._found(name)[1]
        return default if found is None else found

    def _found(self, name: str) -> tuple[str, Any]:
        """The name that a config uses for a field, and its value (None where absent)."""
        names = ALIASES.get(name)
        if names is None:
            self.seen.add(name)
            value = self.raw.get(name)
            return name, self.defaults.get(name) if value is None else value
        self.seen.update(names)
        for each in names:
            if (value := self.raw.get(each)) is not None:
                return each, value
        return names[0], self.defaults.get(name)

    def named(self, name: str) -> str:
        """How the config calls a field."""
        return self._found(name)[0]

    def has(self, name: str) -> bool:
        """Whether a field is there and not off."""
        return not is_off(self.get(name))

    def integer(self, name: str, default: Any = _MISSING, *, low: int = 1, high: int = LARGEST) -> int:
        """A whole number in [low, high]."""
        value = self.need(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadInput(
                f"{self.named(name)} = {short(value)}: must be an integer from {low} to {high}", field=self.named(name)
            )
        return value

    def optional(self, name: str) -> int | None:
        """A positive whole number, or None when absent, null, zero or -1."""
        return None if self.get(name) in (None, 0, -1) else self.integer(name)

    def at(self, name: str, index: int, default: Any = _MISSING, *, low: int = 0, high: int = LARGEST) -> int:
        """A whole number of one layer: a field may hold one for all, or a list with one a layer."""
        value = self.get(name)
        if not isinstance(value, list):
            return self.integer(name, default, low=low, high=high)
        chosen = value[index] if index < len(value) else None
        return Fields({canonical(name): chosen}).integer(name, low=low, high=high)

    def number(self, name: str) -> float | None:
        """A finite positive number, or None when absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise BadInput(f"{self.named(name)} = {short(value)}: must be a positive number", field=self.named(name))
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise BadInput(f"{self.named(name)} = {short(value)}: must be true or false", field=self.named(name))
        return value

    def text(self, name: str, default: str = "") -> str:
        """A word."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise BadInput(f"{self.named(name)} = {short(value)}: must be a text", field=self.named(name))
        return value

    def ints(self, name: str) -> list[int]:
        """A list of whole numbers, empty when absent."""
        value = self.get(name, [])
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise BadInput(f"{self.named(name)} = {short(value)}: must be a list of integers", field=self.named(name))
        return value

    def listed(self, name: str, count: int) -> list[Any] | None:
        """A list with one entry a layer (more, for draft layers, are cut off), or None when absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, str)) or len(value) < count:
            raise BadInput(f"{self.named(name)}: must list all {count} layers", field=self.named(name))
        return list(value)[:count]

    def section(self, name: str) -> Mapping[str, Any]:
        """A nested object, empty when absent."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise BadInput(f"{name} = {short(value)}: must be an object", field=name)
        return value

    def need(self, name: str, default: Any = _MISSING) -> Any:
        """The raw value, or MissingField when it is absent and has no default."""
        value = self.get(name, default)
        if value is _MISSING:
            names = ALIASES.get(name, (name,))
            usual = name if name in names else names[0]
            raise MissingField(f"config has no {usual!r}: it is needed to know the model's shape", field=usual)
        return value

    def leftovers(self, ignore: frozenset[str] = frozenset()) -> Iterator[str]:
        """Fields that were neither read nor are known to be harmless. Raises UnsupportedModel for one with a shape."""
        for name, value in self.raw.items():
            known = name in self.seen or name in HARMLESS or name in ignore or name.startswith("_")
            if known or is_off(value) or HARMLESS_PATTERN.search(name):
                continue
            if _has_shape(name, value):
                raise UnsupportedModel(
                    f"{name} = {short(value)}: no part that is modelled explains this field, and it may change the "
                    f"computation; ignore it explicitly if it does not",
                    field=name,
                )
            yield name


def _has_shape(name: str, value: Any) -> bool:
    """Whether an unexplained field may change work or memory: a count, a list or an object that speaks of a shape."""
    if isinstance(value, Mapping) and any(_has_shape(str(inner), each) for inner, each in value.items()):
        return True
    counts = isinstance(value, (int, list, Mapping)) and not isinstance(value, bool)
    return counts and SHAPELY.search(name) is not None and not (value == 1 and UNIT.search(name))


def short(value: Any) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def canonical(name: str) -> str:
    """The name that decides a field where a config holds several for it."""
    return ALIASES.get(name, (name,))[0]
