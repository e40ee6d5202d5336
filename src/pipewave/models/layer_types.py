"""Which attention or recurrence each layer has, from the fields by which configs list, count or space layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.config_fields import Fields

DENSE, SPARSE = ("mlp",), ("moe",)


@dataclass(frozen=True, slots=True)
class LayerKind:
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

    def with_own(self, **values: Any) -> LayerKind:
        """The same with more values of its own; None leaves the model's."""
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in given.items():
            if not isinstance(value, (int, float, str)):
                raise BadInput(f"{name} = {value!r:.60}: must be a number or a word", field=name)
        return replace(self, own=(*self.own, *given.items()))


FULL = LayerKind()
LAYER_WORDS: dict[str, LayerKind] = {
    **dict.fromkeys(("full_attention", "attention", "global", "indexed_attention", "deepseek_sparse_attention"), FULL),
    **dict.fromkeys(("sparse_attention", "minimax_m3_sparse"), LayerKind(own=(("sparse", True),))),
    **dict.fromkeys(("sliding_attention", "local", "hybrid_sliding", "chunked_attention"), LayerKind(full=False)),
    "linear_attention": LayerKind(("linear",)),
    **dict.fromkeys(("mamba", "mamba2"), LayerKind(("mamba",))),
    **dict.fromkeys(("conv", "short_conv"), LayerKind(("conv",))),
    "hybrid": LayerKind(("mamba", "attention")),
    "compressed_sparse_attention": LayerKind(ratio=4),
    "heavily_compressed_attention": LayerKind(ratio=128),
}
# One part a layer: in lists that hold these words, every word is a layer of that part alone.
ONE_PART_WORDS: dict[str, LayerKind] = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), LayerKind(("linear",), ())),
    **dict.fromkeys(("*", "attention", "full_attention"), LayerKind(ffns=())),
    **dict.fromkeys(("E", "moe"), LayerKind((), SPARSE)),
    **dict.fromkeys(("-", "mlp"), LayerKind((), DENSE)),
}


Rule = Callable[[Fields, int], list[LayerKind] | None]


def _by_word(fields: Fields, count: int) -> list[LayerKind] | None:
    words = fields.listed("layer_types", count)
    if words is None:
        return None
    table = ONE_PART_WORDS if {"moe", "mlp"} & {w for w in words if isinstance(w, str)} else LAYER_WORDS
    unknown = [word for word in words if not isinstance(word, str) or word not in table]
    if unknown:
        known = ", ".join(table)
        raise UnsupportedModel(
            f"layer_types holds {unknown[0]!r}: no part is known by this word; known: {known}",
            field=fields.named("layer_types"),
        )
    alone = not fields.has("mamba_state")  # "hybrid" then speaks of attention with convolutions before it
    return [FULL if word == "hybrid" and alone else table[word] for word in words]


def _by_letter(fields: Fields, count: int) -> list[LayerKind] | None:
    letters = fields.listed("hybrid_override_pattern", count)
    if letters is None:
        return None
    unknown = [letter for letter in letters if not isinstance(letter, str) or letter not in ONE_PART_WORDS]
    if unknown:
        raise UnsupportedModel(
            f"hybrid_override_pattern holds {unknown[0]!r}: not modelled", field="hybrid_override_pattern"
        )
    return [ONE_PART_WORDS[letter] for letter in letters]


def _by_block(fields: Fields, count: int) -> list[LayerKind] | None:
    """Blocks as a search found them (Nemotron NAS): each states its own attention and width, or that it has none."""
    blocks = fields.listed("block_configs", count)
    return None if blocks is None else [_block(fields, block) for block in blocks]


def _block(fields: Fields, block: Any) -> LayerKind:
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
    kind = LayerKind(mixers, ffns, window=attention.optional("window_length"))
    return kind.with_own(num_key_value_heads=kv, intermediate_size=inter)


def _multiple(times: float | None, hidden: int) -> int | None:
    """Width of a block by its multiple of the hidden size, as Llama rounds it: two thirds of it, up to 256."""
    return None if times is None else -(-int(2 * times * hidden / 3) // 256) * 256


def _by_ratio(fields: Fields, count: int) -> list[LayerKind] | None:
    ratios = fields.listed("compress_ratios", count)
    if ratios is None:
        return None
    if not all(isinstance(r, int) and not isinstance(r, bool) and 0 <= r <= 1 << 20 for r in ratios):
        raise BadInput("compress_ratios: must hold whole numbers", field="compress_ratios")
    return [LayerKind(ratio=ratio) for ratio in ratios]


def _flags(name: str, on: LayerKind, off: LayerKind) -> Rule:
    """A list of zeros and ones, one a layer."""

    def rule(fields: Fields, count: int) -> list[LayerKind] | None:
        flags = fields.listed(name, count)
        return None if flags is None else [on if flag else off for flag in flags]

    return rule


def _indices(name: str, inside: LayerKind, outside: LayerKind) -> Rule:
    """A list of layer numbers from zero."""

    def rule(fields: Fields, count: int) -> list[LayerKind] | None:
        if fields.get(name) is None:
            return None
        chosen = set(fields.ints(name))
        return [inside if index in chosen else outside for index in range(count)]

    return rule


def _by_delta_lists(fields: Fields, count: int) -> list[LayerKind] | None:
    """Kimi Linear: lists of layers from one."""
    section = Fields(fields.section("linear_attn_config"))
    if not section.has("kda_layers"):
        return None
    delta = set(section.ints("kda_layers"))
    return [LAYER_WORDS["linear_attention"] if index + 1 in delta else FULL for index in range(count)]


def _by_period(fields: Fields, count: int) -> list[LayerKind] | None:
    """Jamba: one layer of attention in every so many, the rest Mamba."""
    if not fields.has("attn_layer_period"):
        return None
    period, offset = fields.integer("attn_layer_period"), fields.integer("attn_layer_offset", 0, low=0)
    return [FULL if index % period == offset else LAYER_WORDS["mamba"] for index in range(count)]


def _by_interval(fields: Fields, count: int) -> list[LayerKind] | None:
    """Qwen3-Next and Ling: the last layer of every group has full attention, the others a recurrence."""
    name = next((n for n in ("full_attention_interval", "layer_group_size") if fields.has(n)), None)
    if name is None:
        return None
    size = fields.integer(name)
    whole = count // size * size
    return [FULL if (i + 1) % size == 0 or i >= whole > 0 else LAYER_WORDS["linear_attention"] for i in range(count)]


def _by_letters_of_windows(fields: Fields, count: int) -> list[LayerKind] | None:
    """EXAONE 4: a word such as LLLG, repeated, the last layer always global."""
    pattern = fields.get("sliding_window_pattern")
    if not isinstance(pattern, str) or not pattern:
        return None
    local = [pattern[i % len(pattern)] == "L" and i + 1 < count for i in range(count)]
    return [LAYER_WORDS["sliding_attention"] if each else FULL for each in local]


ATTENTION_RULES: tuple[Rule, ...] = (
    _by_block,
    _by_letter,
    _by_word,
    _by_ratio,
    _by_delta_lists,
    _flags("hybrid_layer_pattern", LAYER_WORDS["sliding_attention"], FULL),
    _flags("attn_type_list", FULL, LAYER_WORDS["linear_attention"]),
    _indices("attn_layer_indices", FULL, LAYER_WORDS["mamba"]),
    _indices("full_attn_idxs", FULL, LAYER_WORDS["conv"]),
    _by_period,
    _by_interval,
    _by_letters_of_windows,
)
