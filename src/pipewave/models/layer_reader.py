"""Reads one layer: values of its own, what all readers share, dense blocks, routed experts, small parts beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.config_fields import Fields, words
from pipewave.models.families import Family, FlagOrField
from pipewave.models.formulas import Part, kinds
from pipewave.models.layer_plan import LayerKind
from pipewave.models.precision import Linear, Precision, Quantisation
from pipewave.models.spec import Bypass, Mlp, Moe

# What a config states for one layer alone, or separately for sliding and for full attention.

_ATTENTION = ("num_attention_heads", "num_key_value_heads")
_ANYWHERE = ("intermediate_size", "moe_inter", "topk", "shared_count", "ngrams")
# Names that checkpoints give the block a part lives in, the most common first.
ATTENTION = ("self_attn", "attn", "attention", "mixer")
RECURRENT = ("linear_attn", "mamba", "mixer", "self_attn", "attn", "conv", "attention")
FFN = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "mixer", "moe")
SHARED = ("shared_experts", "shared_expert", "share_expert", "shared_mlp")
TAPPED = 3  # layers of the target whose hidden states an EAGLE-3 head reads


def with_layer_values(fields: Fields, kinds: Sequence[LayerKind]) -> list[LayerKind]:
    """Give every layer what a config states for it alone; equal layers stay one object."""
    columns = [*_columns(fields, len(kinds))]
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


def _sliding_or_full(fields: Fields, kind: LayerKind) -> Mapping[str, Any]:
    if "attention" not in kind.mixers:
        return {}
    values = {name: fields.get(source) for name, source in words(f"of_{'full' if kind.full else 'sliding'}_layers")}
    given = {name: value for name, value in values.items() if value is not None}
    if kind.full:
        return given
    section = Fields(fields.section("attention_other_setting"))  # Step 3.5
    return given | {name: section.optional(name) for name in (*_ATTENTION, "head_dim") if section.has(name)}


def _columns(fields: Fields, count: int) -> Iterator[tuple[str, list[Any]]]:
    """A field and its value in every layer, None for the model's own."""
    for name in (*_ATTENTION, *_ANYWHERE):
        if isinstance(fields.get(name), list):
            yield name, [fields.at(name, index) for index in range(count)]
    # The last layers of Gemma 3n and 4 use K and V of an earlier layer; others list whose they use.
    if shared := fields.integer("num_kv_shared_layers", 0, low=0):
        yield "borrowed", [index >= count - shared or None for index in range(count)]
    elif sources := fields.ints("kv_source_layers"):
        given = sources[:count] + list(range(len(sources), count))
        yield "borrowed", [source != index or None for index, source in enumerate(given)]
    yield from _choices(fields, count)
    if chosen := fields.ints("ple_layer_ids"):  # Qwen4: layers, counted from one, that add embeddings of n-grams
        yield "ngrams", [int(index + 1 in chosen) or None for index in range(count)]


def _choices(fields: Fields, count: int) -> Iterator[tuple[str, list[Any]]]:
    """Layers that take an earlier layer's choice of keys, and those that choose blocks of keys (MiniMax-M3)."""
    every, first = fields.integer("index_topk_freq", 1), fields.integer("index_skip_topk_offset", 0, low=0)
    if isinstance(types := fields.get("indexer_types"), list):
        yield "reused", [(index < len(types) and types[index] == "shared") or None for index in range(count)]
    elif every > 1:
        yield "reused", [(index >= first and (index - first + 1) % every != 0) or None for index in range(count)]
    section = Fields(fields.section("sparse_attention_config"))
    if section.raw and section.flag("use_sparse_attention", True):
        listed = section.get("sparse_attention_freq")
        flags = listed if isinstance(listed, list) else [1] * count
        yield "sparse", [(index < len(flags) and bool(flags[index])) or None for index in range(count)]


