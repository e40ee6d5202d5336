"""A config.json that remembers what was read of it, so that nothing in it can be dropped unseen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipewave.errors import BadInput, MissingField, UnsupportedModel

LARGEST = 2**31 - 1

# Fields that change no shape and launch no kernel: identity, training, generation, numerics of existing kernels.
HARMLESS = frozenset(
    """
    architectures model_type transformers_version torch_dtype dtype auto_map name_or_path task_specific_params
    attention_dropout hidden_dropout attn_pdrop embd_pdrop resid_pdrop expert_dropout embedding_dropout
    classifier_dropout attention_probs_dropout_prob hidden_dropout_prob
    initializer_range initializer_factor router_jitter_noise input_jitter_noise router_aux_loss_coef aux_loss_alpha
    seq_aux output_router_logits use_cache use_return_dict return_dict output_attentions output_hidden_states
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id image_token_id image_token_index
    boi_token_index eoi_token_index mm_tokens_per_image
    rms_norm_eps layer_norm_eps norm_eps norm_epsilon layer_norm_epsilon
    rope_theta rope_scaling rope_parameters rope_local_base_freq rotary_emb_base rope_interleave rope_percent
    partial_rotary_factor rotary_dim original_max_position_embeddings default_theta
    pretraining_tp swiglu_limit norm_topk_prob normalize_router_logits_before_topk routed_scaling_factor scoring_func
    topk_method n_group topk_group experts_per_token ep_size moe_capacity_factor
    query_pre_attn_scalar hidden_activation attn_logit_scale logit_scale model_max_length
    embedding_multiplier attention_multiplier residual_multiplier logits_scaling mup_enabled
    num_nextn_predict_layers chat_template problem_type id2label label2id is_decoder is_encoder_decoder
    gradient_checkpointing use_bfloat16 fp16 bf16 attn_implementation use_flash_attn initial_context_length
    keys_to_ignore_at_inference cache_implementation max_length min_length do_sample temperature top_k top_p
    num_labels finetuning_task prefix prune_heads tokenizer_class seq_length qk_layernorm_eps
    full_attn_mod interpolate_factor torchscript pruned_heads tie_encoder_decoder
    """.split()  # noqa: SIM905
)

_MISSING: Any = object()


def is_off(value: Any) -> bool:
    """True for values by which configs say "not used": null, false, zero, empty."""
    return value is None or value is False or value in (0, 0.0, "", [], {}, "none")


class Fields:
    """Typed, checked access to a config; every field is in the end either read, harmless, off, or an error."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.seen: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value; null counts as absent."""
        self.seen.add(name)
        value = self.raw.get(name)
        return default if value is None else value

    def integer(self, name: str, default: Any = _MISSING, *, low: int = 1, high: int = LARGEST) -> int:
        """A whole number in [low, high]."""
        value = self.need(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadInput(f"{name} = {_short(value)}: must be an integer from {low} to {high}", field=name)
        return value

    def optional(self, name: str) -> int | None:
        """A positive whole number, or None when absent or null."""
        return None if self.get(name) is None else self.integer(name)

    def number(self, name: str) -> float | None:
        """A finite positive number, or None when absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise BadInput(f"{name} = {_short(value)}: must be a positive number", field=name)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise BadInput(f"{name} = {_short(value)}: must be true or false", field=name)
        return value

    def ints(self, name: str) -> list[int]:
        """A list of whole numbers, empty when absent."""
        value = self.get(name, [])
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise BadInput(f"{name} = {_short(value)}: must be a list of integers", field=name)
        return value

    def section(self, name: str) -> Mapping[str, Any]:
        """A nested object, empty when absent."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise BadInput(f"{name} = {_short(value)}: must be an object", field=name)
        return value

    def need(self, name: str, default: Any = _MISSING) -> Any:
        """The raw value, or MissingField when it is absent and has no default."""
        value = self.get(name, default)
        if value is _MISSING:
            raise MissingField(f"config has no {name!r}: it is needed to know the model's shape", field=name)
        return value

    def reject_leftovers(self, ignore: frozenset[str] = frozenset()) -> None:
        """Raise UnsupportedModel for the first field that was neither read nor known to be harmless."""
        for name, value in self.raw.items():
            known = name in self.seen or name in HARMLESS or name in ignore or name.startswith("_")
            if not known and not is_off(value):
                raise UnsupportedModel(
                    f"{name} = {_short(value)}: not modelled, and it may change the computation; "
                    f"ignore it explicitly if it does not",
                    field=name,
                )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
