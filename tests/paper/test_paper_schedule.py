"""The paper's two attention schedulers against simulations written down naively, and what its two bugs do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paper
from paper import fa2, fa3
from tests.sampled import examples

COSTS = st.lists(st.integers(0, 40), min_size=1, max_size=120)
SMS = st.integers(1, 9)


def least_loaded_by_search(costs: list[int], sms: int) -> list[int]:
    """For each task look at every SM, and take the first of those with the least cost."""
    loads, placed = [0] * sms, []
    for cost in costs:
        sm = loads.index(min(loads))
        loads[sm] += cost
        placed.append(sm)
    return placed


def step_by_step(iterations: list[int], sms: int) -> list[int]:
    """Two CTAs per SM, one KV iteration per tick; a CTA that is done hands its slot to the next in line."""
    waiting = list(range(len(iterations)))
    placed = [-1] * len(iterations)
    running: list[list[int]] = []  # [ticks left, SM], in the order of the SMs
    for _ in range(2):
        for sm in range(sms):
            if waiting:
                task = waiting.pop(0)
                placed[task] = sm
                running.append([iterations[task], sm])
    running.sort(key=lambda slot: slot[1])
    while waiting:
        done = next((slot for slot in running if slot[0] <= 0), None)
        if done is None:
            for slot in running:
                slot[0] -= 1
            continue
        task = waiting.pop(0)
        placed[task] = done[1]
        done[0] = iterations[task]
    return placed


@given(COSTS, SMS)
def test_fa3_heap_is_a_search_for_the_least_loaded(costs: list[int], sms: int) -> None:
    assert fa3.fill_least_loaded(costs, sms).tolist() == least_loaded_by_search(costs, sms)


@given(COSTS, SMS)
@examples(60)
def test_fa2_slots_free_as_in_a_tick_by_tick_simulation(iterations: list[int], sms: int) -> None:
    placed = fa2.place(np.array(iterations), sms, "work_conserving").tolist()
    assert placed == step_by_step(iterations, sms)


@given(st.integers(1, 400), st.integers(1, 20), SMS)
def test_lock_step_is_right_when_all_tasks_are_alike(tasks: int, length: int, sms: int) -> None:
    iterations = np.full(tasks, length)
    lock_step = np.bincount(fa2.place(iterations, sms, "lock_step"), minlength=sms)
    right = np.bincount(fa2.place(iterations, sms, "work_conserving"), minlength=sms)
    assert lock_step.max() == right.max()


def test_the_schedule_bug_inflates_the_busiest_sm_only() -> None:
    """The dossier's check on A100: totals agree, and the busiest SM is some 15 % too busy where waves are many."""
    generator = np.random.default_rng(7)
    inflation = []
    for _ in range(20):
        lengths = generator.integers(500, 4000, size=8).tolist()
        call = {"q_lens": lengths, "kv_lens": lengths, "heads": 40, "kv_heads": 8, "head_dim": 128}
        bug = paper.features("attention", "A100", **call)
        right = paper.features("attention", "A100", **call, schedule="work_conserving")
        assert bug["tensor_all_ops"] == right["tensor_all_ops"]
        inflation.append(float(bug["tensor_sm_max_ops"] / right["tensor_sm_max_ops"]))
    assert 1.05 < np.mean(inflation) < 1.3


@pytest.mark.parametrize(
    ("batch", "kv_heads", "least", "most"), [(1, 1, 4.0, 16.0), (1, 8, 1.5, 16.0), (16, 8, 1.0, 1.1)]
)
def test_the_page_bug_splits_small_decodes_too_finely(batch: int, kv_heads: int, least: float, most: float) -> None:
    call = {"q_lens": [1] * batch, "kv_lens": [2048] * batch, "heads": 4 * kv_heads, "kv_heads": kv_heads}
    call["head_dim"] = 128
    bug = paper.features("attention", "A100", **call)
    right = paper.features("attention", "A100", **call, kv_split_unit="pages")
    assert least <= bug["tensor_all_ops"] / right["tensor_all_ops"] <= most


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=16), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_the_chunk_is_the_smallest_that_fits(kv: list[int], kv_heads: int, paged: bool) -> None:
    """Bisection equals trying one chunk after the other."""
    hw, lengths = paper.find("L20"), np.array(kv)
    tiles = np.ones_like(lengths)
    chunk = fa2.kv_chunk(hw, tiles, lengths, kv_heads, paged, "tokens")
    least = 8 if paged else 128

    def ctas(size: int) -> int:
        return int((-(-lengths // size)).sum())

    limit = 2 * hw.sms // kv_heads
    assert chunk >= least
    assert ctas(chunk) <= limit or chunk == max(max(kv), least)
    assert chunk == least or ctas(chunk - 1) > limit


def test_every_visible_key_is_visited_once() -> None:
    """Without rounding (tile edges on lengths) iterations x tile columns cover the causal triangle's tiles."""
    tile = fa2.QueryTile(rows=128, cols=64)
    iterations = fa2.task_iterations(np.array([512]), np.array([512]), 1, tile, chunk=128)
    per_tile = iterations.reshape(4, 4).sum(axis=1)
    assert per_tile.tolist() == [2, 4, 6, 8]
