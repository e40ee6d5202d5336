"""What drafts tokens beside a model, as a small model of its own.

An MTP head is one more layer of the model's last kind behind a map of (embedding, hidden state) to the hidden width; it
shares embedding and head. EAGLE-3's is one dense layer behind the same map. Both run once for each drafted token.
"""

from __future__ import annotations

from dataclasses import replace

from pipewave.models.ffns import Mlp
from pipewave.models.precision import Linear
from pipewave.models.spec import Layer, ModelSpec

WIDE = 4  # width of EAGLE's block over the hidden size, where the model has no dense one


def drafter(model: ModelSpec, method: str) -> ModelSpec | None:
    """The layers that draft for `model`; None where drafts are looked up (`ngram`) or another model's (`draft`)."""
    if method not in ("mtp", "eagle3"):
        return None
    layer = model.layers[-1] if method == "mtp" else _dense(model)
    joined = Linear("draft_in_proj", model.hidden, 2 * model.hidden)
    return replace(
        model, name=f"{model.name} ({method})", layers=(layer,), front=(joined,), front_params=0, tables=(), tower=None,
        learned_positions=0,
    )  # fmt: skip


def notes(model: ModelSpec, method: str) -> tuple[str, ...]:
    """What is assumed of the layers that draft."""
    if method != "mtp" or model.mtp_heads:
        return ()
    return (f"the card of {model.name} counts no MTP heads: one like its last layer is assumed",)


def _dense(model: ModelSpec) -> Layer:
    """A layer of the model's attention and a gated dense block: its own, or one of four times the hidden width."""
    last = next((layer for layer in reversed(model.layers) if layer.mixers), model.layers[-1])
    own = next((part for layer in reversed(model.layers) for part in layer.ffns if isinstance(part, Mlp)), None)
    return replace(last, ffns=(own or _block(model.hidden),))


def _block(hidden: int) -> Mlp:
    inter = WIDE * hidden
    up = Linear("gate_up_proj", 2 * inter, hidden, "out")
    return Mlp(inter, True, up, Linear("down_proj", hidden, inter, "in"))


def draft_bytes(draft: ModelSpec, tp: int, experts_over: int) -> float:
    """Weight bytes of the drafting layers on one rank; embedding and head are the model's own."""
    layers = sum(linear.weight_bytes(tp) for layer in draft.layers for linear in layer.linears())
    experts = sum(moe.expert_bytes(experts_over) for layer in draft.layers for moe in layer.moes)
    return layers + experts + sum(linear.weight_bytes(1) for linear in draft.front)
