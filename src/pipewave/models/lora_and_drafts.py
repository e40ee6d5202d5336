"""Small weights beside a model: LoRA adapters, and the layers that draft tokens (MTP, EAGLE-3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipewave.calls.fields import check_whole, words_of
from pipewave.models.precision import Linear
from pipewave.models.shard import Parallel
from pipewave.models.spec import Layer, Mlp, ModelSpec, Moe
from pipewave.models.stage import ACT, Stage, Use

EAGLE_WIDENING = 4  # width of EAGLE's block over the hidden size, where the model has no dense one
WIDE = 4  # bytes of the numbers between the two products


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
    inter = EAGLE_WIDENING * model.hidden
    up, down = Linear("gate_up_proj", 2 * inter, model.hidden, "out"), Linear("down_proj", model.hidden, inter, "in")
    return replace(last, ffns=(own or Mlp(inter, True, up, down),))


def draft_bytes(draft: ModelSpec, tp: int, experts_over: int) -> float:
    """Weight bytes of the drafting layers on one rank; embedding and head are the model's own."""
    layers = sum(linear.weight_bytes(tp) for layer in draft.layers for linear in layer.linears())
    experts = sum(moe.expert_bytes(experts_over) for layer in draft.layers for moe in layer.moes)
    return layers + experts + sum(linear.weight_bytes(1) for linear in draft.front)


@dataclass(frozen=True, slots=True)
class Lora:
    """`adapters` of `rank` that requests choose among evenly; all of them are resident."""

    rank: int
    adapters: int = 1

    def __post_init__(self) -> None:
        for name in ("rank", "adapters"):
            check_whole(f"lora {name}", getattr(self, name), high=4096, field="lora")


def lora_of(text: str) -> Lora:
    """From `rank=16,adapters=4`. Raises BadInput."""
    return Lora(**{"rank": 0} | words_of(text, {"rank": int, "adapters": int}, "lora", "rank=16,adapters=4"))


def adapted_linears(layer: Layer) -> Iterator[Linear]:
    """The maps of a layer that adapters stand beside."""
    dense = (part.shared if isinstance(part, Moe) else part for part in layer.ffns)
    for part in (*layer.mixers, *filter(None, dense)):
        yield from part.linears()


def lora_kernels(stage: Stage, layer: Layer, lora: Lora) -> Iterator[Use]:
    """The kernels that a layer's adapters add."""
    rows, rank, held = stage.rows, lora.rank, min(lora.adapters, stage.rows)
    for linear in adapted_linears(layer):
        out, inp = linear.shape(stage.tp)
        thin = rows * rank * WIDE
        yield stage.streaming("lora_shrink", rows * inp * ACT, thin, held * rank * inp * ACT)
        yield stage.streaming("lora_expand", thin + rows * out * ACT, rows * out * ACT, held * rank * out * ACT)


def adapter_bytes(model: ModelSpec, parallel: Parallel, lora: Lora) -> float:
    """Bytes of all adapters on one rank of a stage."""
    each = sum(
        count * lora.rank * sum(linear.shape(parallel.tp)) * ACT
        for layer, count in model.grouped()
        for linear in adapted_linears(layer)
    )
    return lora.adapters * each / parallel.pp
