"""Values that one layer has for itself: lists with one a layer, and what sliding and full layers state apart."""

from __future__ import annotations

from typing import Any

from pipewave.models.fields import Fields
from pipewave.models.kind import Kind

_SLIDING = (
    ("num_attention_heads", "swa_num_attention_heads"),
    ("num_attention_heads", "num_sliding_attention_heads"),
    ("num_key_value_heads", "swa_num_key_value_heads"),
    ("head_dim", "swa_head_dim"),
    ("v_head_dim", "swa_v_head_dim"),
    ("use_sinks", "add_swa_attention_sink_bias"),
)
_GLOBAL = (
    ("head_dim", "global_head_dim"),
    ("num_key_value_heads", "num_global_key_value_heads"),
    ("use_sinks", "add_full_attention_sink_bias"),
    ("keys_are_values", "attention_k_eq_v"),
)
_LISTED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_inter", "topk", "shared_count")


def own(fields: Fields, kind: Kind, index: int) -> Kind:
    """Values of one layer: lists with one a layer, and what a config states apart for sliding and for full layers."""
    if "attention" in kind.mixers:
        for name, source in _GLOBAL if kind.full else _SLIDING:
            kind = kind.with_own(**{name: fields.get(source)})
        if not kind.full:
            kind = kind.with_own(**_other_setting(fields))
        kind = _sparse_attention(fields, _borrowed(fields, kind, index), index)
    stated = fields.section("per_layer_config")
    for name, value in Fields(stated).section(f"{index:02}").items() or Fields(stated).section(str(index)).items():
        kind = kind.with_own(**{name: value})
    for name in _LISTED:
        value = fields.get(name)
        if isinstance(value, list):
            kind = kind.with_own(**{name: fields.at(name, index)})
    return kind


def _other_setting(fields: Fields) -> dict[str, Any]:
    """Step 3.5 states the heads of its sliding layers in a section."""
    section = Fields(fields.section("attention_other_setting"))
    return {
        name: section.optional(name)
        for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
        if section.has(name)
    }


def _borrowed(fields: Fields, kind: Kind, index: int) -> Kind:
    """The last layers of Gemma 3n and 4 use K and V of an earlier layer."""
    shared = fields.integer("num_kv_shared_layers", 0, low=0)
    count = fields.integer("num_hidden_layers", 0, low=0)
    sources = fields.ints("kv_source_layers")
    elsewhere = index < len(sources) and sources[index] != index
    return kind.with_own(borrowed=True) if elsewhere or (shared and index >= count - shared) else kind


def _sparse_attention(fields: Fields, kind: Kind, index: int) -> Kind:
    """Whether a layer chooses its keys, and whether it takes the choice of an earlier one."""
    types, section = fields.get("indexer_types"), Fields(fields.section("sparse_attention_config"))
    if types[index] == "shared" if isinstance(types, list) and index < len(types) else _skips(fields, index):
        kind = kind.with_own(reused=True)
    frequency = section.get("sparse_attention_freq")
    if section.flag("use_sparse_attention", bool(section.raw)) and section.raw:
        on = frequency[index] if isinstance(frequency, list) and index < len(frequency) else True
        kind = kind.with_own(sparse=True) if on else kind
    return kind


def _skips(fields: Fields, index: int) -> bool:
    """GLM-5.2 without a list: after the first layers, one in so many chooses keys and the next ones reuse them."""
    every, first = fields.integer("index_topk_freq", 1), fields.integer("index_skip_topk_offset", 0, low=0)
    return every > 1 and index >= first and (index - first + 1) % every != 0
