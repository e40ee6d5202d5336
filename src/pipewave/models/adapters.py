"""LoRA beside a model's maps: two thin products a map, for whichever adapters a batch holds.

y += B·(A·x): `shrink` reads the inputs and the A of every adapter in the batch and writes `rank` numbers a row,
`expand` reads them and the B and adds to the outputs. Both only move bytes at the ranks in use (8 to 64). Routed
experts and the router have none, as vLLM and SGLang serve them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipewave.errors import BadInput
from pipewave.models.ffns import Moe
from pipewave.models.precision import Linear
from pipewave.models.shard import Parallel
from pipewave.models.spec import Layer, ModelSpec
from pipewave.models.stage import ACT, Stage, Use

WIDE = 4  # bytes of the numbers between the two products


@dataclass(frozen=True, slots=True)
class Lora:
    """`adapters` of `rank` that requests choose among evenly; all of them are resident."""

    rank: int
    adapters: int = 1

    def __post_init__(self) -> None:
        for name in ("rank", "adapters"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
                raise BadInput(f"lora {name} = {value!r}: must be an integer from 1 to 4096", field="lora")


def lora_of(text: str) -> Lora:
    """From `rank=16,adapters=4`. Raises BadInput."""
    said = dict(part.partition("=")[::2] for part in text.split(",") if part.strip())
    try:
        numbers = {name.strip(): int(value) for name, value in said.items()}
        return Lora(**numbers)
    except (TypeError, ValueError) as problem:
        raise BadInput(f"lora = {text!r}: must look like rank=16,adapters=4", field="lora") from problem


def adapted(layer: Layer) -> Iterator[Linear]:
    """The maps of a layer that adapters stand beside."""
    for mixer in layer.mixers:
        yield from mixer.linears()
    for part in layer.ffns:
        if isinstance(part, Moe):
            yield from part.shared.linears() if part.shared else ()
        else:
            yield from part.linears()


def beside(stage: Stage, layer: Layer, lora: Lora) -> Iterator[Use]:
    """The kernels that a layer's adapters add."""
    rows, rank = stage.rows, lora.rank
    held = min(lora.adapters, rows)
    for linear in adapted(layer):
        out, inp = linear.shape(stage.tp)
        thin = rows * rank * WIDE
        yield stage.streaming("lora_shrink", rows * inp * ACT, thin, held * rank * inp * ACT)
        yield stage.streaming("lora_expand", thin + rows * out * ACT, rows * out * ACT, held * rank * out * ACT)


def adapter_bytes(model: ModelSpec, parallel: Parallel, lora: Lora) -> float:
    """Bytes of all adapters on one rank of a stage."""
    each = sum(
        count * lora.rank * sum(linear.shape(parallel.tp)) * ACT
        for layer, count in model.grouped()
        for linear in adapted(layer)
    )
    return lora.adapters * each / parallel.pp
