"""Two-batch overlap: a step runs as two halves, and the exchange of one hides behind the kernels of the other.

With computing time C and exchanging time A of both halves together, the halves taking turns at every layer:

    step = max(C + A·s, A) + min(C, A) / layers

s: share of the SMs that a high-throughput exchange keeps from the kernels beside it; a low-latency one keeps none. The
first half's first turn has nothing beside it: the last term. Halves cost more than half: weights are read twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.models.expert_parallel import DEEPEP, FEW_TOKENS, LOW_LATENCY, NARROW
from pipewave.models.kernels import Batch
from pipewave.physics.demand import Array
from pipewave.software.engine import Engine


@dataclass(frozen=True, slots=True)
class TwoBatch:
    """From how many tokens of a rank steps are cut, and what the overlap leaves."""

    prompt: int
    decode: int
    layers: int
    exchange: str
    sms_share: float

    def cuts(self, tokens: int, *, prompts: bool) -> bool:
        """Whether a step is cut whose emptiest rank has so many tokens."""
        return tokens >= max(self.prompt if prompts else self.decode, 2)

    def busy(self, computing: Array | float, exchanging: Array | float, tokens: Array | float) -> Array:
        """Time of both halves; `tokens`: of a half, on a rank."""
        few = np.asarray(tokens) <= FEW_TOKENS if self.exchange == DEEPEP else np.bool_(self.exchange == LOW_LATENCY)
        held = computing + np.where(few, 0.0, self.sms_share) * exchanging
        return np.asarray(np.maximum(held, exchanging) + np.minimum(computing, exchanging) / self.layers)


def two_batch(engine: Engine, gpu: GPU, layers: int) -> TwoBatch | None:
    """The overlap of an engine on a GPU, None where steps are not cut. Raises BadInput where nothing could overlap."""
    if not engine.expert_parallel.two_batch:
        return None
    if engine.facts.dp > 1 and not engine.expert_parallel.two_batch_prompt:
        raise BadInput(f"two_batch_overlap: {engine.name} {engine.version} has none", field="two_batch_overlap")
    way = engine.expert_parallel.exchange.removesuffix(NARROW)
    if engine.facts.dp == 1 or not way.startswith(DEEPEP):
        raise BadInput(
            "two_batch_overlap: engines overlap DeepEP's exchange alone; give dp, ep and one of its backends",
            field="two_batch_overlap",
        )
    return TwoBatch(
        engine.expert_parallel.two_batch_prompt,
        engine.expert_parallel.two_batch_decode,
        layers,
        way,
        engine.expert_parallel.exchange_sms / gpu.sms,
    )


def halved(batch: Batch) -> Batch:
    """The larger half of a batch: every second request, or half the tokens where there is one."""
    if batch.requests == 1:
        tokens = -(-batch.q_lens[0] // 2)
        return Batch((tokens,), (batch.kv_lens[0] - batch.q_lens[0] + tokens,), verify=batch.verify)
    padded = None if batch.padded is None else -(-batch.padded // 2)
    return Batch(batch.q_lens[::2], batch.kv_lens[::2], padded, batch.verify)
