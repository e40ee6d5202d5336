"""A run over time, its middle, and what its means are made of."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pipewave.errors import BadInput, DoesNotFit
from pipewave.simulate.latency_breakdown import WAITING, latency_breakdown
from pipewave.simulate.pools import Pools, Side
from pipewave.simulate.report import middle, over_time, summary
from pipewave.simulate.setup import Setup
from pipewave.simulate.simulation import Record, Simulation
from pipewave.simulate.traffic import Traffic, synthetic
from tests.simulate.serving import serve

CLOSED = synthetic(120, input_len=600, output_len=60, concurrency=16, spread=0.5)
OPEN = synthetic(120, input_len=600, output_len=60, rate=30.0, spread=0.5)


@cache
def server(*sides: Side, **setup: int) -> Pools:
    return Pools.of("Llama-3.1-8B", "H200", Setup(**setup), 2048, sides or None)  # type: ignore[arg-type]


def record(traffic: Traffic, *sides: Side, **setup: int) -> Record:
    return server(*sides, **setup).record(traffic, keep_steps=True)


@pytest.mark.parametrize("traffic", [CLOSED, OPEN])
@pytest.mark.parametrize("setup", [{}, {"replicas": 2}, {"max_num_seqs": 4}, {"tp": 2}])
def test_stretches_add_up_to_the_run(traffic: Traffic, setup: dict[str, int]) -> None:
    """Requests and tokens times seconds do not depend on how finely the run is cut."""
    found = record(traffic, **setup)
    engines = server(**setup)
    whole, fine = (over_time(found, engines.pages, engines.powered, points) for points in (1, 200))
    width = np.diff([0.0, *fine["time_s"]])
    for name in ("running", "waiting", "kv_share", "output_tokens_per_s", "power_w"):
        mean = float(width @ np.array(fine[name])) / width.sum()
        assert mean == pytest.approx(whole[name][0], rel=2e-3, abs=1e-3)
    busy = sum(step.seconds * step.waiting for _, step in found.steps)
    assert whole["waiting"][0] * whole["time_s"][0] == pytest.approx(busy, rel=1e-3, abs=1e-2)


def test_pages_are_those_of_the_tokens_held() -> None:
    """A step holds pages for its requests' tokens, at most one page a request more."""
    found = record(CLOSED)
    size = server().decode.kv.page_size
    decodes = [step for _, step in found.steps if step.decoding and not step.pieces]
    assert len(decodes) > 100
    for step in decodes:
        assert step.cached / size - step.decoding <= step.pages <= step.cached / size + step.decoding


def test_middle_leaves_out_the_first_rounds_and_the_last() -> None:
    found = record(CLOSED)
    kept = middle(found, CLOSED)
    assert kept.sum() == 120 - 3 * 16
    assert found.arrival_s[kept].min() >= np.sort(found.arrival_s)[2 * 16]
    everything, settled = (summary(found, CLOSED, 1, kept=one)["ttft_mean_ms"] for one in (None, kept))
    assert settled < everything  # the crowd of the start is gone
    with pytest.raises(BadInput, match="at least 49"):
        middle(record(synthetic(48, input_len=64, output_len=8, concurrency=16)), CLOSED_SMALL)


CLOSED_SMALL = synthetic(48, input_len=64, output_len=8, concurrency=16)


@pytest.mark.parametrize("traffic", [CLOSED, OPEN])
def test_parts_are_the_means(traffic: Traffic) -> None:
    found = record(traffic, max_num_seqs=8)
    parts = latency_breakdown(server(max_num_seqs=8), found, traffic)
    figures = summary(found, traffic, 1)
    for name in ("ttft", "tpot"):
        assert sum(parts[f"{name}_ms"].values()) == pytest.approx(figures[f"{name}_mean_ms"], rel=1e-3)
    alone = latency_breakdown(server(), record(synthetic(3, input_len=64, output_len=8, concurrency=1)), CLOSED_FEW)
    assert WAITING not in alone["ttft_ms"]  # nobody before it


