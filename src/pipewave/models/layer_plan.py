"""What each layer holds: attention or a recurrence, experts or a dense block, its window and RoPE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipewave.errors import BadInput, MissingField, UnsupportedModel
from pipewave.models.config_fields import Fields, words
from pipewave.models.families import Family

DENSE, SPARSE = ("mlp",), ("moe",)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Parts of one layer by name."""

    mixers: tuple[str, ...] = ("attention",)
    ffns: tuple[str, ...] | None = None  # None: dense or sparse as other fields say
    window: int | None = None
    chunk: int | None = None
    rope: bool = True
    full: bool = True  # attention over the whole context, as opposed to a window or a chunk
    ratio: int = 0
    own: tuple[tuple[str, Any], ...] = ()  # canonical fields with this layer's own values

    def with_own(self, **values: Any) -> LayerKind:
        """The same with more values of its own; None leaves the model's."""
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in given.items():
            if not isinstance(value, (int, float, str)):
                raise BadInput(f"{name} = {value!r:.60}: must be a number or a word", field=name)
        return replace(self, own=(*self.own, *given.items()))


FULL, SLIDING, LINEAR = LayerKind(), LayerKind(full=False), LayerKind(("linear",))
MAMBA, CONV = LayerKind(("mamba",)), LayerKind(("conv",))


def _by_words(section: str) -> dict[str, LayerKind]:
    """Kinds of layers by the words of configs, as the file of names has them."""
    found = dict[str, LayerKind]()
    for row in words(section):
        parts: dict[str, Any] = {name: tuple(row[name]) for name in ("mixers", "ffns") if name in row}
        parts |= {name: row[name] for name in ("full", "ratio") if name in row}
        found |= dict.fromkeys(row["words"], LayerKind(**parts, own=tuple(row.get("own", {}).items())))
    return found


LAYER_WORDS = _by_words("layer_words")
# One part a layer: in lists that hold these words, every word is a layer of that part alone.
ONE_PART_WORDS = _by_words("one_part_words")

# Ways in which a field tells some layers from the others; None where a config does not have it.

Flags = Callable[[Fields, int], list[bool] | None]


