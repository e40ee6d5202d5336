"""Plans of one family: unequal batches over pages in every order, layouts and experts of their own."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from lab.ragged_plans import plan
from pipewave.measure.plan import Job


@pytest.fixture(scope="module")
def ragged() -> list[Job]:
    return plan("ragged")


def test_the_ragged_plan_holds_unequal_batches_over_pages_in_every_order(ragged: list[Job]) -> None:
    jobs = ragged
    assert len(jobs) > 3000
    assert {job.pages for job in jobs} == {"scattered", "random", "in_order"}
    assert sum(job.pages == "scattered" for job in jobs) > len(jobs) / 2
    unequal = [job for job in jobs if len(set(job.case["kv_lens"])) > 1]
    assert len(unequal) > 0.95 * len(jobs)
    factor = sorted(max(job.case["kv_lens"]) / min(job.case["kv_lens"]) for job in unequal)
    assert factor[len(factor) // 2] > 4
    every = Counter(json.dumps(job.case) for job in jobs)
    assert sum(count == 3 for count in every.values()) > 100
    assert all(kv >= q for job in jobs for q, kv in zip(job.case["q_lens"], job.case["kv_lens"], strict=True))


@pytest.mark.slow
def test_the_mixed_plan_holds_prompts_behind_decodes_on_layouts_of_its_own(ragged: list[Job]) -> None:
    jobs = plan("mixed")
    mixed = [job for job in jobs if min(job.case["q_lens"]) == 1 < max(job.case["q_lens"])]
    assert len(mixed) > 0.8 * len(jobs) > 8000
    layouts, others = (
        {tuple(job.case[name] for name in ("heads", "kv_heads", "head_dim")) for job in some} for some in (jobs, ragged)
    )
    assert len(layouts - others) > 100
    assert all(heads % kv_heads == 0 for heads, kv_heads, _ in layouts)


def test_the_experts_plan_holds_layers_that_blocks_divide_and_mostly_few_tokens() -> None:
    cases = [job.case for job in plan("experts")]
    assert len(cases) > 1000
    assert all(case["hidden"] % 128 == 0 == case["inter"] % 128 and case["topk"] < case["experts"] for case in cases)
    assert sum(case["tokens"] <= 32 for case in cases) > len(cases) / 2
    assert len({tuple(case[name] for name in ("experts", "topk", "hidden", "inter")) for case in cases}) > 100
