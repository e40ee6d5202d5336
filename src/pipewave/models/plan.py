"""Which parts each layer holds: fields that list or count layers become one `Kind` a layer.

Each rule reads one way in which configs state a pattern; the first that a config uses decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.families import Family
from pipewave.models.fields import Fields

DENSE, SPARSE = ("mlp",), ("moe",)


@dataclass(frozen=True, slots=True)
class Kind:
    """Parts of one layer by name; `ffns` None: dense or sparse as other fields say.

    `own`: canonical fields with this layer's own values, in place of the model's.
    """

    mixers: tuple[str, ...] = ("attention",)
    ffns: tuple[str, ...] | None = None
    window: int | None = None
    chunk: int | None = None
    rope: bool = True
    full: bool = True  # attention over the whole context, as opposed to a window or a chunk
    ratio: int = 0
    own: tuple[tuple[str, Any], ...] = ()

    def with_own(self, **values: Any) -> Kind:
        """The same with more values of its own; None leaves the model's."""
        return replace(self, own=(*self.own, *((name, v) for name, v in values.items() if v is not None)))


FULL = Kind()
WORDS: dict[str, Kind] = {
    "full_attention": FULL,
    "attention": FULL,
    "global": FULL,
    "deepseek_sparse_attention": FULL,
    "minimax_m3_sparse": Kind(own=(("sparse", True),)),
    "sliding_attention": Kind(full=False),
    "local": Kind(full=False),
    "chunked_attention": Kind(full=False),
    "linear_attention": Kind(("linear",)),
    "mamba": Kind(("mamba",)),
    "mamba2": Kind(("mamba",)),
    "conv": Kind(("conv",)),
    "short_conv": Kind(("conv",)),
    "hybrid": Kind(("mamba", "attention")),
    "compressed_sparse_attention": Kind(ratio=4),
    "heavily_compressed_attention": Kind(ratio=128),
}
# One part a layer: in lists that hold these words, every word is a layer of that part alone.
ALONE: dict[str, Kind] = {
    "M": Kind(("linear",), ()),
    "mamba": Kind(("linear",), ()),
    "linear_attention": Kind(("linear",), ()),
    "*": Kind(ffns=()),
    "attention": Kind(ffns=()),
    "full_attention": Kind(ffns=()),
    "E": Kind((), SPARSE),
    "moe": Kind((), SPARSE),
    "-": Kind((), DENSE),
    "mlp": Kind((), DENSE),
}


def kinds(fields: Fields, family: Family, count: int) -> list[Kind]:
    """The kind of every layer. Raises BadInput or UnsupportedModel naming the field that cannot be read."""
    found = next((made for rule in _MIXING if (made := rule(fields, count)) is not None), [FULL] * count)
    found = _windows(fields, family, found)
    sparse = _sparse(fields, count)
    chosen = [kind if kind.ffns is not None else replace(kind, ffns=_ffns(kind, family, s))
              for kind, s in zip(found, sparse, strict=True)]  # fmt: skip
    return [_own(fields, replace(kind, rope=_rope(fields, family, i)), i) for i, kind in enumerate(chosen)]


def _ffns(kind: Kind, family: Family, sparse: bool) -> tuple[str, ...]:
    if family.beside and sparse:
        return (*DENSE, *SPARSE)
    return SPARSE if sparse else DENSE


def layer_count(fields: Fields, high: int) -> int:
    """How many layers a config has; a pattern tells where no field counts them."""
    pattern = fields.get("hybrid_override_pattern") or fields.get("layer_types")
    if isinstance(pattern, (str, list)) and fields.get("num_hidden_layers") is None and pattern:
        return len(pattern)
    return fields.integer("num_hidden_layers", high=high)


# How configs state what mixes tokens


def _by_word(fields: Fields, count: int) -> list[Kind] | None:
    words = fields.listed("layer_types", count)
    if words is None:
        return None
    table = ALONE if {"moe", "mlp"} & {w for w in words if isinstance(w, str)} else WORDS
    unknown = next((w for w in words if not isinstance(w, str) or w not in table), None)
    if unknown is not None:
        raise UnsupportedModel(f"layer_types holds {unknown!r}: not modelled", field=fields.named("layer_types"))
    return [table[word] for word in words]


def _by_letter(fields: Fields, count: int) -> list[Kind] | None:
    letters = fields.listed("hybrid_override_pattern", count)
    if letters is None:
        return None
    unknown = next((letter for letter in letters if letter not in ALONE), None)
    if unknown is not None:
        raise UnsupportedModel(
            f"hybrid_override_pattern holds {unknown!r}: not modelled", field="hybrid_override_pattern"
        )
    return [ALONE[letter] for letter in letters]


def _by_block(fields: Fields, count: int) -> list[Kind] | None:
    """Blocks as a search found them (Nemotron NAS): each states its own attention and width, or that it has none."""
    blocks = fields.listed("block_configs", count)
    return None if blocks is None else [_block(fields, block) for block in blocks]


def _block(fields: Fields, block: Any) -> Kind:
    whole = Fields(block) if isinstance(block, dict) else Fields({})
    if not whole.has("attention") or not whole.has("ffn"):
        raise BadInput("block_configs: every block must hold attention and ffn", field="block_configs")
    attention, ffn = Fields(whole.section("attention")), Fields(whole.section("ffn"))
    mixers: tuple[str, ...] = ("attention",)
    if attention.flag("no_op") or attention.flag("replace_with_linear"):
        mixers = ("bypass",) if attention.flag("replace_with_linear") else ()
    ffns = DENSE if not ffn.flag("no_op") else ()
    ffns = ("bypass",) if ffn.flag("replace_with_linear") else ffns
    group, heads = attention.optional("n_heads_in_group"), fields.integer("num_attention_heads")
    kv = heads // group if group else attention.optional("num_key_value_heads")
    inter = ffn.get("intermediate_size") or _multiple(ffn.number("ffn_mult"), fields.integer("hidden_size"))
    kind = Kind(mixers, ffns, window=attention.optional("window_length"))
    return kind.with_own(num_key_value_heads=kv, intermediate_size=inter)


