"""Joules of steps, batches and servers: watts times time, boards that wait at idle, lower limits that slow."""

from __future__ import annotations

import numpy as np
import pytest

import pipewave as pw
from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.physics.power import MOST_OVER, board_of, limited, product_w
from pipewave.published.answers import answer, deploy
from pipewave.published.cases import Case, from_dict
from pipewave.simulate.power import MOST_KEPT, StretchLog
from pipewave.step import Runner, find_engine

LLAMA: dict[str, object] = {"model": "Llama-3.1-8B", "gpu": "H200", "engine": "vllm", "isl": 256, "osl": 64}


def case(**more: object) -> Case:
    return from_dict({**LLAMA, **more})


def test_joules_of_a_batch_are_watts_of_all_boards_times_its_time() -> None:
    for split in ({"tp": 1}, {"tp": 2}, {"tp": 1, "pp": 2}):
        found = pw.estimate("Llama-3.1-8B", "H200", batch=16, input_len=512, output_len=32, **split)
        spent = found.prefill_energy_j + found.decode_energy_j
        assert spent == pytest.approx(found.power_w * found.gpus * 1e-3 * found.e2e_ms, rel=1e-4)
        assert found.energy_j_per_output_token == pytest.approx(spent / (16 * 32), rel=1e-4)
        assert found.power_w_low < found.power_w < found.power_w_high < MOST_OVER * 700
        assert found.prefill_energy_j / found.prefill_ms > found.decode_energy_j / (found.e2e_ms - found.prefill_ms)


def test_watts_of_a_step_grow_with_its_requests_and_stay_below_the_limit() -> None:
    """Measured of these steps on an H200: 489, 574, 690 and 690 W (vLLM 0.22.1)."""
    runner = Runner.of(Deployment(load("Llama-3.1-8B"), Parallel()), find("H200"), find_engine("vllm:0.22.1"))
    steps = runner.steps([runner.batch([1] * n, [1024] * n) for n in (1, 16, 64, 256)])
    board = board_of(find("H200"))
    assert np.all(np.diff(steps.power_w) >= 0)
    assert np.all((board.idle_w < steps.power_w) & (steps.power_w <= board.limit_w))
    assert steps.power_w == pytest.approx([489, 574, 690, 690], rel=0.1)


def test_a_server_that_waits_draws_less_and_its_joules_are_watts_over_tokens() -> None:
    busy, slack = (answer(case(**pace)) for pace in ({"concurrency": 64}, {"rate": 0.5, "requests": 30}))
    board = board_of(find("H200"))
    assert board.idle_w < slack["power_w"] < 0.5 * busy["power_w"] < board.limit_w
    for found in (busy, slack):
        each = found["power_w"] / found["output_tokens_per_s"]
        assert found["energy_j_per_output_token"] == pytest.approx(each, rel=1e-4)
        for name in ("power_w", "energy_j_per_output_token"):
            assert found[f"{name}_low"] < found[name] < found[f"{name}_high"]


def test_watts_do_not_depend_on_whether_steps_are_kept() -> None:
    """A run without its steps goes through decode in stretches; pools and ranks have GPUs of their own."""
    for more in ({}, {"prefill": "workers=1", "decode": "workers=2"}, {"model": "Qwen3-30B-A3B", "dp": 2, "ep": 2}):
        one = case(concurrency=8, requests=24, **more)
        ready = deploy(one.stated(), one.traffic())
        found = []
        for keep in (False, True):
            record = ready.run(keep_steps=keep)
            found.append(ready.energy(record, ready.figures(record))["power_w"])
        assert found[0] == pytest.approx(found[1], rel=1e-4)  # a stretch is told at the middle of its cache


def test_a_lower_limit_slows_prompts_more_than_decoding_and_saves_energy() -> None:
    whole, low = (
        pw.estimate("Llama-3.1-8B", "H200", batch=8, input_len=4096, output_len=64, power_limit_w=limit)
        for limit in (None, 350)
    )
    assert 1.1 < low.prefill_ms / whole.prefill_ms < 2 and low.power_w < 350 < whole.power_w
    assert low.tpot_ms / whole.tpot_ms < low.prefill_ms / whole.prefill_ms
    assert low.prefill_energy_j < whole.prefill_energy_j
    assert answer(case(concurrency=32, power_limit_w=300))["power_w"] <= 300


def test_limits_that_no_board_holds_are_refused() -> None:
    for limit in (50.0, 701.0):
        with pytest.raises(BadInput, match="power_limit_w"):
            limited(find("H200"), limit)
    assert limited(find("H200"), None) is limited(find("H200"), 700.0) is find("H200")
    speeds = [product_w(limited(find("H200"), limit)) for limit in (200, 350, 500, 700)]
    assert speeds == sorted(speeds) and speeds[1] > 0.5 * speeds[3]


def test_a_long_run_is_told_from_a_bounded_sample_of_it() -> None:
    log, drawn = StretchLog(), np.random.default_rng(0)
    for start in range(50_000):
        log.add(0, float(start), 1.0, 1, int(drawn.integers(1, 9)), 8.0, ())
    for start in range(1_000):
        log.add(0, float(start), 5.0, 1, 1, 8.0, ((0, 64, 0),))
    sample = log.samples[0, False]
    assert len(sample.kept) <= MOST_KEPT < 2 * len(sample.kept) + 2 and sample.busy_s == 50_000.0
    assert np.mean([one.decoding for _, one in sample.kept]) == pytest.approx(4.5, rel=0.05)
    assert [len(each.kept) * each.apart_s for each in log.samples.values()] == pytest.approx([50_000, 5_000], rel=0.01)