@dataclass(frozen=True, slots=True)
class LayerReader:
    """Makes the matrices of one layer. `index`: the layer's number; `fields` hold its own values."""

    fields: Fields
    family: Family
    quantisation: Quantisation
    base: Precision
    index: int
    kind: LayerKind

    @property
    def hidden(self) -> int:
        """Width of the hidden states."""
        return self.fields.integer("hidden_size", high=1 << 20)

    def setting(self, value: FlagOrField) -> bool:
        """A family's fixed choice, or the config field it defers to."""
        return value if isinstance(value, bool) else self.fields.flag(value, False)

    def precision(self, places: Sequence[str], module: str) -> Precision:
        """Precision of a module that lies in one of several places."""
        leaves = words("modules").get(module, (module,))
        whole = [".".join(filter(None, (f"layers.{self.index}", p, leaf))) for p in places for leaf in leaves]
        return self.quantisation.of(whole, self.base)

    def linear(
        self, name: str, out: int, inp: int, module: str, split: str = "none", *,
        places: Sequence[str] = ATTENTION, **more: Any,
    ) -> Linear:  # fmt: skip
        """A matrix with the precision its checkpoint name asks for."""
        return Linear(name, out, inp, split, precision=self.precision(places, module), **more)

    def part(self, section: str, kind: str, **known: Any) -> Part:
        """A part as a row of formulas says; its `reads` change nothing."""
        known |= {"hidden": self.hidden, "family": partial(getattr, self.family), "setting": self.setting}
        part = Part(section, kind, self.fields, layer=self.kind, **known)
        for name in part.row.get("reads", ()):
            self.fields.get(name)
        return part

    def maps(self, part: Part, which: str, places: Sequence[str]) -> Iterator[tuple[str, Linear]]:
        """The matrices that a row lists, by what the model calls them, in the row's own places or these."""
        for row in part.row[which]:
            if part.of(row.get("when", "True")):
                more = {name: part.of(row[name]) for name in ("bias", "cache", "pair", "groups") if name in row}
                sizes, where = (part.of(row["out"]), part.of(row["inp"])), row.get("places", places)
                made = self.linear(row["name"], *sizes, row["module"], row["split"], places=where, **more)
                yield row.get("as", ""), made


def gated(reader: LayerReader) -> bool:
    """Whether blocks multiply two maps: the family says, else the activation."""
    activation = reader.fields.get("hidden_act", "silu")
    known = words("gated_activations")
    if activation not in known + words("plain_activations"):
        name = reader.fields.named("hidden_act")
        raise UnsupportedModel(f"{name} = {activation!r}: not modelled", field=name)
    return activation in known if reader.family.gated is None else reader.family.gated


def dense(reader: LayerReader) -> Mlp:
    """The dense block of one layer."""
    return mlp(reader, _inter(reader), FFN)


