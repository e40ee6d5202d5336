"""Feed-forward parts of one layer from its fields: dense blocks, routed experts, plain maps."""

from __future__ import annotations

from collections.abc import Sequence

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.ffns import Bypass, Mlp, Moe
from pipewave.models.maker import FFN, SHARED, Maker
from pipewave.models.precision import Linear

GATED = frozenset(
    {"silu", "swish", "swiglu", "swigluoai", "situ", "gelu", "gelu_fast", "gelu_tanh", "gelu_pytorch_tanh", "geglu"}
)
PLAIN = frozenset({"relu2", "gelu_new", "quick_gelu", "relu", "squared_relu", "relu_squared", "xielu", "gelu_10"})


def gated(make: Maker) -> bool:
    """Whether blocks multiply two maps: the family says, else the activation."""
    activation = make.fields.get("hidden_act", "silu")
    if not isinstance(activation, str) or activation not in GATED | PLAIN:
        raise UnsupportedModel(
            f"{make.fields.named('hidden_act')} = {activation!r}: not modelled", field=make.fields.named("hidden_act")
        )
    return activation in GATED if make.family.gated is None else make.family.gated


def dense(make: Maker) -> Mlp:
    """The dense block of one layer."""
    return mlp(make, _inter(make), FFN)


def _inter(make: Maker) -> int:
    """Width of a dense block: its own field, else four times the hidden size; some configs double it where shared."""
    fields = make.fields
    fallback = fields.get("shared_inter") or fields.get("moe_inter") or 4 * make.hidden
    inter = fields.integer("intermediate_size", fallback)
    if fields.flag("borrowed") and fields.flag("use_double_wide_mlp"):
        return 2 * inter
    if fields.has("block_auto_adjust_ff_dim"):  # LFM2: two thirds, a multiplier, rounded up
        inter = int(2 * inter / 3 * (fields.number("block_ffn_dim_multiplier") or 1.0))
        step = fields.integer("block_multiple_of", 256)
        return -(-inter // step) * step
    return inter


def mlp(make: Maker, inter: int, places: Sequence[str], label: str = "", inp: int = 0) -> Mlp:
    """A dense block `inter` wide; `label` prefixes the names of its matrices, `inp` is its width if not hidden."""
    width, biased, two = inp or make.hidden, make.setting(make.family.mlp_bias), gated(make)
    up = make.linear(
        label + ("gate_up_proj" if two else "up_proj"), inter * (2 if two else 1), width,
        "gate_proj" if two else "up_proj", "out", places=places, bias=biased,
    )  # fmt: skip
    down = make.linear(label + "down_proj", width, inter, "down_proj", "in", places=places, bias=biased)
    return Mlp(inter, two, up, down)


def moe(make: Maker) -> Moe:
    """The routed block of one layer."""
    fields, family = make.fields, make.family
    experts, topk = fields.integer("experts", high=65_536), fields.integer("topk", high=1024)
    if topk > experts:
        raise BadInput(
            f"{fields.named('topk')} = {topk}: must be at most {fields.named('experts')} = {experts}",
            field=fields.named("topk"),
        )
    inter = _expert_inter(make)
    idle, latent = fields.integer("idle_experts", 0, low=0), fields.optional("moe_latent")
    shared, width = _shared(make, inter), latent or make.hidden
    router = Linear("router", experts + idle, make.hidden, bias=family.router_bias)
    biased = make.setting(family.mlp_bias) and latent is not None
    return Moe(
        experts, topk, width, inter, router,
        precision=make.precision(("", "moe") if family.beside else FFN, "experts.0.gate_proj"),
        gated=gated(make),
        expert_bias=family.expert_bias,
        router_correction=make.setting(family.correction),
        shared=shared,
        shared_gate=Linear("shared_gate", 1, make.hidden) if shared and family.shared_gate else None,
        into=make.linear("latent_in", latent, make.hidden, "fc1_latent_proj", places=FFN, bias=biased)
        if latent else None,
        back=make.linear("latent_out", make.hidden, latent, "fc2_latent_proj", places=FFN, bias=biased)
        if latent else None,
        small=(latent if latent and fields.flag("latent_moe_use_norm") else 0)
        + (make.hidden + experts if family.router_scales else 0),
        idle=idle,
    )  # fmt: skip


def _expert_inter(make: Maker) -> int:
    """Width of one expert; `intermediate_size` where no field speaks of experts alone."""
    raw = make.fields.raw.get("intermediate_size", make.fields.raw.get("ffn_hidden_size"))
    return make.fields.integer("moe_inter", *([raw] if raw is not None else []))


def _shared(make: Maker, inter: int) -> Mlp | None:
    """The shared expert: its own width, or so many of a routed one."""
    fields = make.fields
    count = fields.get("shared_count", make.family.shared_default)
    count = (
        fields.integer("shared_count", make.family.shared_default, low=0) if not isinstance(count, bool) else int(count)
    )
    width = fields.get("shared_inter")
    wide = fields.integer("shared_inter", low=0) if width is not None else count * inter
    places = [f"{place}.{name}" for place in FFN for name in SHARED]
    return mlp(make, wide, places, "shared_") if wide else None


def bypass(make: Maker, places: Sequence[str]) -> Bypass:
    """One matrix in place of a block."""
    return Bypass("linear", (make.linear("linear", make.hidden, make.hidden, "linear", places=places),))
