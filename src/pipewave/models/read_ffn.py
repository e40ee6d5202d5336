"""Feed-forward parts of one layer from its fields: dense blocks, routed experts, plain maps."""

from __future__ import annotations

from collections.abc import Sequence

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.ffns import Bypass, Mlp, Moe
from pipewave.models.layer_reader import FFN, SHARED, LayerReader
from pipewave.models.precision import Linear

GATED = frozenset(
    {"silu", "swish", "swiglu", "swigluoai", "situ", "gelu", "gelu_fast", "gelu_tanh", "gelu_pytorch_tanh", "geglu"}
)
PLAIN = frozenset({"relu2", "gelu_new", "quick_gelu", "relu", "squared_relu", "relu_squared", "xielu", "gelu_10"})


def gated(reader: LayerReader) -> bool:
    """Whether blocks multiply two maps: the family says, else the activation."""
    activation = reader.fields.get("hidden_act", "silu")
    if not isinstance(activation, str) or activation not in GATED | PLAIN:
        raise UnsupportedModel(
            f"{reader.fields.named('hidden_act')} = {activation!r}: not modelled",
            field=reader.fields.named("hidden_act"),
        )
    return activation in GATED if reader.family.gated is None else reader.family.gated


def dense(reader: LayerReader) -> Mlp:
    """The dense block of one layer."""
    return mlp(reader, _inter(reader), FFN)


def _inter(reader: LayerReader) -> int:
    """Width of a dense block: its own field, else four times the hidden size; some configs double it where shared."""
    fields = reader.fields
    times = fields.integer("expansion_ratio", 4)  # MPT
    fallback = fields.get("shared_inter") or fields.get("moe_inter") or times * reader.hidden
    inter = fields.integer("intermediate_size", fallback) // (2 if reader.family.halved else 1)
    if fields.flag("borrowed") and fields.flag("use_double_wide_mlp"):
        return 2 * inter
    if fields.has("block_auto_adjust_ff_dim"):  # LFM2: two thirds, a multiplier, rounded up
        inter = int(2 * inter / 3 * (fields.number("block_ffn_dim_multiplier") or 1.0))
        step = fields.integer("block_multiple_of", 256)
        return -(-inter // step) * step
    return inter


def mlp(reader: LayerReader, inter: int, places: Sequence[str], label: str = "", inp: int = 0) -> Mlp:
    """A dense block `inter` wide; `label` prefixes the names of its matrices, `inp` is its width if not hidden."""
    width, biased, two = inp or reader.hidden, reader.setting(reader.family.mlp_bias), gated(reader)
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
        raise BadInput(
            f"{fields.named('topk')} = {topk}: must be at most {fields.named('experts')} = {experts}",
            field=fields.named("topk"),
        )
    inter = _expert_inter(reader)
    idle, latent = fields.integer("idle_experts", 0, low=0), fields.optional("moe_latent")
    shared, width = _shared(reader, inter), latent or reader.hidden
    router = Linear("router", experts + idle, reader.hidden, bias=family.router_bias)
    biased = reader.setting(family.mlp_bias) and latent is not None
    return Moe(
        experts, topk, width, inter, router,
        precision=reader.precision(("", "moe") if family.beside else FFN, "experts.0.gate_proj"),
        gated=gated(reader),
        expert_bias=family.expert_bias,
        router_correction=reader.setting(family.correction),
        shared=shared,
        shared_gate=Linear("shared_gate", 1, reader.hidden) if shared and family.shared_gate else None,
        into=reader.linear("latent_in", latent, reader.hidden, "fc1_latent_proj", places=FFN, bias=biased)
        if latent else None,
        back=reader.linear("latent_out", reader.hidden, latent, "fc2_latent_proj", places=FFN, bias=biased)
        if latent else None,
        small=(latent if latent and fields.flag("latent_moe_use_norm") else 0)
        + (reader.hidden + experts if family.router_scales else 0),
        idle=idle,
    )  # fmt: skip


def _expert_inter(reader: LayerReader) -> int:
    """Width of one expert; `intermediate_size` where no field speaks of experts alone."""
    raw = reader.fields.raw.get("intermediate_size", reader.fields.raw.get("ffn_hidden_size"))
    return reader.fields.integer("moe_inter", *([raw] if raw is not None else []))


def _shared(reader: LayerReader, inter: int) -> Mlp | None:
    """The shared expert: its own width, or so many of a routed one."""
    fields = reader.fields
    count = fields.get("shared_count", reader.family.shared_default)
    count = (
        fields.integer("shared_count", reader.family.shared_default, low=0)
        if not isinstance(count, bool)
        else int(count)
    )
    width = fields.get("shared_inter")
    wide = fields.integer("shared_inter", low=0) if width is not None else count * inter
    places = [f"{place}.{name}" for place in FFN for name in SHARED]
    return mlp(reader, wide, places, "shared_") if wide else None


def bypass(reader: LayerReader, places: Sequence[str]) -> Bypass:
    """One matrix in place of a block."""
    return Bypass("linear", (reader.linear("linear", reader.hidden, reader.hidden, "linear", places=places),))
