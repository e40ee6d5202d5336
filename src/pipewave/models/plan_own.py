"""Values that one layer has for itself: lists with one a layer, and what sliding and full layers state separately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_ATTENTION = ("num_attention_heads", "num_key_value_heads")
_ANYWHERE = ("intermediate_size", "moe_inter", "topk", "shared_count", "ngrams")
Columns = Iterator[tuple[str, list[Any]]]  # a field and its value in every layer, None for the model's own


def own(fields: Fields, kinds: Sequence[Kind]) -> list[Kind]:
    """Give every layer what a config states for it alone; equal layers stay one object."""
    columns = [
        column for rule in (_listed, _borrowed, _reused, _blocks, _ngrams) for column in rule(fields, len(kinds))
    ]
    stated = fields.section("per_layer_config")
    known: dict[object, Kind] = {}
    found = []
    for index, kind in enumerate(kinds):
        values = {name: column[index] for name, column in columns if "attention" in kind.mixers or name in _ANYWHERE}
        values |= Fields(stated).section(f"{index:02}") or Fields(stated).section(str(index))
        key = (kind, repr(values))
        if key not in known:
            known[key] = kind.with_own(**_sliding_or_full(fields, kind), **values)
        found.append(known[key])
    return found


def _sliding_or_full(fields: Fields, kind: Kind) -> dict[str, Any]:
    """What a config states separately for sliding and for full attention."""
    if "attention" not in kind.mixers:
        return {}
    values = {name: fields.get(source) for name, source in (_GLOBAL if kind.full else _SLIDING)}
    given = {name: value for name, value in values.items() if value is not None}
    return given if kind.full else given | _other_setting(fields)


def _other_setting(fields: Fields) -> dict[str, Any]:
    """Step 3.5 states the heads of its sliding layers in a section."""
    section = Fields(fields.section("attention_other_setting"))
    return {
        name: section.optional(name)
        for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
        if section.has(name)
    }


def _listed(fields: Fields, count: int) -> Columns:
    """Fields that hold a list with one a layer."""
    for name in (*_ATTENTION, *_ANYWHERE):
        if isinstance(fields.get(name), list):
            yield name, [fields.at(name, index) for index in range(count)]


def _borrowed(fields: Fields, count: int) -> Columns:
    """The last layers of Gemma 3n and 4 use K and V of an earlier layer; others list whose they use."""
    if shared := fields.integer("num_kv_shared_layers", 0, low=0):
        yield "borrowed", [index >= count - shared or None for index in range(count)]
    elif sources := fields.ints("kv_source_layers"):
        given = sources[:count] + list(range(len(sources), count))
        yield "borrowed", [source != index or None for index, source in enumerate(given)]


def _reused(fields: Fields, count: int) -> Columns:
    """Layers that take an earlier layer's choice of keys: listed, or after the first all but one in so many."""
    types = fields.get("indexer_types")
    if isinstance(types, list):
        yield "reused", [(index < len(types) and types[index] == "shared") or None for index in range(count)]
        return
    every, first = fields.integer("index_topk_freq", 1), fields.integer("index_skip_topk_offset", 0, low=0)
    if every > 1:
        yield "reused", [(index >= first and (index - first + 1) % every != 0) or None for index in range(count)]


def _blocks(fields: Fields, count: int) -> Columns:
    """Layers that choose blocks of keys (MiniMax-M3)."""
    section = Fields(fields.section("sparse_attention_config"))
    if section.raw and section.flag("use_sparse_attention", True):
        listed = section.get("sparse_attention_freq")
        flags = listed if isinstance(listed, list) else [1] * count
        yield "sparse", [(index < len(flags) and bool(flags[index])) or None for index in range(count)]


def _ngrams(fields: Fields, count: int) -> Columns:
    """Layers, counted from one, that add embeddings of n-grams (Qwen4)."""
    chosen = fields.ints("ple_layer_ids")
    if chosen:
        yield "ngrams", [int(index + 1 in chosen) or None for index in range(count)]