CLOSED_FEW = synthetic(3, input_len=64, output_len=8, concurrency=1)


def test_interval_holds_the_figure() -> None:
    """Also where other requests meet and a slow tail becomes shorter in slower steps."""
    answer = serve(server(), OPEN, interval=True).answer
    times = [name for name in answer if name.endswith("_ms")]
    assert {"ttft_mean_ms", "tpot_p99_ms", "e2e_p50_ms"} <= set(times)
    for name in times:
        assert answer[f"{name}_low"] <= answer[name] <= answer[f"{name}_high"]


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(BadInput, match="fewer requests"):
        server().record(CLOSED, keep_steps=True, most_steps=100)


@pytest.mark.parametrize("keep", [True, False])
def test_the_work_of_a_run_is_counted_before_it_begins_and_while_it_lasts(keep: bool) -> None:
    whole = Simulation(CLOSED, server().decode.pool(1), keep_steps=keep)
    whole.run()
    assert len(CLOSED) < whole.spent
    with pytest.raises(BadInput, match="engine steps") as found:
        server().record(CLOSED, keep_steps=keep, most_steps=int(whole.spent) - 1)
    assert found.value.field == "requests"
    with pytest.raises(BadInput, match="engine steps"):
        Simulation(CLOSED, server().decode.pool(1), most_steps=len(CLOSED) - 1)


@pytest.mark.parametrize("name", ["requests", "output_len"])
def test_traffic_of_more_requests_than_a_run_may_have_is_refused_before_it_is_drawn(name: str) -> None:
    with pytest.raises(BadInput, match="must be an integer") as found:
        synthetic(**({"requests": 1, "input_len": 1, "output_len": 1} | {name: 1 << 25}))
    assert found.value.field == name


def test_a_request_that_fits_no_cache_is_refused_before_a_step_is_run() -> None:
    one = server()
    room = one.decode.kv.pages * one.decode.kv.page_size
    fits, too_long = (synthetic(1, input_len=room - 10, output_len=size) for size in (11, 12))
    one.record(fits)
    pool = one.decode.pool(1)
    with pytest.raises(DoesNotFit, match=f"{room + 1} tokens"):
        Simulation(too_long, pool)


def test_a_cache_on_its_way_keeps_the_first_token_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that takes a cache sends the first token: a slower link moves TTFT and no later token."""
    traffic, apart = synthetic(40, input_len=1000, output_len=100, concurrency=8), server(Side(), Side())
    real, found = Pools.transfer_s, []
    for more in (0.0, 0.05):
        monkeypatch.setattr(Pools, "transfer_s", lambda self, tokens, more=more: real(self, tokens) + more)
        seen = record(traffic, Side(), Side())
        found.append((seen, latency_breakdown(apart, seen, traffic)))
    (before, parts), (after, later) = found
    assert later["ttft_ms"]["cache_transfer"] - parts["ttft_ms"]["cache_transfer"] == pytest.approx(50, abs=0.1)
    assert (after.first_s - after.arrival_s).mean() > (before.first_s - before.arrival_s).mean() + 0.03
    assert (after.done_s - after.first_s).mean() <= 1.05 * (before.done_s - before.first_s).mean()
    assert "cache_transfer" not in later["tpot_ms"]
    for seen, each in found:
        ttft = 1e3 * float((seen.first_s - seen.arrival_s).mean())
        assert sum(each["ttft_ms"].values()) == pytest.approx(ttft, rel=1e-3)


@pytest.mark.parametrize("traffic", [CLOSED, OPEN])
def test_sums_over_steps_do_not_need_the_steps(traffic: Traffic) -> None:
    kept, quick = server().record(traffic, keep_steps=True), server().record(traffic)
    assert kept.steps and not quick.steps
    for window in (None, middle(kept, traffic)):
        assert summary(quick, traffic, 1, kept=window) == pytest.approx(
            summary(kept, traffic, 1, kept=window), rel=1e-6
        )
    assert summary(kept, traffic, 1)["steps"] == len(kept.steps)
