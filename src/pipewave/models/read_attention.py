"""Reads the attention or the recurrence of one layer, by the row of `data/model_parts.json` for its kind."""

from __future__ import annotations

from dataclasses import fields as fields_of
from functools import partial
from typing import Any, TypeVar

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.attention_spec import Compressed, Gqa, Indexer, Mixer, Mla, Recurrent
from pipewave.models.formulas import Part, kinds
from pipewave.models.layer_reader import ATTENTION, RECURRENT, LayerReader

KINDS: dict[str, type[Mixer]] = {"compressed": Compressed, "latent": Mla, "grouped": Gqa}
Made = TypeVar("Made", Mixer, Recurrent, Indexer)


def attention(reader: LayerReader) -> Mixer:
    """The attention that the fields describe: compressed by its ratios, latent by its rank, else grouped."""
    fields = reader.fields
    compressed = fields.get("compress_ratios") is not None or reader.kind.ratio
    kind = "compressed" if compressed else "latent" if fields.has("kv_lora_rank") else "grouped"
    part = reader.part("attention", kind, normed=partial(_qk_norm, reader))
    for name, count in part.row.get("divides_heads", {}).items():
        if part["heads"] % part[count]:
            raise BadInput(
                f"{name} = {part[count]}: must divide num_attention_heads = {part['heads']}", field=fields.named(name)
            )
    word, maps = part.of(part.row["indexer"]), dict(reader.maps(part, "maps", ATTENTION))
    indexer = None
    if word:  # what chooses the keys that this attention sees
        latent = part["q_lora_rank"] if word in ("keys", "queries") else None
        chooser = reader.part("indexers", word, chosen=word, q_lora_rank=latent)
        indexer = _made(Indexer, chooser, maps=tuple(one for _, one in reader.maps(chooser, "maps", ATTENTION)))
    return _made(KINDS[kind], part, **maps, indexer=indexer)


def _made(made: type[Made], part: Part, **more: Any) -> Made:
    """A part of the model by what its row says of each of its fields, and of more."""
    said = {*part.defaults, *part.formulas}
    return made(**{one.name: part[one.name] for one in fields_of(made) if one.name in said}, **more)


def _qk_norm(reader: LayerReader) -> str | None:
    """Which query/key normalisation the layer has."""
    rule = reader.family.qk_norm
    if rule == "plain":
        return "plain" if reader.kind.rope and reader.fields.flag("use_qk_norm", True) else None
    stated = reader.fields.get("use_qk_norm")
    on = stated if isinstance(stated, bool) else rule in (True, "full")
    return ("full" if rule == "full" else "each" if reader.family.norm_weights_per_head else "head") if on else None


def recurrent(reader: LayerReader, word: str) -> Recurrent:
    """The recurrence a layer's word means: its fields tell, then the family."""
    kind = "conv" if word == "conv" else _kind(reader, word)
    part = reader.part("recurrences", kind)
    inputs, outputs = (tuple(one for _, one in reader.maps(part, at, RECURRENT)) for at in ("inputs", "outputs"))
    return _made(Recurrent, part, kind=kind, inputs=inputs, outputs=outputs)


def _kind(reader: LayerReader, word: str) -> str:
    fields = reader.fields
    if fields.has("linear_num_value_heads"):
        return "gdn"
    if fields.get("linear_attn_config") or fields.has("linear_num_heads"):
        return "kda"
    if fields.has("mamba_heads"):
        return "mamba2"
    if reader.family.linear_attention in kinds("recurrences"):
        return reader.family.linear_attention
    if word == "mamba" or fields.has("mamba_state"):
        return "mamba1" if fields.has("mamba_state") else "mamba2"
    raise UnsupportedModel(
        "layer_types holds linear_attention, and no field tells which kind it is (such as linear_num_value_heads, "
        "linear_attn_config or mamba_num_heads)",
        field=fields.named("layer_types"),
    )
