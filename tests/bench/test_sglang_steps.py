"""SGLang's measured servers: both GPUs read, no model in its own fit, and the host's pace taken from other prompts."""

from __future__ import annotations

import numpy as np
import pytest

from bench.e2e_fit import loss
from bench.e2e_sglang import GPUS, Told, measured, points, rows, told
from bench.e2e_steps import Measured
from pipewave.step import find_engine


@pytest.fixture(scope="module")
def loads() -> Measured:
    return measured()


def test_rows_of_both_gpus_hold_prompts_and_decodes() -> None:
    for gpu in GPUS:
        found = {(point.model, point.phase) for point in points(gpu)}
        assert len({model for model, _ in found}) >= 2 and {phase for _, phase in found} == {"prefill", "decode"}


def test_points_keep_their_order_where_gpus_stand_together(loads: Measured) -> None:
    """Each GPU's part is predicted as it is alone."""
    engine = find_engine("sglang")
    alone = [measured((gpu,)).predict_ms(engine) for gpu in GPUS]
    assert np.allclose(loads.predict_ms(engine), np.concatenate(alone))
    assert [point.card for point in loads.points] == [gpu for gpu in GPUS for _ in points(gpu)]


def test_the_hosts_pace_comes_from_other_prompts_of_the_server(loads: Measured) -> None:
    """A point's own launch moves the pace of others, never its own."""
    known = [row for gpu in GPUS for row in rows(gpu)]
    pace = told(loads, GPUS).pace_us
    servers = [server for _, server, _ in known]
    assert np.isfinite(pace).all() and 200.0 < pace.min() < pace.max() < 600.0
    assert len(set(servers)) >= 6
    # between servers the pace differs more than within one
    spread = [np.ptp(pace[[s == server for s in servers]]) for server in set(servers)]
    assert np.ptp(pace) > 2.0 * np.median(spread)


def test_a_told_host_moves_prompts_that_wait_for_it_and_no_decode(loads: Measured) -> None:
    engine = find_engine("sglang")
    slow = Told(loads.points, loads.loads, loads.owner, np.full(len(loads.points), 1e3))
    plain, waiting = loads.predict_ms(engine), slow.predict_ms(engine)
    decode = np.array([point.phase == "decode" for point in loads.points])
    short = np.array([point.phase == "prefill" and point.batch * point.input_len <= 256 for point in loads.points])
    assert np.allclose(plain[decode], waiting[decode]) and (waiting[short] > plain[short]).all()
    keep = ~decode
    assert np.allclose(slow.only(keep).predict_ms(engine), waiting[keep])


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
