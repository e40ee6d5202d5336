"""What each layer holds: experts or a dense block, window, RoPE, and the values a config states for one layer alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pipewave.errors import BadInput, MissingField
from pipewave.models.config_fields import Fields
from pipewave.models.families import Family
from pipewave.models.layer_types import ATTENTION_RULES, DENSE, SPARSE, LayerKind

Rule = Callable[[Fields, int], list[bool] | None]


def routed_layers(fields: Fields, count: int) -> list[bool]:
    """True for layers with experts: every rule that a config uses must agree. MissingField without their count."""
    if fields.needed_but_missing("experts", ("topk", "moe_inter")):
        fields.need("experts")
    if not fields.has("experts") or False in (fields.get("enable_moe_block"), fields.get("is_moe")):
        return [False] * count
    rules = [made for rule in _ROUTING if (made := rule(fields, count)) is not None]
    return [all(rule[index] for rule in rules) for index in range(count)]


def _words_of_mlp(fields: Fields, count: int) -> list[bool] | None:
    words = fields.listed("mlp_layer_types", count)
    return None if words is None else [word != "dense" for word in words]


def _first_dense(fields: Fields, count: int) -> list[bool] | None:
    names = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "first_dense_layers")
    name = next((each for each in names if fields.get(each) is not None), None)
    if name is None or isinstance(fields.get(name), list):
        return None
    first = fields.integer(name, low=0)
    return [index >= first for index in range(count)]


def _last_sparse(fields: Fields, count: int) -> list[bool] | None:
    last = fields.get("moe_layer_end_index")
    if not isinstance(last, int) or last < 0:
        return None
    return [index <= last for index in range(count)]


def _every(name: str, first: int) -> Rule:
    """Every n-th layer; `first` is the number of the first layer."""

    def rule(fields: Fields, count: int) -> list[bool] | None:
        value = fields.get(name)
        if value is None:
            return None
        if isinstance(value, list):
            return [bool(flag) for flag in fields.listed(name, count) or []]
        step = fields.integer(name)
        return [(index + first) % step == 0 for index in range(count)]

    return rule


def _among(name: str, *, inside: bool) -> Rule:
    """Layers that a list of numbers (or a text of numbers) names, or all others."""

    def rule(fields: Fields, count: int) -> list[bool] | None:
        value = fields.get(name)
        if value is None or value == []:
            return None
        if isinstance(value, str):
            value = [int(each) for each in value.split(",") if each.strip().isdigit()]
        chosen = set(Fields({name: value}).ints(name))
        return [(index in chosen) == inside for index in range(count)]

    return rule


def _with_offset(fields: Fields, count: int) -> list[bool] | None:
    if not fields.has("expert_layer_period"):
        return None
    period, offset = fields.integer("expert_layer_period"), fields.integer("expert_layer_offset", 0, low=0)
    return [index % period == offset for index in range(count)]


_ROUTING: tuple[Rule, ...] = (
    _words_of_mlp,
    _first_dense,
    _last_sparse,
    _every("moe_layer_freq", 0),
    _every("moe_layer_interval", 0),
    _every("moe_every_n_layers", 0),
    _every("decoder_sparse_step", 1),  # Qwen counts layers from one here, DeepSeek from zero
    _every("interleave_moe_layer_step", 1),
    _every("is_moe_layer", 0),
    _among("mlp_only_layers", inside=False),
    _among("moe_layers_enum", inside=True),
    _among("moe_layers", inside=True),
    _with_offset,
)


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


def with_layer_values(fields: Fields, kinds: Sequence[LayerKind]) -> list[LayerKind]:
    """Give every layer what a config states for it alone; equal layers stay one object."""
    columns = [
        column for rule in (_listed, _borrowed, _reused, _blocks, _ngrams) for column in rule(fields, len(kinds))
    ]
    stated = fields.section("per_layer_config")
    known: dict[object, LayerKind] = {}
    found = []
    for index, kind in enumerate(kinds):
        values = {name: column[index] for name, column in columns if "attention" in kind.mixers or name in _ANYWHERE}
        values |= Fields(stated).section(f"{index:02}") or Fields(stated).section(str(index))
        key = (kind, repr(values))
        if key not in known:
            known[key] = kind.with_own(**_sliding_or_full(fields, kind), **values)
        found.append(known[key])
    return found


def _sliding_or_full(fields: Fields, kind: LayerKind) -> dict[str, Any]:
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


def layer_kinds(fields: Fields, family: Family, count: int) -> list[LayerKind]:
    """The kind of every layer. Raises BadInput or UnsupportedModel naming the field that cannot be read."""
    found = next((made for rule in ATTENTION_RULES if (made := rule(fields, count)) is not None), None)
    if found is None and family.layers_listed:
        raise MissingField(
            "config has no 'layer_types': a field must list which of its layers are attention", field="layer_types"
        )
    found = found or [LayerKind(family.mixers, family.ffns)] * count
    found = _windows(fields, family, found)
    routed = routed_layers(fields, count)
    both = family.dense_beside_experts or fields.flag("residual_moe")
    chosen = [kind if kind.ffns is not None else replace(kind, ffns=_ffns(s, both=both))
              for kind, s in zip(found, routed, strict=True)]  # fmt: skip
    return with_layer_values(fields, [kind if _rope(fields, family, i) else replace(kind, rope=False)
                        for i, kind in enumerate(chosen)])  # fmt: skip


def _ffns(sparse: bool, *, both: bool) -> tuple[str, ...]:
    if both and sparse:
        return (*DENSE, *SPARSE)
    return SPARSE if sparse else DENSE


def layer_count(fields: Fields, high: int) -> int:
    """How many layers a config has; a pattern tells where no field counts them."""
    pattern = fields.get("hybrid_override_pattern") or fields.get("layer_types")
    if isinstance(pattern, (str, list)) and fields.get("num_hidden_layers") is None and pattern:
        return len(pattern)
    return fields.integer("num_hidden_layers", high=high)


def _windows(fields: Fields, family: Family, found: list[LayerKind]) -> list[LayerKind]:
    """Give attention its window or its chunk, where a rule above has not said which layers slide."""
    window, chunk = fields.optional("sliding_window"), fields.optional("attention_chunk_size")
    restated = fields.optional("sliding_window_size")
    if restated not in (None, window):
        raise BadInput(f"sliding_window_size = {restated}: must be sliding_window = {window}",
                       field="sliding_window_size")  # fmt: skip
    if any(kind.ratio for kind in found) or (window is None and chunk is None):
        return found
    if window is None:
        return [replace(k, chunk=chunk, full=False) if _chunked(fields, family, i, k) else k
                for i, k in enumerate(found)]  # fmt: skip
    listed = any(not kind.full for kind in found) or fields.get("layer_types") is not None
    slides = [not k.full for k in found] if listed else _sliding(fields, family, len(found))
    return [
        replace(kind, window=kind.window or window, full=False) if slide and "attention" in kind.mixers else kind
        for kind, slide in zip(found, slides, strict=True)
    ]


def _chunked(fields: Fields, family: Family, index: int, kind: LayerKind) -> bool:
    """Llama 4: layers with RoPE see their own chunk only."""
    listed = fields.get("layer_types") is not None
    return not kind.full if listed else _rope(fields, family, index)


def _sliding(fields: Fields, family: Family, count: int) -> list[bool]:
    """Which layers slide by the convention of the family."""
    enabled, rule = fields.flag("use_sliding_window", True), family.window
    every = fields.get("sliding_window_pattern", fields.get("layer_switch", family.window_pattern or 1))
    every = Fields({"sliding_window_pattern": every}).integer("sliding_window_pattern")
    every = fields.integer("global_attn_every_n_layers", every)
    first = fields.integer("max_window_layers", 0, low=0) if rule == "late" else 0
    if not enabled or rule == "none" or (rule == "late" and "use_sliding_window" not in fields.raw):
        return [False] * count
    if rule == "all" and every > 1:
        rule = "pattern"
    return {
        "all": [True] * count,
        "late": [i >= first for i in range(count)],
        "alternate": [i % 2 == 0 for i in range(count)],
        "pattern": [(i + 1) % every != 0 for i in range(count)],
    }[rule]


def _rope(fields: Fields, family: Family, index: int) -> bool:
    """False on layers without rotary embedding: listed (SmolLM3: 0 = none), or every so many."""
    listed = fields.ints("no_rope_layers")
    every = fields.integer("no_rope_layer_interval", family.rope_from, low=0)
    if listed:
        return bool(listed[index]) if index < len(listed) else True
    return family.rope_from == 1 or every < 2 or (index + 1) % every != 0