def _inter(reader: LayerReader) -> int:
    """Width of a dense block: its own field, else four times the hidden size; some configs double it where shared."""
    fields = reader.fields
    times = fields.integer("expansion_ratio", 4)  # MPT
    fallback = fields.get("shared_inter") or fields.get("moe_inter") or times * reader.hidden
    inter = fields.integer("intermediate_size", fallback) // (2 if reader.family.intermediate_counts_both_maps else 1)
    if fields.flag("borrowed") and fields.flag("use_double_wide_mlp"):
        return 2 * inter
    if fields.has("block_auto_adjust_ff_dim"):  # LFM2: two thirds, a multiplier, rounded up
        inter = int(2 * inter / 3 * (fields.number("block_ffn_dim_multiplier") or 1.0))
        step = fields.integer("block_multiple_of", 256)
        return -(-inter // step) * step
    return inter


def mlp(reader: LayerReader, inter: int, places: Sequence[str], label: str = "") -> Mlp:
    """A dense block `inter` wide; `label` prefixes the names of its matrices."""
    width, biased, two = reader.hidden, reader.setting(reader.family.mlp_bias), gated(reader)
    up = reader.linear(
        label + ("gate_up_proj" if two else "up_proj"), inter * (2 if two else 1), width,
        "gate_proj" if two else "up_proj", "out", places=places, bias=biased,
    )  # fmt: skip
    down = reader.linear(label + "down_proj", width, inter, "down_proj", "in", places=places, bias=biased)
    return Mlp(inter, two, up, down)


def moe(reader: LayerReader) -> Moe:
    """The routed block of one layer."""
    fields, family = reader.fields, reader.family
    experts, topk = fields.integer("experts", high=65_536), fields.integer("topk", high=1024)
    if topk > experts:
        name, whole = fields.named("topk"), fields.named("experts")
        raise BadInput(f"{name} = {topk}: must be at most {whole} = {experts}", field=name)
    # Where no field speaks of experts alone.
    raw = fields.raw.get("intermediate_size", fields.raw.get("ffn_hidden_size"))
    inter = fields.integer("moe_inter", *([raw] if raw is not None else []))
    idle, latent = fields.integer("idle_experts", 0, low=0), fields.optional("moe_latent")
    (into, back), shared = _latent_maps(reader, latent), _shared(reader, inter)
    normed = latent if latent and fields.flag("latent_moe_use_norm") else 0
    return Moe(
        experts, topk, latent or reader.hidden, inter,
        router=Linear("router", experts + idle, reader.hidden, bias=family.router_bias),
        precision=reader.precision(("", "moe") if family.dense_beside_experts else FFN, "experts.0.gate_proj"),
        gated=gated(reader),
        expert_bias=family.expert_bias,
        router_correction=reader.setting(family.correction),
        shared=shared,
        shared_gate=Linear("shared_gate", 1, reader.hidden) if shared and family.shared_gate else None,
        into=into,
        back=back,
        small=normed + (reader.hidden + experts if family.router_scales else 0),
        idle=idle,
    )  # fmt: skip


def _latent_maps(reader: LayerReader, width: int | None) -> tuple[Linear | None, Linear | None]:
    """From the hidden states to a width of their own that experts work at, and back."""
    how: dict[str, Any] = {"places": FFN, "bias": reader.setting(reader.family.mlp_bias)}
    if width is None:
        return None, None
    into = reader.linear("latent_in", width, reader.hidden, "fc1_latent_proj", **how)
    return into, reader.linear("latent_out", reader.hidden, width, "fc2_latent_proj", **how)


def _shared(reader: LayerReader, inter: int) -> Mlp | None:
    """The shared expert: its own width, or so many of a routed one."""
    fields = reader.fields
    usual = reader.family.shared_default
    stated = fields.get("shared_count", usual)
    count = int(stated) if isinstance(stated, bool) else fields.integer("shared_count", usual, low=0)
    wide = fields.integer("shared_inter", count * inter, low=0)
    places = [f"{place}.{name}" for place in FFN for name in SHARED]
    return mlp(reader, wide, places, "shared_") if wide else None


def bypass(reader: LayerReader) -> Bypass:
    """One matrix in place of a block."""
    return Bypass("linear", (reader.linear("linear", reader.hidden, reader.hidden, "linear", places=("mlp",)),))


def small_parts(reader: LayerReader) -> Iterator[Bypass]:
    """Parts that run beside a layer's blocks, where the field that a row is called by says how large they are."""
    routed = "moe" in (reader.kind.ffns or ())
    for field in kinds("beside"):
        if size := reader.fields.integer(field, 0, low=0):
            part = reader.part("beside", field, size=size, routed=routed)
            maps = tuple(one for _, one in reader.maps(part, "maps", ATTENTION)) * part.of(part.row.get("times", "1"))
            params = part.of(part.row.get("params", "0"))
            yield Bypass(part.row["name"], maps, params=params, norms=part.row.get("norms", 0))


def tables(fields: Fields, hidden: int) -> tuple[tuple[int, int], ...]:
    """Embedding tables beside the first: token types, and a short vector a layer for every token."""
    found = []
    if types := fields.integer("type_vocab_size", 0, low=0):
        found.append((types, hidden))
    if width := fields.integer("hidden_size_per_layer_input", 0, low=0):
        rows = fields.integer("vocab_size_per_layer_input", fields.integer("vocab_size"))
        found.append((rows, width * fields.integer("num_hidden_layers")))
    if layers := len(fields.ints("ple_layer_ids")):
        found.append((layers * fields.integer("ngram_vocab_size_base", 20_000_000), fields.integer("ple_embed_dim")))
    return tuple(found)


def front_maps(fields: Fields, hidden: int, *, drafts: bool = False) -> tuple[tuple[Linear, ...], int]:
    """Maps that run once a token outside the layers, and the parameters beside them."""
    maps = [Linear("fc", hidden, TAPPED * fields.integer("target_hidden_size", hidden))] if drafts else []
    width = fields.integer("hidden_size_per_layer_input", 0, low=0)
    if width:
        maps.append(Linear("per_layer_model_projection", width * fields.integer("num_hidden_layers"), hidden))
    if streams := fields.integer("altup_num_inputs", 0, low=0):
        maps += [Linear("altup_projection", hidden, hidden)] * (2 * (streams - 1))
    return tuple(maps), width
