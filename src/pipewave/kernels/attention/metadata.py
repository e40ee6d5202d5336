"""Attention and latent attention: kernel names in profiles, lengths of the requests behind them, rows, pages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipewave.calls.attention import Attention
from pipewave.errors import BadInput
from pipewave.kernels.base import Analysis, Columns, Context
from pipewave.kernels.family_metadata import Case
from pipewave.kernels.profiler import Given, Launched, Op, Shaped, Step
from pipewave.physics.demand import Array

# Lengths of the requests behind an attention kernel: given by the user, recorded with the operator, or assumed.

MOST_REQUESTS, MOST_TOKENS = 1 << 16, 1 << 24  # of one step; more is damage


class Lengths(NamedTuple):
    """New tokens and cache lengths, one entry a request. `note` is empty when none had to be assumed."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    note: str = ""


class VarlenArgs(NamedTuple):
    """Where a variable-length attention operator keeps things among its arguments."""

    starts: int  # cumulative query lengths: one more entry than requests
    longest_q: int
    longest_kv: int
    window_left: int


# Argument positions of FlashAttention's operators as vLLM registers them.
VARLEN = {
    "_vllm_fa3_C::fwd": VarlenArgs(7, 12, 13, 25),
    "_vllm_fa2_C::varlen_fwd": VarlenArgs(4, 10, 11, 15),
    "sgl_kernel::fwd": VarlenArgs(7, 12, 13, 25),
}


def of_op(op: Op, given: Given) -> Lengths | None:
    """Lengths of a variable-length operator, None where even the batch is unknown."""
    args = VARLEN[op.name]
    requests = (op.shape(args.starts) or (0,))[0] - 1
    tokens = op.shape(0)[0] if op.shape(0) else 0
    longest_q, longest_kv = _number(op.value(args.longest_q)), _number(op.value(args.longest_kv))
    if not 0 < requests <= min(tokens, MOST_REQUESTS):
        return None
    q_lens, note = given.q(requests, tokens), ""
    if not q_lens:
        q_lens = _even(tokens, requests)
        if requests > 1 and tokens != requests * longest_q:
            note = "query lengths assumed equal"
    kv_lens = given.kv(q_lens)
    if not kv_lens and longest_kv:
        kv_lens = (longest_kv,) * requests
        exact = requests == 1 or (longest_q == longest_kv and tokens == requests * longest_q)
        note = note or ("" if exact else "every cache assumed as long as the longest; --kv-lens gives them")
    return _checked(q_lens, kv_lens, note) if kv_lens else None


def of_step(step: Step | None, given: Given) -> Lengths | None:
    """Lengths of a step as far as its name and the user give them; prompts without --kv-lens count as uncached."""
    if step is None:
        return _checked(given.q_lens, given.kv(given.q_lens), "") if given.q_lens else None
    if not 0 < step.requests <= min(step.tokens, MOST_REQUESTS) or step.tokens > MOST_TOKENS:
        return None
    q_lens, note = given.q(step.requests, step.tokens), ""
    if not q_lens:
        q_lens = (*_even(step.prompt_tokens, step.prompts), *_even(step.decode_tokens, step.decodes))
        note = "" if step.prompts <= 1 or step.prompt_tokens == step.prompts else "query lengths assumed equal"
    kv_lens = given.kv(q_lens)
    if not kv_lens:
        kv_lens, note = q_lens, "no cached tokens assumed; --kv-lens gives the cache lengths"
    return _checked(q_lens, kv_lens, note)


def _even(tokens: int, requests: int) -> tuple[int, ...]:
    if not requests:
        return ()
    each, more = divmod(tokens, requests)
    return (each + 1,) * more + (each,) * (requests - more)


def _checked(q_lens: tuple[int, ...], kv_lens: tuple[int, ...], note: str) -> Lengths:
    if len(q_lens) != len(kv_lens) or any(q > kv for q, kv in zip(q_lens, kv_lens, strict=True)):
        raise BadInput(
            f"kv-lens = {list(kv_lens)[:4]}: include the new tokens, so each must be at least its query length "
            f"({list(q_lens)[:4]})",
            field="kv_lens",
        )
    return Lengths(q_lens, kv_lens, note)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 12 else 0


def read(launched: Launched, step: Step | None, given: Given) -> Shaped | None:
    """From PyTorch's operator, a library's, or an engine's around it."""
    if op := launched.op("aten::scaled_dot_product_attention"):
        return _dense(op, launched)
    op = launched.op(*VARLEN)
    if op and op.dims:
        return _call(op, of_op(op, given), launched, window=op.value(VARLEN[op.name].window_left))
    op = launched.op("vllm::unified_attention_with_output", "vllm::unified_attention")
    return _call(op, of_step(step, given), launched) if op and op.dims else None


def _call(op: Op, found: Lengths | None, launched: Launched, window: str = "") -> Shaped | None:
    """q [tokens, heads, dim]; keys [tokens, heads, dim] or paged [pages, page, heads, dim]."""
    q, k, dtype = op.shape(0), op.shape(1), op.dtype(0, launched)
    if found is None or len(q) != 3 or len(k) not in (3, 4) or dtype is None:
        return None
    call = Attention(
        found.q_lens,
        found.kv_lens,
        q[1],
        k[-2],
        q[2],
        window=int(window) + 1 if window.isdecimal() and len(window) < 10 else None,
        dtype=dtype,
        kv_dtype="fp8" if "Float8" in op.type(1) else None,
        page_size=k[1] if len(k) == 4 else None,
        impl=launched.impl,
    )
    return Shaped("attention", call, read=not found.note, note=found.note)


def _dense(op: Op, launched: Launched) -> Shaped | None:
    """PyTorch's operator: [batch, heads, length, dim]."""
    q, k, dtype = op.shape(0), op.shape(1), op.dtype(0, launched)
    if len(q) != 4 or len(k) != 4 or dtype is None or q[0] > 1 << 16:
        return None
    causal = op.value(5) == "True"
    call = Attention((q[2],) * q[0], (k[2],) * q[0], q[1], k[1], q[3], causal=causal, dtype=dtype, impl=launched.impl)
    return Shaped("attention", call)


def work(case: Case) -> tuple[float, float]:
    """FLOPs and bytes of a case, roughly."""
    pairs = sum(q * (kv - (q - 1) / 2) for q, kv in zip(case["q_lens"], case["kv_lens"], strict=True))
    width = case["head_dim"]
    kv_bytes = 4.0 * sum(case["kv_lens"]) * case["kv_heads"] * width
    return 4.0 * pairs * case["heads"] * width, kv_bytes + 4.0 * sum(case["q_lens"]) * case["heads"] * width


def waves(_cols: Columns, _ctx: Context, analysis: Analysis) -> Array:
    """Rounds of the thread blocks, as the features have them."""
    return np.asarray(np.exp2(analysis.features["waves"]))
