"""Field names of config.json files: which mean the same, which change no shape, and which look as if they did."""

from __future__ import annotations

import re

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
