"""Kernels of recurrences: projections, a short convolution, the scan of prompts, one step of decodes."""

from __future__ import annotations

from collections.abc import Iterator

from pipewave.calls.families import Gemm
from pipewave.models.mixers import Recurrent
from pipewave.models.stage import ACT, Stage, Use


def before_recurrence(stage: Stage, spec: Recurrent) -> Iterator[Use]:
    """All maps from the hidden states."""
    for matrix in spec.inputs:
        yield stage.linear(matrix)


def recurrence(stage: Stage, spec: Recurrent) -> Iterator[Use]:
    """The convolution and the recurrence, prompts and decodes apart, as engines launch them."""
    for pairs in stage.phases():
        if pairs:
            tokens, requests = sum(q for q, _ in pairs), len(pairs)
            yield from _convolution(stage, spec, tokens, requests)
            yield from _scan(stage, spec, tokens, requests, prompt=pairs[0][0] > 1)


def _convolution(stage: Stage, spec: Recurrent, tokens: int, requests: int) -> Iterator[Use]:
    channels = spec.channels // stage.tp
    if channels and spec.kernel > 1:
        kept = requests * channels * (spec.kernel - 1) * ACT
        size = tokens * channels * ACT
        yield stage.streaming("causal_conv1d", size + kept, size + kept)


def _scan(stage: Stage, spec: Recurrent, tokens: int, requests: int, *, prompt: bool) -> Iterator[Use]:
    """The state of each request is read and written once; prompts add products within chunks and with the state."""
    state = requests * (spec.state_bytes(stage.tp) - spec.channels // stage.tp * max(spec.kernel - 1, 0) * 2)
    if not spec.key_dim:
        return
    heads = spec.heads // stage.tp
    moved = tokens * heads * (2 * spec.key_dim + 2 * spec.value_dim) * ACT
    yield stage.streaming(f"{spec.kind}_{'scan' if prompt else 'step'}", state + moved, state + moved / 4)
    if prompt and spec.value_dim > 1:
        # per token and head: 3 products with the state, and with the chunk 3 over keys and 2 over values
        flops = 6 * spec.key_dim * spec.value_dim + 2 * spec.chunk * (3 * spec.key_dim + 2 * spec.value_dim)
        depth = max(round(flops / (2 * spec.value_dim)), 1)
        yield Use(f"{spec.kind}_chunks", Gemm(tokens * heads, spec.value_dim, depth, dtype=stage.dtype))


def after_recurrence(stage: Stage, spec: Recurrent) -> Iterator[Use]:
    """The gated norm of the outputs and the maps behind it."""
    if spec.norm:
        inner = spec.heads // stage.tp * max(spec.value_dim, 1)
        size = stage.rows * inner * ACT
        yield stage.streaming("gated_norm", 2 * size, size)
    for matrix in spec.outputs:
        yield stage.linear(matrix)
