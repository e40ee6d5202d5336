"""A Hugging Face config.json becomes a ModelSpec: known parts, put together as its fields say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models import families, layer_reader
from pipewave.models.config_fields import Fields, canonical, synonyms_of, words
from pipewave.models.config_sections import Wrapped, from_params_json, unwrap
from pipewave.models.families import Family
from pipewave.models.layer_plan import LayerKind, layer_count, layer_kinds
from pipewave.models.layer_reader import LayerReader
from pipewave.models.precision import BF16, FP16, Linear, Precision, Quantisation
from pipewave.models.quantization_config import EXPERT_DTYPES, FORMATS, ONLINE, read_hf_quant, read_quantization
from pipewave.models.read_attention import attention, recurrent
from pipewave.models.spec import Ffn, HyperConnection, Layer, ModelSpec
from pipewave.models.vision import audio_params

MAX_LAYERS = 4096
TIED = "tie_word_embeddings"
STATED = {"hidden_size", "num_hidden_layers"}  # a config without them is no model of its own
FFNS: Mapping[str, Callable[[LayerReader], Ffn]] = {"bypass": layer_reader.bypass, "moe": layer_reader.moe}
POOLED = re.compile(
    r"(?<!LM)(?<!LMHead)(Model|ForSequenceClassification|ForTokenClassification|EmbeddingModel|ForReward\w*)$"
)
SCORED = re.compile(r"For(SequenceClassification|TokenClassification|Reward\w*)$")  # of a wrapper, too
DTYPES = {"bfloat16": BF16, "float16": FP16, "float32": BF16, "bf16": BF16, "fp16": FP16, "half": FP16, "auto": BF16}


def parse(
    raw: Mapping[str, Any], name: str, *, ignore: tuple[str, ...] = (), hf_quant: Any = None, online: str | None = None
) -> ModelSpec:
    """Turn a decoded config.json, or Mistral's own params.json, into a ModelSpec.

    `ignore`: fields the caller vouches for; `hf_quant`: a decoded hf_quant_config.json; `online`: what 16-bit weights
    become, while they are loaded or in another checkpoint (`FORMATS`). Raises MissingField, BadInput, or
    UnsupportedModel naming the field that stands in the way.
    """
    hub = from_params_json(raw)
    found = unwrap(hub)
    model_type = _model_type(found.text)
    family = families.family_of(model_type) or families.STANDARD
    supplied = {} if hub is not raw else _class_defaults(found)
    fields = Fields({**supplied, **found.text}, family.defaults)
    fields.seen.update(supplied)
    quantisation, base = _quantisation(fields, Fields(hub), hf_quant, online), _base(fields)
    _refuse(fields, family)
    reader = LayerReader(fields, family, quantisation, base, 0, LayerKind())
    spec = _model(reader, name, model_type, _layers(reader, layer_count(fields, MAX_LAYERS)))
    noted = _notes(fields, model_type, frozenset(ignore))
    audio = audio_params(found.audio, reader.hidden) if found.audio else 0
    pooled = spec.pooled or SCORED.search(_architecture(hub)) is not None
    spec = replace(spec, tower=found.tower(reader.hidden), audio_params=audio, pooled=pooled)
    outer = families.class_defaults(str(found.outer.get("model_type")), found.outer).get(TIED)
    used = found.text.get(TIED, supplied.get(TIED))
    if outer not in (None, used):  # nothing states it for the whole
        whole = f"{TIED} is not stated for the whole: taken as {used}, where transformers' class would take {outer}"
        noted = (whole, *noted)
    return replace(spec, notes=(*found.notes, *quantisation.notes, *noted))


def _class_defaults(found: Wrapped) -> dict[str, Any]:
    """What transformers supplies for fields that the text's config leaves out.

    Whether the head is tied is said by the text's class where it has such a field: checkpoints of Mistral 3 and Kimi
    K2.5 have a head of their own, against the default of the class around it. Width and depth are never supplied.
    """
    named, outer = str(found.text.get("model_type")), str(found.outer.get("model_type"))
    whole = families.class_defaults(outer, found.text)
    own = families.section_type(named, "text_config") or named
    own = own if own in families.classes() else families.section_type(outer, "text_config") or own
    supplied = families.class_defaults(own, found.text)
    tied = {TIED: whole[TIED]} if TIED in whole else {}
    return tied | {name: value for name, value in supplied.items() if not synonyms_of(name) & STATED}


def _model_type(text: Mapping[str, Any]) -> str:
    model_type, named = text.get("model_type"), _architecture(text)
    if (family := families.other_names("architectures").get(named)) or (model_type is None and named):
        return family or named
    if model_type is None:
        Fields(text).need("model_type")
    if not isinstance(model_type, str):
        raise BadInput(f"model_type = {model_type!r}: must be a text", field="model_type")
    return model_type


def _architecture(text: Mapping[str, Any]) -> str:
    """The model class a config names, or nothing."""
    named = text.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _notes(fields: Fields, model_type: str, ignore: frozenset[str]) -> tuple[str, ...]:
    """What was assumed: a type read by its fields alone, fields taken to change no shape."""
    notes = [note for name, note in words("uncounted").items() if fields.has(name)]
    instead = families.read_instead(model_type, fields.raw).items()
    notes += [
        f"{name} is missing: read from {other}, which transformers' class does not know" for name, other in instead
    ]
    unread = list(fields.leftovers(ignore))
    notes += [f"assumed to change no shape: {', '.join(unread)}"] if unread else []
    if families.family_of(model_type) is None:
        notes.insert(0, f"model_type {model_type!r} is not known: read as the sum of the parts its fields name")
    return tuple(notes)


def _base(fields: Fields) -> Precision:
    dtype = str(fields.get("dtype", "bfloat16")).removeprefix("torch.")
    if dtype not in DTYPES:
        name = fields.named("dtype")
        raise UnsupportedModel(f"{name} = {dtype!r}: must be bfloat16, float16 or float32", field=name)
    return DTYPES[dtype]


def _quantisation(fields: Fields, outer: Fields, hf_quant: Any, online: str | None) -> Quantisation:
    section = fields.section("quantization_config") or outer.section("quantization_config")
    section = section or fields.section("compression_config") or fields.section("quantization")
    if online and not hf_quant and not (section and online in ONLINE):
        section = FORMATS[online]
    found = read_hf_quant(hf_quant) if hf_quant and not section else read_quantization(section)
    experts = EXPERT_DTYPES.get(str(fields.get("expert_dtype")))
    return replace(found, experts=experts) if experts and not found.precision.full else found


def _refuse(fields: Fields, family: Family) -> None:
    """Raise UnsupportedModel for what no part models, naming the field that says so."""
    for name, wanted in (family.fixed or {}).items():
        if fields.get(name, wanted) != wanted:
            raise UnsupportedModel(f"{name} = {fields.get(name)!r}: only {wanted!r} is modelled", field=name)
    if fields.get("is_encoder_decoder") is True or (fields.has("encoder_layers") and fields.has("decoder_layers")):
        raise UnsupportedModel(
            "is_encoder_decoder: a decoder that attends to an encoder (translation, speech) is not modelled; models "
            "of one stack, decoders or encoders, are",
            field="is_encoder_decoder",
        )
    width, hidden = fields.raw.get("embedding_size"), fields.get("hidden_size")
    if fields.raw.get("vocab_size") is not None and width not in (None, hidden):  # ALBERT, ELECTRA
        raise UnsupportedModel(
            f"embedding_size = {width!r}: must be hidden_size = {hidden!r}; a map between the two is not modelled",
            field="embedding_size",
        )


def _layers(reader: LayerReader, count: int) -> tuple[Layer, ...]:
    """All layers; those of one kind that are quantised alike are one object, read once."""
    known: dict[object, tuple[Layer, ...]] = {}
    found: list[Layer] = []
    kinds = layer_reader.with_layer_values(reader.fields, layer_kinds(reader.fields, reader.family, count))
    for index, kind in enumerate(kinds):
        key = (kind, reader.quantisation.key(index))
        if key not in known:
            own = Fields(
                {**reader.fields.raw, **{canonical(name): value for name, value in kind.own}}, reader.fields.defaults
            )
            own.seen = reader.fields.seen
            known[key] = _layer(replace(reader, fields=own, kind=kind, index=index))
        found += known[key]
    return tuple(found)


def _layer(reader: LayerReader) -> tuple[Layer, ...]:
    """One layer of the config, which LongCat counts in pairs: experts run beside the first dense block."""
    kind = reader.kind
    mixers = tuple(attention(reader) if each == "attention" else recurrent(reader, each) for each in kind.mixers)
    dense = layer_reader.dense
    ffns = tuple(FFNS.get(each, dense)(reader) for each in kind.ffns or ())
    if reader.family.two_blocks_a_layer:
        return Layer(mixers, (dense(reader), *ffns)), Layer(mixers, (dense(reader),))
    extra = tuple(layer_reader.small_parts(reader))
    # A dense block and experts that run side by side bring norms of their own.
    norms = sum(part.norms for part in extra) + reader.family.extra_norms + 3 * (len(reader.kind.ffns or ()) > 1)
    return (Layer(mixers, (*ffns, *extra), extra_norms=norms),)


def _model(reader: LayerReader, name: str, model_type: str, layers: tuple[Layer, ...]) -> ModelSpec:
    fields, family, hidden = reader.fields, reader.family, reader.hidden
    vocab = fields.integer("vocab_size")
    vocab = fields.integer("draft_vocab_size", vocab) if family.draft_head else vocab
    lm_head = reader.quantisation.of(("lm_head",), reader.base)
    front, front_params = layer_reader.front_maps(fields, hidden, drafts=family.draft_head)
    streams, rank = fields.integer("hc_mult", 1), fields.integer("hc_lowrank", 0, low=0)
    crossed = fields.get("hc_magnitude") is None
    rounds = fields.integer("hc_sinkhorn_iters", 20) if crossed and not rank else 0
    return ModelSpec(
        name=name,
        model_type=model_type,
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        lm_head=Linear("lm_head", vocab, hidden, "out", reader.setting(family.head_bias), lm_head),
        tied=fields.flag("tie_word_embeddings", family.tied) or family.draft_head,
        norms=family.norms,
        norm_bias=family.norm_bias,
        logit_softcap=fields.number("final_logit_softcapping"),
        learned_positions=fields.integer(family.positions_field, 0, low=0) if family.positions_field else 0,
        max_length=fields.optional("max_position_embeddings"),
        dtype=reader.base.dtype,
        kv_dtype=reader.quantisation.kv_dtype or ("fp8" if reader.fields.has("o_groups") else None),
        hyper=HyperConnection(streams, rounds, hidden, crossed, rank) if streams > 1 else None,
        encoder=family.encoder,
        pooled=family.encoder or POOLED.search(_architecture(fields.raw)) is not None,
        tables=layer_reader.tables(fields, hidden),
        front=front,
        mtp_heads=fields.integer("mtp_heads", family.mtp_heads, low=0) if fields.flag("use_mtp", True) else 0,
        front_params=front_params + (hidden * hidden + hidden if family.pooling_map else 0),
    )
