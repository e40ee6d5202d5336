"""Calls from a model: the order-preserving match, the model's sequence, lengths of requests."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.errors import BadInput
from pipewave.kernels.attention.metadata import of_op, of_step
from pipewave.kernels.profiler import Given
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.traces.align import fused, match, match_score, sequence
from pipewave.traces.trace import Op, Step

ROLES = st.lists(st.sampled_from(["gemm", "attention", "norm", "fused", "copy", "fill", "moe"]), max_size=6).map(tuple)
USES = st.lists(st.sampled_from(["gemm", "attention", "norm", "rope", "topk", "moe"]), max_size=6).map(tuple)


def exhaustive(roles: tuple[str, ...], wanted: tuple[str, ...]) -> int:
    """The best total over all order-preserving pairings, by trying each."""
    best = 0
    for size in range(1, min(len(roles), len(wanted)) + 1):
        for left in combinations(range(len(roles)), size):
            for right in combinations(range(len(wanted)), size):
                values = [match_score(roles[i], wanted[j]) for i, j in zip(left, right, strict=True)]
                best = max(best, sum(values) if all(values) else 0)
    return best


@given(ROLES, USES)
def test_the_match_preserves_order_and_no_other_is_worth_more(roles: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    found = match(roles, wanted)
    pairs = [(role, at) for role, at in zip(roles, found, strict=True) if at is not None]
    positions = [at for _, at in pairs]
    assert positions == sorted(set(positions))
    values = [match_score(role, wanted[at]) for role, at in pairs]
    assert all(values)
    assert sum(values) == exhaustive(roles, wanted)


@lru_cache
def deployment(model: str, tp: int = 1) -> Deployment:
    return Deployment(load(model), Parallel(tp), page_size=16)


@pytest.mark.parametrize(
    ("model", "tp"), [("Llama-3.1-8B", 1), ("Qwen3-30B-A3B", 1), ("DeepSeek-V2-Lite", 1), ("Llama-3.1-70B", 4)]
)
def test_the_sequence_holds_every_kernel_of_the_step_as_often_as_the_step_does(model: str, tp: int) -> None:
    batch = Batch.of((1,) * 4, (100, 200, 300, 400))
    one_by_one = Counter(
        (use.name, use.call) for use in sequence(deployment(model, tp), batch) for _ in range(use.count)
    )
    whole = {(use.name, use.call): use.count for use in deployment(model, tp).kernels(batch)}
    assert one_by_one == whole


def test_fused_norms_side_by_side_read_all_rows_once() -> None:
    uses = [
        use for use in sequence(deployment("Qwen3-30B-A3B"), Batch.of((1,), (9,))) if use.name in ("q_norm", "k_norm")
    ]
    q, k = uses[:2]
    size = 2 * 128 * (q.call.rows + k.call.rows)
    both, statistics = fused([q, k], statistics=False), fused([q, k], statistics=True)
    assert both.bytes_read == statistics.bytes_read == size
    assert both.bytes_written == size
    assert statistics.bytes_written == 4 * (q.call.rows + k.call.rows)


def varlen(tokens: int, requests: int, longest_q: int, longest_kv: int) -> Op:
    dims = ((tokens, 32, 128), (9, 16, 8, 128), (9, 16, 8, 128), (), (), (), (), (requests + 1,), *[()] * 20)
    values = ("",) * 12 + (str(longest_q), str(longest_kv)) + ("",) * 14
    return Op(1, "_vllm_fa3_C::fwd", dims, ("c10::BFloat16",) * 3, values)


def test_one_request_has_the_longest_lengths() -> None:
    found = of_op(varlen(512, 1, 512, 4096), Given())
    assert found is not None
    assert (found.q_lens, found.kv_lens, found.note) == ((512,), (4096,), "")


def test_caches_of_several_decodes_are_assumed_and_said_to_be() -> None:
    found = of_op(varlen(4, 4, 1, 1000), Given())
    assert found is not None
    assert found.kv_lens == (1000,) * 4
    assert found.note


def test_lengths_of_the_user_are_taken_without_a_note() -> None:
    for lens in ((10, 20, 30, 40), (25,)):
        found = of_op(varlen(4, 4, 1, 1000), Given((), lens))
        assert found is not None
        assert found.note == ""
        assert found.kv_lens == (lens if len(lens) == 4 else lens * 4)


def test_steps_without_cache_lengths_are_assumed_uncached() -> None:
    found = of_step(Step(0.0, 1, 2048, 0, 0), Given())
    assert found is not None
    assert (found.q_lens, found.kv_lens) == ((2048,), (2048,))
    assert found.note
    mixed = of_step(Step(0.0, 1, 100, 3, 3), Given((), (500,)))
    assert mixed is not None
    assert (mixed.q_lens, mixed.kv_lens, mixed.note) == ((100, 1, 1, 1), (500,) * 4, "")


def test_cache_lengths_of_another_step_are_not_taken() -> None:
    found = of_step(Step(0.0, 1, 2048, 0, 0), Given((), (100,)))
    assert found is not None
    assert found.kv_lens == (2048,)
    assert found.note


def test_without_steps_both_lengths_must_fit() -> None:
    with pytest.raises(BadInput, match="kv-lens"):
        of_step(None, Given((2048,), (100,)))
