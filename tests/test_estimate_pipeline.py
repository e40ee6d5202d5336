"""Static batches over pipeline stages, few requests included: turns without requests take no time."""

from __future__ import annotations

import pytest

from pipewave.serve import Estimate, estimate
from pipewave.serve.uniform import Uniform


def ask(pp: int, batch: int, output_len: int = 64, tokens: int = 8192, input_len: int = 256) -> Estimate:
    return estimate(
        "Llama-3.1-8B",
        "H200",
        batch=batch,
        input_len=input_len,
        output_len=output_len,
        pp=pp,
        max_num_batched_tokens=tokens,
    )


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize(
    ("depth", "batch", "output_len", "tokens"),
    [(1, 3, 9, 64), (2, 1, 9, 64), (4, 3, 5, 48), (4, 9, 2, 64), (3, 7, 1, 64)],
)
def test_busy_steps_are_those_with_requests(depth: int, batch: int, output_len: int, tokens: int, mixed: bool) -> None:
    plan = Uniform(batch, 32, output_len, tokens, depth, mixed).plan()
    assert plan.busy().tolist() == [bool(plan.lengths(step)[0]) for step in range(plan.total_steps)]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_requests_of_one_turn_pay_for_every_stage(batch: int) -> None:
    """All prompts fit one step, so one turn of the pipeline holds everything and the others idle."""
    alone, piped = ask(1, batch), ask(4, batch)
    assert piped.tpot_ms == pytest.approx(alone.tpot_ms, rel=0.15)
    assert piped.e2e_ms == pytest.approx(piped.prefill_ms + 63 * piped.tpot_ms, rel=0.02)


def test_turns_share_the_pipeline() -> None:
    """Prompts in as many steps as stages: every turn works, and a token costs a request hardly more than alone."""
    one, four = ask(4, 1, tokens=257), ask(4, 4, tokens=257)
    assert four.tpot_ms < 1.3 * one.tpot_ms
    assert four.output_tokens_per_s > 2.5 * one.output_tokens_per_s


def test_uneven_turns_do_not_blur() -> None:
    """Three requests over two turns: the run ends when the fuller turn does."""
    few, more = ask(2, 2, tokens=257), ask(2, 3, tokens=513)
    assert few.tpot_ms <= more.tpot_ms * 1.05
    assert more.e2e_ms == pytest.approx(more.prefill_ms + 63 * more.tpot_ms, rel=0.05)
