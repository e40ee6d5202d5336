"""Which experts vLLM's random weights choose in a measured decode step of a mixture of experts.

Dummy weights draw every parameter from one seed, so all layers are the same, and the measured caches were filled with
bfloat16 values of `uniform_(-1, 1)`, which turns values that round up to 1 into -1: their mean is -2^-9. Attention
over them is nearly uniform, so each layer adds one and the same vector to every request. Deep layers then choose like
experts for all, the more the longer the cache: the mean falls with no context, the spread does. Real text does no such
thing; these points are predicted with the experts that this arithmetic gives.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipewave.models.spec import Gqa, Layer, ModelSpec, Moe

CACHE_MEAN, CACHE_STD = -(2.0**-9), 3.0**-0.5
LARGEST_WEIGHT = 1e-3  # dummy weights are uniform up to this
EPSILON = 1e-6
EVERY = 4  # layers from one that is looked at to the next


def histograms(model: ModelSpec, batch: int, context: int, distinct: int) -> Iterator[tuple[int, ...]]:
    """Tokens of each expert in every fourth layer; `distinct`: different tokens that the batch decodes."""
    draw = np.random.default_rng(0)
    heads, experts = _parts(model.layers[0])
    hidden, inner = experts.hidden, heads.kv_heads * heads.head_dim
    gate = _weights(draw, experts.experts, hidden) * _weights(draw, hidden)
    # heads of a group attend alike, so their columns of the output projection add up
    output = _weights(draw, inner, heads.heads // heads.kv_heads, hidden).sum(1)
    residual = _weights(draw, distinct, hidden)[np.arange(batch) % distinct]
    for layer in range(len(model.layers)):
        attended = CACHE_MEAN + draw.normal(0.0, CACHE_STD / context**0.5, (batch, inner))
        residual = residual + attended @ output
        if layer % EVERY == 0:
            logits = residual / np.sqrt((residual**2).mean(1, keepdims=True) + EPSILON) @ gate.T
            chosen = np.argpartition(-logits, experts.topk, axis=1)[:, : experts.topk]
            yield tuple(np.bincount(chosen.ravel(), minlength=experts.experts).tolist())


def _parts(layer: Layer) -> tuple[Gqa, Moe]:
    if not isinstance(layer.mixer, Gqa) or not isinstance(layer.ffn, Moe):
        raise TypeError("only models of grouped attention and routed experts in every layer")
    return layer.mixer, layer.ffn


def _weights(draw: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    return draw.uniform(-LARGEST_WEIGHT, LARGEST_WEIGHT, shape)