def _every(name: str, fields: Fields, count: int, *, first: int = 0) -> list[bool] | None:
    """Every n-th layer, `first` being the number of the first; or a list of zeros and ones, one a layer."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, (list, str)):
        return [bool(flag) for flag in fields.listed(name, count) or []]
    step = fields.integer(name)
    return [(index + first) % step == 0 for index in range(count)]


def _among(
    name: str, fields: Fields, count: int, *, unset: Any = None, inside: bool = True, first: int = 0, section: str = ""
) -> list[bool] | None:
    """Layers that a list (or a text) of numbers names, counted from `first`, or all others; `unset` says nothing."""
    place = Fields(fields.section(section)) if section else fields
    value = place.get(name)
    if value is None or value == unset:
        return None
    if isinstance(value, str):
        value = [int(each) for each in value.split(",") if each.strip().isdigit()]
    chosen = set(Fields({name: value}).ints(name))
    return [(index + first in chosen) == inside for index in range(count)]


def _phase(period: str, offset: str, fields: Fields, count: int) -> list[bool] | None:
    """One layer in every so many."""
    if not fields.has(period):
        return None
    size, at = fields.integer(period), fields.integer(offset, 0, low=0)
    return [index % size == at for index in range(count)]


def _last_of_group(fields: Fields, count: int) -> list[bool] | None:
    """Qwen3-Next and Ling: the last layer of every group, and those after the last whole one."""
    name = next((n for n in ("full_attention_interval", "layer_group_size") if fields.has(n)), None)
    if name is None:
        return None
    size = fields.integer(name)
    whole = count // size * size
    return [(i + 1) % size == 0 or i >= whole > 0 for i in range(count)]


def _letters(fields: Fields, count: int) -> list[bool] | None:
    """EXAONE 4: a word such as LLLG, repeated, whose L slide; the last layer never does."""
    pattern = fields.get("sliding_window_pattern")
    if not isinstance(pattern, str) or not pattern:
        return None
    return [pattern[i % len(pattern)] == "L" and i + 1 < count for i in range(count)]


# Which attention or recurrence a layer has: the first rule that finds its field.

Rule = Callable[[Fields, int], list[LayerKind] | None]


def _by_word(name: str, fields: Fields, count: int) -> list[LayerKind] | None:
    """A word or a letter a layer."""
    words = fields.listed(name, count)
    if words is None:
        return None
    spoken = {word for word in words if isinstance(word, str)}
    table = LAYER_WORDS if name == "layer_types" and not {"moe", "mlp"} & spoken else ONE_PART_WORDS
    unknown = [word for word in words if not isinstance(word, str) or word not in table]
    if unknown:
        known = f"no part is known by this word; known: {', '.join(table)}"
        raise UnsupportedModel(f"{name} holds {unknown[0]!r}: {known}", field=fields.named(name))
    alone = not fields.has("mamba_state")  # "hybrid" then speaks of attention with convolutions before it
    return [FULL if word == "hybrid" and alone else table[word] for word in words]


def _by_block(fields: Fields, count: int) -> list[LayerKind] | None:
    """Blocks as a search found them (Nemotron NAS): each states its own attention and width, or that it has none."""
    blocks = fields.listed("block_configs", count)
    return None if blocks is None else [_block(fields, block) for block in blocks]


def _block(fields: Fields, block: Any) -> LayerKind:
    whole = Fields(block) if isinstance(block, dict) else Fields({})
    if not whole.has("attention") or not whole.has("ffn"):
        raise BadInput("block_configs: every block must hold attention and ffn", field="block_configs")
    attention, ffn = Fields(whole.section("attention")), Fields(whole.section("ffn"))
    mixers: tuple[str, ...] = () if attention.flag("no_op") else ("attention",)
    mixers = ("bypass",) if attention.flag("replace_with_linear") else mixers
    ffns = () if ffn.flag("no_op") else DENSE
    ffns = ("bypass",) if ffn.flag("replace_with_linear") else ffns
    group, heads = attention.optional("n_heads_in_group"), fields.integer("num_attention_heads")
    kv = heads // group if group else attention.optional("num_key_value_heads")
    inter, times = ffn.get("intermediate_size"), ffn.number("ffn_mult")
    if not inter and times is not None:  # as Llama rounds it: two thirds of the multiple, up to 256
        inter = -(-int(2 * times * fields.integer("hidden_size") / 3) // 256) * 256
    kind = LayerKind(mixers, ffns, window=attention.optional("window_length"))
    return kind.with_own(num_key_value_heads=kv, intermediate_size=inter or None)


def _by_ratio(fields: Fields, count: int) -> list[LayerKind] | None:
    ratios = fields.listed("compress_ratios", count)
    if ratios is None:
        return None
    if not all(isinstance(r, int) and not isinstance(r, bool) and 0 <= r <= 1 << 20 for r in ratios):
        raise BadInput("compress_ratios: must hold whole numbers", field="compress_ratios")
    return [LayerKind(ratio=ratio) for ratio in ratios]


def _by_flag(fields: Fields, count: int) -> list[LayerKind] | None:
    """Layers of two kinds, which the first field that is there tells apart."""
    for flags, on, off in TWO_KINDS:
        if (found := flags(fields, count)) is not None:
            return [on if each else off for each in found]
    return None


TWO_KINDS: tuple[tuple[Flags, LayerKind, LayerKind], ...] = (  # of the layers that a field flags, and of the others
    (partial(_among, "kda_layers", unset=[], first=1, section="linear_attn_config"), LINEAR, FULL),  # Kimi Linear
    (partial(_every, "hybrid_layer_pattern"), SLIDING, FULL),
    (partial(_every, "attn_type_list"), FULL, LINEAR),
    (partial(_among, "attn_layer_indices"), FULL, MAMBA),
    (partial(_among, "full_attn_idxs"), FULL, CONV),
    (partial(_phase, "attn_layer_period", "attn_layer_offset"), FULL, MAMBA),  # Jamba
    (_last_of_group, FULL, LINEAR),
    (_letters, SLIDING, FULL),
)
BY_WORD = (partial(_by_word, "hybrid_override_pattern"), partial(_by_word, "layer_types"))
ATTENTION_RULES: tuple[Rule, ...] = (_by_block, *BY_WORD, _by_ratio, _by_flag)


# Which layers have experts: every rule that finds its field must agree.


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
    return [index <= last for index in range(count)] if isinstance(last, int) and last >= 0 else None


ROUTING_RULES: tuple[Flags, ...] = (
    _words_of_mlp,
    _first_dense,
    _last_sparse,
    *(partial(_every, name) for name in ("moe_layer_freq", "moe_layer_interval", "moe_every_n_layers", "is_moe_layer")),
    partial(_every, "decoder_sparse_step", first=1),  # Qwen counts layers from one here, DeepSeek from zero
    partial(_every, "interleave_moe_layer_step", first=1),
    partial(_among, "mlp_only_layers", unset=[], inside=False),
    partial(_among, "moe_layers_enum", unset=[]),
    partial(_among, "moe_layers", unset=[]),
    partial(_phase, "expert_layer_period", "expert_layer_offset"),
)


def routed_layers(fields: Fields, count: int) -> list[bool]:
    """True for layers with experts. MissingField without their count."""
    if fields.needed_but_missing("experts", ("topk", "moe_inter")):
        fields.need("experts")
    if not fields.has("experts") or False in (fields.get("enable_moe_block"), fields.get("is_moe")):
        return [False] * count
    rules = [found for flags in ROUTING_RULES if (found := flags(fields, count)) is not None]
    return [all(rule[index] for rule in rules) for index in range(count)]


# The plan of all layers.


def layer_kinds(fields: Fields, family: Family, count: int) -> list[LayerKind]:
    """The kind of every layer. Raises BadInput or UnsupportedModel naming the field that cannot be read."""
    found = next((made for rule in ATTENTION_RULES if (made := rule(fields, count)) is not None), None)
    if found is None and family.layers_listed:
        raise MissingField(
            "config has no 'layer_types': a field must list which of its layers are attention", field="layer_types"
        )
    found = _windows(fields, family, found or [LayerKind(family.mixers, family.ffns)] * count)
    both = family.dense_beside_experts or fields.flag("residual_moe")
    sparse, routed = (*DENSE, *SPARSE) if both else SPARSE, routed_layers(fields, count)
    return [
        replace(
            kind,
            ffns=(sparse if has else DENSE) if kind.ffns is None else kind.ffns,
            rope=kind.rope and _rope(fields, family, index),
        )
        for index, (kind, has) in enumerate(zip(found, routed, strict=True))
    ]


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
    if window is None:  # Llama 4: layers with RoPE see their own chunk only
        stated = fields.get("layer_types") is not None
        return [replace(k, chunk=chunk, full=False) if (not k.full if stated else _rope(fields, family, i)) else k
                for i, k in enumerate(found)]  # fmt: skip
    listed = any(not kind.full for kind in found) or fields.get("layer_types") is not None
    slides = [not k.full for k in found] if listed else _sliding(fields, family, len(found))
    return [
        replace(kind, window=kind.window or window, full=False) if slide and "attention" in kind.mixers else kind
        for kind, slide in zip(found, slides, strict=True)
    ]


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