def _multiple(times: float | None, hidden: int) -> int | None:
    """Width of a block by its multiple of the hidden size, as Llama rounds it: two thirds of it, up to 256."""
    return None if times is None else -(-int(2 * times * hidden / 3) // 256) * 256


def _by_ratio(fields: Fields, count: int) -> list[Kind] | None:
    ratios = fields.listed("compress_ratios", count)
    if ratios is None:
        return None
    if not all(isinstance(r, int) and not isinstance(r, bool) and 0 <= r <= 1 << 20 for r in ratios):
        raise BadInput("compress_ratios: must hold whole numbers", field="compress_ratios")
    return [Kind(ratio=ratio) for ratio in ratios]


def _flags(name: str, on: Kind, off: Kind) -> Callable[[Fields, int], list[Kind] | None]:
    """A list of zeros and ones, one a layer."""

    def rule(fields: Fields, count: int) -> list[Kind] | None:
        flags = fields.listed(name, count)
        return None if flags is None else [on if flag else off for flag in flags]

    return rule


def _indices(name: str, inside: Kind, outside: Kind) -> Callable[[Fields, int], list[Kind] | None]:
    """A list of layer numbers from zero."""

    def rule(fields: Fields, count: int) -> list[Kind] | None:
        if fields.get(name) is None:
            return None
        chosen = set(fields.ints(name))
        return [inside if index in chosen else outside for index in range(count)]

    return rule


def _by_delta_lists(fields: Fields, count: int) -> list[Kind] | None:
    """Kimi Linear: lists of layers from one."""
    section = Fields(fields.section("linear_attn_config"))
    if not section.has("kda_layers"):
        return None
    delta = set(section.ints("kda_layers"))
    return [WORDS["linear_attention"] if index + 1 in delta else FULL for index in range(count)]


def _by_period(fields: Fields, count: int) -> list[Kind] | None:
    """Jamba: one layer of attention in every so many, the rest Mamba."""
    if not fields.has("attn_layer_period"):
        return None
    period, offset = fields.integer("attn_layer_period"), fields.integer("attn_layer_offset", 0, low=0)
    return [FULL if index % period == offset else WORDS["mamba"] for index in range(count)]


def _by_interval(fields: Fields, count: int) -> list[Kind] | None:
    """Qwen3-Next and Ling: the last layer of every group has full attention, the others a recurrence."""
    name = next((n for n in ("full_attention_interval", "layer_group_size") if fields.has(n)), None)
    if name is None:
        return None
    size = fields.integer(name)
    whole = count // size * size
    return [FULL if (i + 1) % size == 0 or i >= whole > 0 else WORDS["linear_attention"] for i in range(count)]


def _by_letters_of_windows(fields: Fields, count: int) -> list[Kind] | None:
    """EXAONE 4: a word such as LLLG, repeated, the last layer always global."""
    pattern = fields.get("sliding_window_pattern")
    if not isinstance(pattern, str) or not pattern:
        return None
    local = [pattern[i % len(pattern)] == "L" and i + 1 < count for i in range(count)]
    return [WORDS["sliding_attention"] if each else FULL for each in local]


_MIXING: tuple[Callable[[Fields, int], list[Kind] | None], ...] = (
    _by_block,
    _by_letter,
    _by_word,
    _by_ratio,
    _by_delta_lists,
    _flags("hybrid_layer_pattern", WORDS["sliding_attention"], FULL),
    _flags("attn_type_list", FULL, WORDS["linear_attention"]),
    _indices("attn_layer_indices", FULL, WORDS["mamba"]),
    _indices("full_attn_idxs", FULL, WORDS["conv"]),
    _by_period,
    _by_interval,
    _by_letters_of_windows,
)


# Windows and chunks


def _windows(fields: Fields, family: Family, found: list[Kind]) -> list[Kind]:
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


def _chunked(fields: Fields, family: Family, index: int, kind: Kind) -> bool:
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


# Which layers route to experts


def _sparse(fields: Fields, count: int) -> list[bool]:
    """True for layers with experts: every rule that a config uses must agree."""
    if not fields.has("experts") or fields.get("enable_moe_block") is False:
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


def _every(name: str, first: int) -> Callable[[Fields, int], list[bool] | None]:
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


def _among(name: str, *, inside: bool) -> Callable[[Fields, int], list[bool] | None]:
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


_ROUTING: tuple[Callable[[Fields, int], list[bool] | None], ...] = (
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


# Values that one layer has for itself

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


def _own(fields: Fields, kind: Kind, index: int) -> Kind:
    """Values of one layer: lists with one a layer, and what a config states apart for sliding and for full layers."""
    if "attention" in kind.mixers:
        for name, source in _GLOBAL if kind.full else _SLIDING:
            kind = kind.with_own(**{name: fields.get(source)})
        if not kind.full:
            kind = kind.with_own(**_other_setting(fields))
        kind = _sparse_attention(fields, _borrowed(fields, kind, index), index)
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
    return kind.with_own(borrowed=True) if shared and index >= count - shared else kind


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
