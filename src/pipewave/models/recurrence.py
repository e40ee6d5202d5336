"""Kernels of recurrences: projections, a short convolution, the scan of prompts, one step of decodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipewave.calls.base import Call
from pipewave.calls.operators import CausalConv1d, DeltaNet, Mamba2
from pipewave.models.mixers import Recurrent
from pipewave.models.stage import ACT, Stage, Use

STATE_DTYPES = {2: "bf16", 4: "fp32"}
DELTA = ("gdn", "kda")
BRANCHES = {"kda": 3}  # kernels of a convolution that share the channels: those of q, k and v


def before_recurrence(stage: Stage, spec: Recurrent) -> Iterator[Use]:
    """All maps from the hidden states, and the copy that parts what the first one leaves side by side."""
    for matrix in spec.inputs:
        yield stage.linear(matrix)
    if spec.interleaved:
        size = stage.rows * (spec.inputs[0].out // stage.tp) * ACT
        yield stage.streaming("delta_unpack", size, size)


def recurrence(stage: Stage, spec: Recurrent) -> Iterator[Use]:
    """The convolution and the recurrence, prompts and decodes apart, as engines launch them."""
    for pairs, phase in zip(stage.phases(), ("context", "generation"), strict=True):
        if pairs:
            q_lens = tuple(q for q, _ in pairs)
            phase = "verify" if phase == "generation" and max(q_lens) > 1 else phase
            if spec.channels and spec.kernel > 1:
                yield Use("causal_conv1d", _convolution(stage, spec, q_lens, phase))
            if spec.kind in DELTA and phase == "context":
                yield from _copies_beside_scan(stage, spec, sum(q_lens))
            if spec.key_dim:
                yield _CORES[spec.kind](stage, spec, q_lens, phase)


def _copies_beside_scan(stage: Stage, spec: Recurrent, tokens: int) -> Iterator[Use]:
    """Copies beside the scan of a prompt, as vLLM 0.22.1 makes them (fla/ops/fused_gdn_prefill_post_conv.py).

    Queries and keys are normed and parted from values; the buffer of outputs is zeroed, then filled with copies.
    """
    channels, out = (tokens * (size // stage.tp) * ACT for size in (spec.channels, spec.heads * spec.value_dim))
    yield stage.streaming("delta_prepare", channels, channels)
    yield stage.streaming("delta_output", out, 2 * out)


def _convolution(stage: Stage, spec: Recurrent, q_lens: tuple[int, ...], phase: str) -> Call:
    branches = BRANCHES.get(spec.kind, 1)
    channels = max(spec.channels // stage.tp // branches, 1)
    return CausalConv1d(q_lens, channels, width=spec.kernel, branches=branches, phase=phase, dtype=stage.dtype)


def _delta(stage: Stage, spec: Recurrent, q_lens: tuple[int, ...], phase: str) -> Use:
    """A delta net's chunked scan or step; ranks beyond the key heads repeat them."""
    values, keys = spec.heads // stage.tp, max(spec.key_heads // stage.tp, 1)
    call = DeltaNet(
        q_lens, keys, values, head_k_dim=spec.key_dim, head_v_dim=spec.value_dim, kind=spec.kind, phase=phase,
        state_dtype=STATE_DTYPES[spec.state_width], dtype=stage.dtype,
    )  # fmt: skip
    return Use("delta_net", call)


def _selective(stage: Stage, spec: Recurrent, q_lens: tuple[int, ...], phase: str) -> Use:
    """Mamba 2, and lightning attention, which is the same scan with a group of B and C for every head."""
    heads, groups = spec.heads // stage.tp, max(spec.key_heads // stage.tp, 1)
    call = Mamba2(
        q_lens, heads, head_dim=spec.value_dim, state_dim=spec.key_dim, groups=groups, chunk=spec.chunk, phase=phase,
        state_dtype=STATE_DTYPES[spec.state_width], dtype=stage.dtype,
    )  # fmt: skip
    return Use(spec.kind, call)


def _channelwise(stage: Stage, spec: Recurrent, q_lens: tuple[int, ...], phase: str) -> Use:
    """Mamba 1: every channel has a state of its own, read and written once; x, B, C and the gate pass by."""
    states = len(q_lens) * spec.heads // stage.tp * spec.key_dim * spec.state_width
    passing = sum(q_lens) * (3 * spec.heads // stage.tp + 2 * spec.key_dim) * ACT
    return stage.streaming("mamba1", states + passing, states + passing / 3)


_CORES: dict[str, Callable[[Stage, Recurrent, tuple[int, ...], str], Use]] = {
    "gdn": _delta,
    "kda": _delta,
    "mamba2": _selective,
    "lightning": _selective,
    "mamba1": _channelwise,
}


def after_recurrence(stage: Stage, spec: Recurrent) -> Iterator[Use]:
    """The gated norm of the outputs and the maps behind it."""
    if spec.norm:
        size = stage.rows * (spec.heads // stage.tp) * max(spec.value_dim, 1) * ACT
        yield stage.streaming("gated_norm", 2 * size, size)
    for matrix in spec.outputs:
        yield stage.linear(matrix)
