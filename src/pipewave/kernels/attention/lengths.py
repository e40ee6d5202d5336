"""Lengths of the requests behind an attention kernel: given by the user, recorded with the operator, or assumed."""

from __future__ import annotations

from dataclasses import dataclass

from pipewave.errors import BadInput
from pipewave.kernels.launched import Given, Op, Step

MOST_REQUESTS, MOST_TOKENS = 1 << 16, 1 << 24  # of one step; more is damage


@dataclass(frozen=True, slots=True)
class Lengths:
    """New tokens and cache lengths, one entry a request. `note` is empty when none had to be assumed."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class VarlenArgs:
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
    return _complete(requests, tokens, longest_q, longest_kv, given)


def _complete(requests: int, tokens: int, longest_q: int, longest_kv: int, given: Given) -> Lengths | None:
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
