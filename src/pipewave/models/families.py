"""What a `model_type` means where its config.json does not say it: one row of `data/model_families.json` a family.

A string in a row is the name of the config field that decides; a bool or number is the family's fixed choice. `base`
names the row that a row changes, `note` explains it. A type that has no row is read by its fields alone. What the
config class of a type supplies for missing fields is in `data/transformers_defaults.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pipewave.files import packaged
from pipewave.models.config_fields import synonyms_of

FlagOrField = bool | str
LENGTHS = ("max_position_embeddings", "sliding_window")
FAMILIES = packaged.ROOT / "data" / "model_families.json"
DEFAULTS = packaged.ROOT / "data" / "transformers_defaults.json"


@dataclass(frozen=True, slots=True)
class Family:
    """Conventions of one architecture family."""

    # attention
    qkv_bias: FlagOrField = "attention_bias"
    o_bias: FlagOrField = "attention_bias"
    qk_norm: FlagOrField = "use_qk_norm"  # True: over each head; "full": over all heads together; "plain": no weights
    norm_weights_per_head: bool = False  # the norm of each head has weights of its own
    sinks: FlagOrField = "use_sinks"
    gate: FlagOrField = "attn_output_gate"  # the output is multiplied by a gate that the input map gives
    window: str = "all"  # none, all, late (from max_window_layers), alternate, pattern (every n-th is full)
    window_pattern: int = 0
    rope_from: int = 1  # layers whose number this divides have no RoPE, counted from one (1 = all have it)
    # feed-forward
    mlp_bias: FlagOrField = "mlp_bias"
    gated: bool | None = None  # None: the activation tells
    intermediate_counts_both_maps: bool = False  # of a gated block
    shared_gate: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    correction: FlagOrField = False  # a learned score offset for each expert
    shared_default: int = 0  # shared experts where a config names none
    router_scales: bool = False  # the router scales its input and each expert's weight
    dense_beside_experts: bool = False  # the dense block runs beside the routed one, in every layer
    # recurrence
    interleaved: bool = False  # a delta net's input map leaves q, k, v and z of a head side by side
    linear_attention: str = ""  # its kind where fields do not tell: gdn, kda, lightning, mamba2, mamba1
    mixers: tuple[str, ...] = ("attention",)  # of layers that no field describes
    ffns: tuple[str, ...] | None = None  # None: dense or sparse as fields say
    layers_listed: bool = False  # a field must list what each layer is
    # whole
    head_bias: FlagOrField = "lm_head_bias"
    norms: str = "pre"
    norm_bias: bool = False
    extra_norms: int = 0  # norms over the hidden size beside those of `norms`, a layer
    tied: bool = False  # default of tie_word_embeddings
    positions_field: str = ""  # field that counts learned position embeddings
    encoder: bool = False
    draft_head: bool = False  # drafts tokens: reads embedding and target side by side, and borrows the embedding
    mtp_heads: int = 0  # heads for drafting that checkpoints have where their config does not count them
    pooling_map: bool = False  # a map as wide as the model before what is pooled or predicted
    two_blocks_a_layer: bool = False  # one layer of the config holds two attentions and two dense blocks
    defaults: Mapping[str, Any] | None = None  # what the config class supplies where files leave it out
    fixed: Mapping[str, Any] | None = None  # fields of which only this value is modelled


STANDARD = Family()


def rows() -> dict[str, dict[str, Any]]:
    """All rows as the file holds them; one that is added here is read like the others."""
    found: dict[str, dict[str, Any]] = packaged.shared(FAMILIES)["families"]
    return found


@cache
def other_names(kind: str) -> dict[str, str]:
    """Every other name of a family, by `aliases` (model types) or `architectures` (model classes, whose model_type is
    another model's or stands for several).
    """
    return {other: name for name, others in packaged.shared(FAMILIES)[kind].items() for other in others}


def family_of(model_type: str) -> Family | None:
    """The row of a model type, or None where the table has none."""
    name = other_names("aliases").get(model_type, model_type)
    return _family(name) if name in rows() else None


@cache
def _family(name: str) -> Family:
    row = {field: tuple(value) if isinstance(value, list) else value for field, value in rows()[name].items()}
    changed: dict[str, Any] = {field: value for field, value in row.items() if field not in ("base", "note")}
    return replace(_family(row["base"]) if "base" in row else STANDARD, **changed)


def classes() -> Mapping[str, Any]:
    """What transformers' config classes say, by the types that are read here."""
    found: Mapping[str, Any] = packaged.shared(DEFAULTS)["types"]
    return found


def section_type(model_type: str, section: str) -> str | None:
    """Type that transformers gives a section of a multimodal config which does not state its own."""
    found: str | None = classes().get(model_type, {}).get("sections", {}).get(section)
    return found


def class_defaults(model_type: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers' config class supplies for fields that a config leaves out; nothing for types it has not.

    A field counts as stated by any of its names, unless the class has fields of its own under two of them.
    """
    row = classes().get(model_type, {})
    own, synonyms = row.get("defaults", {}), row.get("synonyms", {})
    given = {synonyms.get(name, name) for name in stated}
    given |= {other for name in given - set(own) for other in synonyms_of(name)}
    return {name: value for name, value in own.items() if name not in given and value is not None}


def read_instead(model_type: str, stated: Mapping[str, Any]) -> dict[str, str]:
    """Lengths that a config leaves out and states by a name which transformers' class of its type does not know."""
    own = classes().get(model_type, {}).get("defaults", {})
    missing = [name for name in LENGTHS if own.get(name) is not None and name not in stated]
    others = {name: [each for each in stated if each in synonyms_of(name) and each not in own] for name in missing}
    return {name: found[0] for name, found in others.items() if found and stated[found[0]] != own[name]}
