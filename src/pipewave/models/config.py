"""A Hugging Face config.json becomes a ModelSpec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.errors import BadInput, UnsupportedModel, did_you_mean
from pipewave.models import quant
from pipewave.models.families import ALIASES, FAMILIES, Family, MoeFields, Setting
from pipewave.models.fields import Fields
from pipewave.models.spec import BF16, FP16, Gqa, Layer, Linear, Mla, Mlp, ModelSpec, Moe, Precision
from pipewave.models.vision import tower_params

MAX_LAYERS = 4096
ACTIVATIONS = frozenset(
    {"silu", "swish", "swiglu", "gelu", "gelu_new", "gelu_fast", "gelu_tanh", "gelu_pytorch_tanh", "quick_gelu", "relu"}
)
DTYPES = {"bfloat16": BF16, "float16": FP16, "float32": BF16, "bf16": BF16, "fp16": FP16, "half": FP16}


class Reader:
    """One pass over one config; holds what the pieces share."""

    def __init__(self, fields: Fields, family: Family, quantisation: quant.Quantisation, base: Precision) -> None:
        self.fields, self.family, self.quantisation, self.base = fields, family, quantisation, base
        self.hidden = fields.integer("hidden_size", high=1 << 20)
        self.count = fields.integer("num_hidden_layers", high=MAX_LAYERS)
        self.heads = fields.integer("num_attention_heads", *_default(family, "num_attention_heads"), high=4096)

    def setting(self, value: Setting) -> bool:
        """A family's fixed choice, or the config field it defers to."""
        if isinstance(value, bool):
            return value
        return self.fields.flag(value, bool(dict(self.family.defaults).get(value, False)))

    def linear(self, name: str, out: int, inp: int, module: str, split: str = "none", **more: Any) -> Linear:
        """A matrix with the precision its checkpoint name asks for."""
        return Linear(name, out, inp, split, precision=self.quantisation.of(module, self.base), **more)

    def gqa(self, index: int, window: int | None) -> Gqa:
        """Plain attention of one layer."""
        fields, family, prefix = self.fields, self.family, f"model.layers.{index}.self_attn"
        defaults = dict(family.defaults)
        kv_heads = fields.integer("num_key_value_heads", defaults.get("num_key_value_heads", self.heads), high=4096)
        head_dim = fields.integer("head_dim", defaults.get("head_dim", max(self.hidden // self.heads, 1)), high=1024)
        if self.heads % kv_heads:
            raise BadInput(
                f"num_key_value_heads = {kv_heads}: must divide num_attention_heads = {self.heads}",
                field="num_key_value_heads",
            )
        cache, width = 2 * kv_heads * head_dim, self.heads * head_dim
        biased = self.setting(family.qkv_bias)
        qkv = self.linear(
            "qkv_proj", width + cache, self.hidden, f"{prefix}.q_proj", "qkv", bias=biased, cache=cache, head=head_dim
        )
        out = self.linear("o_proj", self.hidden, width, f"{prefix}.o_proj", "in", bias=self.setting(family.o_bias))
        return Gqa(
            self.heads,
            kv_heads,
            head_dim,
            qkv,
            out,
            window=window,
            softcap=fields.number("attn_logit_softcapping"),
            sinks=family.sinks,
            qk_norm=self.qk_norm(),
            rope=self.has_rope(index),
        )

    def qk_norm(self) -> str | None:
        """Which query/key normalisation the layers have."""
        if self.family.qk_norm == "full":
            return "full"
        kind = "each" if self.family.heads_apart else "head"
        return kind if self.setting(self.family.qk_norm) else None

    def has_rope(self, index: int) -> bool:
        """False on layers that a config lists as having no rotary embedding (SmolLM3: 0 = none)."""
        listed = self.fields.ints("no_rope_layers")
        self.fields.get("no_rope_layer_interval")
        return bool(listed[index]) if index < len(listed) else True

    def mla(self, index: int) -> Mla:
        """Latent attention of one layer."""
        fields, prefix = self.fields, f"model.layers.{index}.self_attn"
        for name in ("num_key_value_heads", "head_dim", "qk_head_dim"):
            fields.get(name)  # restated by configs; the latent dimensions below decide
        q_rank, kv_rank = fields.optional("q_lora_rank"), fields.integer("kv_lora_rank", high=8192)
        nope, rope = fields.integer("qk_nope_head_dim", high=4096), fields.integer("qk_rope_head_dim", high=1024)
        v_dim = fields.integer("v_head_dim", high=4096)
        biased = self.setting(self.family.qkv_bias)
        down = self.linear(
            "kv_a_proj" if q_rank is None else "qkv_a_proj",
            (q_rank or 0) + kv_rank + rope,
            self.hidden,
            f"{prefix}.kv_a_proj_with_mqa",
            bias=biased,
        )
        return Mla(
            self.heads,
            q_rank,
            kv_rank,
            nope,
            rope,
            v_dim,
            down=down,
            query=self.linear(
                "q_proj" if q_rank is None else "q_b_proj",
                self.heads * (nope + rope),
                q_rank or self.hidden,
                f"{prefix}.q_b_proj",
                "out",
            ),
            expand=self.linear("kv_b_proj", self.heads * (nope + v_dim), kv_rank, f"{prefix}.kv_b_proj", "out"),
            out=self.linear("o_proj", self.hidden, self.heads * v_dim, f"{prefix}.o_proj", "in", bias=biased),
        )

    def mlp(self, prefix: str, inter: int, label: str = "") -> Mlp:
        """A dense block `inter` wide; `label` prefixes the names of its matrices."""
        biased, gated = self.setting(self.family.mlp_bias), self.family.gated
        up_name = label + ("gate_up_proj" if gated else "up_proj")
        module = f"{prefix}.{'gate_proj' if gated else 'up_proj'}"
        up = self.linear(up_name, inter * (2 if gated else 1), self.hidden, module, "out", bias=biased)
        down = self.linear(label + "down_proj", self.hidden, inter, f"{prefix}.down_proj", "in", bias=biased)
        return Mlp(inter, gated, up, down)

    def moe(self, names: MoeFields, index: int) -> Moe:
        """The routed block of one layer."""
        fields, prefix = self.fields, f"model.layers.{index}.{names.module}"
        experts, topk = fields.integer(names.experts, high=65_536), fields.integer(names.topk, high=1024)
        if topk > experts:
            raise BadInput(f"{names.topk} = {topk}: must be at most {names.experts} = {experts}", field=names.topk)
        inter = fields.integer(names.inter)
        router = self.linear("router", experts, self.hidden, f"{prefix}.gate", bias=names.router_bias)
        shared = self.shared_inter(names, inter)
        return Moe(
            experts,
            topk,
            self.hidden,
            inter,
            router,
            precision=self.quantisation.of(f"{prefix}.experts.0.gate_proj", self.base),
            gated=self.family.gated,
            expert_bias=names.expert_bias,
            router_correction=self.setting(names.correction),
            shared=self.mlp(f"{prefix}.shared_experts", shared, "shared_") if shared else None,
            shared_gate=Linear("shared_gate", 1, self.hidden) if shared and names.shared_gate else None,
        )

    def shared_inter(self, names: MoeFields, inter: int) -> int:
        """Width of the shared expert, 0 when there is none."""
        if names.shared_inter:
            return self.fields.integer(names.shared_inter, 0, low=0)
        count = self.fields.integer(names.shared_count, 0, low=0) if names.shared_count else 0
        return count * inter

    def is_sparse(self, names: MoeFields, index: int) -> bool:
        """Whether a layer routes to experts."""
        fields = self.fields
        step = fields.integer(names.step, 1) if names.step else 1
        first = fields.integer(names.dense_first, 0, low=0) if names.dense_first else 0
        listed = fields.ints(names.dense_listed) if names.dense_listed else []
        # Qwen counts layers from one here, DeepSeek from zero; both ship a step of one.
        due = (index + 1) % step == 0 if names.dense_listed else index % step == 0
        return index >= first and index not in listed and due

    def layer(self, index: int, window: int | None) -> Layer:
        """One decoder layer."""
        attention = self.mla(index) if self.family.mla else self.gqa(index, window)
        names = self.family.moe
        dense_inter = self.fields.get("intermediate_size")  # read even where every layer is sparse
        if names and self.is_sparse(names, index):
            return Layer(attention, self.moe(names, index))
        inter = self.fields.integer("intermediate_size", *([4 * self.hidden] if dense_inter is None else []))
        return Layer(attention, self.mlp(f"model.layers.{index}.mlp", inter))


def parse(raw: Mapping[str, Any], name: str, *, ignore: tuple[str, ...] = (), hf_quant: Any = None) -> ModelSpec:
    """Turn a decoded config.json into a ModelSpec.

    `ignore`: fields the caller vouches for; `hf_quant`: a decoded hf_quant_config.json. Raises MissingField,
    BadInput, or UnsupportedModel naming the field that stands in the way.
    """
    text, side, notes = _text_part(raw)
    fields = Fields(text)
    model_type = _model_type(text)
    family = FAMILIES[ALIASES.get(model_type, model_type)]
    dtype = fields.get("torch_dtype", fields.get("dtype", "bfloat16"))
    if str(dtype).removeprefix("torch.") not in DTYPES:
        raise UnsupportedModel(f"torch_dtype = {dtype!r}: must be bfloat16, float16 or float32", field="torch_dtype")
    base = DTYPES[str(dtype).removeprefix("torch.")]
    section = fields.section("quantization_config") or Fields(raw).section("quantization_config")
    quantisation = quant.read_hf_quant(hf_quant) if hf_quant and not section else quant.read(section)
    _check_fixed(fields, family)
    reader = Reader(fields, family, quantisation, base)
    windows = _windows(fields, family, reader.count)
    layers = tuple(reader.layer(index, window) for index, window in enumerate(windows))
    spec = _whole(reader, name, model_type, _shared(layers), side, (*notes, *quantisation.notes))
    fields.reject_leftovers(frozenset(ignore))
    return spec


def _whole(
    reader: Reader, name: str, model_type: str, layers: tuple[Layer, ...], side: int, notes: tuple[str, ...]
) -> ModelSpec:
    fields, family = reader.fields, reader.family
    _check_activation(fields)
    vocab = fields.integer("vocab_size", *_default(family, "vocab_size"))
    biased = reader.setting(family.head_bias)
    return ModelSpec(
        name=name,
        model_type=model_type,
        hidden=reader.hidden,
        vocab=vocab,
        layers=layers,
        lm_head=reader.linear("lm_head", vocab, reader.hidden, "lm_head", "out", bias=biased),
        tied=fields.flag("tie_word_embeddings", family.tied),
        norms=family.norms,
        norm_bias=family.norm_bias,
        logit_softcap=fields.number("final_logit_softcapping"),
        max_length=fields.optional("max_position_embeddings"),
        dtype=reader.base.dtype,
        kv_dtype=reader.quantisation.kv_dtype,
        side_params=side,
        notes=notes,
    )


def _default(family: Family, name: str) -> list[int]:
    """The default a family's config class gives a field, if any, as optional arguments."""
    return [value for field, value in family.defaults if field == name]


def _shared(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The same layers with equal ones being one object, so that grouping hundreds of layers is cheap."""
    seen: dict[Layer, Layer] = {}
    return tuple(seen.setdefault(layer, layer) for layer in layers)


def _model_type(raw: Mapping[str, Any]) -> str:
    model_type = Fields(raw).need("model_type")
    if not isinstance(model_type, str) or ALIASES.get(model_type, model_type) not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UnsupportedModel(
            f"model_type = {model_type!r}: not modelled;{did_you_mean(str(model_type), FAMILIES)} known: {known}",
            field="model_type",
        )
    return model_type


def _text_part(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], int, tuple[str, ...]]:
    """The language model of a config, the idle parameters of a vision tower beside it, and what to tell the user."""
    text = raw.get("text_config")
    if not isinstance(text, Mapping):
        return raw, 0, ()
    _model_type(text)  # whether the model can be answered at all comes before its tower
    outer = Fields({k: v for k, v in raw.items() if k not in ("text_config", "quantization_config")})
    vision = outer.section("vision_config")
    hidden = Fields(text).integer("hidden_size")
    side = tower_params(vision, outer, hidden) if vision else 0
    outer.reject_leftovers(frozenset(text))
    merged = {"torch_dtype": raw.get("torch_dtype"), "dtype": raw.get("dtype"), **text}
    merged.setdefault("tie_word_embeddings", raw.get("tie_word_embeddings"))
    return merged, side, (("vision tower: counted in memory, not run; text requests only",) if vision else ())


def _check_fixed(fields: Fields, family: Family) -> None:
    """Fields that a family's files state and of which one value is modelled."""
    for name, wanted in family.fixed:
        if fields.get(name, wanted) != wanted:
            raise UnsupportedModel(f"{name} = {fields.get(name)!r}: only {wanted!r} is modelled", field=name)


def _check_activation(fields: Fields) -> None:
    activation = fields.get("hidden_act", fields.get("hidden_activation", "silu"))
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise UnsupportedModel(f"hidden_act = {activation!r}: not modelled", field="hidden_act")


def _windows(fields: Fields, family: Family, count: int) -> list[int | None]:
    """The attention window of each layer; `layer_types` decides where a config has it."""
    window = fields.optional("sliding_window")
    restated = fields.optional("sliding_window_size")  # Gemma 2 writes it twice
    if restated not in (None, window):
        raise BadInput(f"sliding_window_size = {restated}: must be sliding_window = {window}",
                       field="sliding_window_size")  # fmt: skip
    enabled = fields.flag("use_sliding_window", True)
    first = fields.integer("max_window_layers", 0, low=0) if family.window == "late" else 0
    pattern = fields.integer("sliding_window_pattern", fields.integer("layer_switch", family.window_pattern or 1))
    types = fields.get("layer_types")
    if types is not None:
        return _listed_windows(types, window, count)
    if window is None or not enabled or family.window == "none":
        return [None] * count
    if family.window == "late" and "use_sliding_window" not in fields.raw:
        return [None] * count
    slides = {
        "all": [True] * count,
        "late": [i >= first for i in range(count)],
        "alternate": [i % 2 == 0 for i in range(count)],
        "pattern": [(i + 1) % pattern != 0 for i in range(count)],
    }[family.window]
    return [window if slide else None for slide in slides]


def _listed_windows(types: Any, window: int | None, count: int) -> list[int | None]:
    if not isinstance(types, list) or len(types) != count:
        raise BadInput(f"layer_types: must list all {count} layers", field="layer_types")
    unknown = next((t for t in types if t not in ("full_attention", "sliding_attention")), None)
    if unknown is not None:
        raise UnsupportedModel(f"layer_types holds {unknown!r}: not modelled", field="layer_types")
    return [window if kind == "sliding_attention" else None for kind in types]
