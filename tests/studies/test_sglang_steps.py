"""SGLang's measured servers: both GPUs read, no model in its own fit, and the host's pace taken from what queueing takes."""

from __future__ import annotations

import numpy as np
import pytest

from pipewave.step import find_engine
from studies.e2e_sglang import GPUS, ROUNDS, Told, idle_engine, measured, one_answer, points, rows, told
from studies.e2e_steps import Measured
from studies.e2e_vllm import leave_one_model_out
from train.step_fit import loss


@pytest.fixture(scope="module")
def loads() -> Measured:
    return measured()


def measured_of(loads: Measured) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([point.measured_ms for point in loads.points])


def test_rows_of_both_gpus_hold_prompts_and_decodes() -> None:
    for gpu in GPUS:
        found = {(point.model, point.phase) for point in points(gpu)}
        assert len({model for model, _ in found}) >= 2 and {phase for _, phase in found} == {"prefill", "decode"}


def test_points_keep_their_order_where_gpus_stand_together(loads: Measured) -> None:
    """Each GPU's part is predicted as it is alone."""
    engine = find_engine("sglang")
    alone = [measured((gpu,)).predict_ms(engine) for gpu in GPUS]
    assert np.allclose(loads.predict_ms(engine), np.concatenate(alone))
    assert [point.card.split()[0] for point in loads.points] == [gpu for gpu in GPUS for _ in points(gpu)]


def test_the_hosts_pace_is_one_number_a_server_and_goes_with_what_launching_took(loads: Measured) -> None:
    """It is read before any step, and servers that queue slowly launch slowly."""
    pace = told(loads, GPUS).pace
    servers = [seen.server for gpu in GPUS for seen in rows(gpu)]
    each = {
        server: {float(one) for one, other in zip(pace, servers, strict=True) if other == server} for server in servers
    }
    assert len(each) >= 6 and all(len(found) == 1 for found in each.values())
    assert 0.5 < pace.min() < 0.7 and 1.1 < pace.max() < 2.0
    short = [
        (point.measured_ms, pace[i], point.model)
        for i, point in enumerate(loads.points)
        if point.phase == "prefill" and point.batch * point.input_len == 128 and point.model.startswith("Llama")
    ]  # Llama: measured at least four times
    for model in {model for _, _, model in short}:
        ms, host = np.array([(a, b) for a, b, other in short if other == model]).T
        assert len(ms) >= 3 and np.corrcoef(ms, host)[0, 1] > 0.8


def test_prompts_whose_next_step_replays_no_graph_are_left_out() -> None:
    """Servers timed over rounds had decode graphs for 8 requests, the others for 256."""
    for gpu in GPUS:
        found = {True: 0, False: 0}
        for seen in rows(gpu):
            often = ROUNDS in seen.machine
            found[often] = max(found[often], seen.point.batch)
        assert found == {True: 8, False: 256}


@pytest.mark.slow
def test_servers_timed_over_rounds_meet_the_bar_with_the_machine_known_from_other_models(loads: Measured) -> None:
    off = np.abs(leave_one_model_out(told(loads, GPUS, others=True), idle_engine()) / measured_of(loads) - 1.0)
    often = np.array([point.card.endswith(ROUNDS) for point in loads.points])
    assert often.sum() >= 56 and len({point.card for point in loads.points}) == 4 and off[often].mean() < 0.04


@pytest.mark.slow
def test_told_the_hosts_pace_no_model_left_out_is_far_off(loads: Measured) -> None:
    """The bar that own steps have to meet, of prompts and of decodes."""
    off = np.abs(leave_one_model_out(told(loads, GPUS), idle_engine()) / measured_of(loads) - 1.0)
    prompt = np.array([point.phase == "prefill" for point in loads.points])
    assert off[prompt].mean() < 0.04 and off[~prompt].mean() < 0.04


def test_a_told_host_moves_prompts_that_wait_for_it_and_no_decode(loads: Measured) -> None:
    engine = find_engine("sglang")
    slow = Told(loads.points, loads.loads, loads.owner, np.full(len(loads.points), 3.0))
    plain, waiting = loads.predict_ms(engine), slow.predict_ms(engine)
    decode = np.array([point.phase == "decode" for point in loads.points])
    short = np.array([point.phase == "prefill" and point.batch * point.input_len <= 256 for point in loads.points])
    assert np.allclose(plain[decode], waiting[decode]) and (waiting[short] > plain[short]).all()
    keep = ~decode
    assert np.allclose(slow.only(keep).predict_ms(engine), waiting[keep])


def test_one_answer_for_two_servers_of_a_deployment_is_one_of_theirs_and_none_is_better(loads: Measured) -> None:
    real, one = measured_of(loads), one_answer(loads.points)
    twice = one != real
    assert 20 < twice.sum() < len(real) / 2
    assert np.abs(one / real - 1.0).mean() <= min(np.abs(one * factor / real - 1.0).mean() for factor in (0.98, 1.02))


def test_every_model_of_every_gpu_counts_alike(loads: Measured) -> None:
    """The mean over phases of means over models, by hand."""
    engine = find_engine("sglang")
    alone = loads.only(np.array([point.card == "H200" for point in loads.points]))
    wrong = np.abs(np.log(alone.predict_ms(engine) / [point.measured_ms for point in alone.points]))
    groups: dict[tuple[str, str], list[float]] = {}
    for point, error in zip(alone.points, wrong, strict=True):
        groups.setdefault((point.phase, point.model), []).append(error)
    phases = {phase: np.mean([np.mean(e) for (p, _), e in groups.items() if p == phase]) for phase, _ in groups}
    assert loss(alone, engine) == pytest.approx(np.mean(list(phases.values())))
