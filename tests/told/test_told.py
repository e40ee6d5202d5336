"""Measured runs that a case is told: laws of the correction, and its closed form beside the definition."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.errors import BadInput, MissingField, UnknownField
from pipewave.gpus import find
from pipewave.physics.power import board_of
from pipewave.published.answers import answer as untold
from pipewave.published.cases import from_dict
from pipewave.simulate.setup import Pace
from pipewave.told.answers import ENERGY, RATE, answer
from pipewave.told.posterior import CAUSES, LATENTS, PLACES, Points, Posterior, covariance, shipped, variance
from tests.command_line import CliRunner

BASE: dict[str, Any] = {"model": "Qwen3-0.6B", "gpu": "H100", "engine": "vllm", "version": "0.12.0"}
LOADS = [{"isl": 500, "osl": 40, "concurrency": many} for many in (4, 16, 32)]
ASKED = {"isl": 1000, "osl": 60, "concurrency": 24}
MEANS = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s")


def means(case: dict[str, Any], pace: Pace = Pace(), factor: float = 1.0) -> dict[str, Any]:  # noqa: B008
    found = untold(from_dict(BASE | case), None, pace)
    return case | {name: factor * found[name] for name in ("ttft_ms", "tpot_ms")}


def ask(told: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return answer(from_dict(BASE | ASKED | {"told": told} | more))


def width(found: dict[str, Any], name: str) -> float:
    return float(found[f"{name}_high"] / found[f"{name}_low"])


def test_what_was_predicted_leaves_the_answer_and_narrows_it() -> None:
    before, after = untold(from_dict(BASE | ASKED)), ask([means(load) for load in LOADS])
    for name in MEANS:
        assert after[name] == pytest.approx(before[name], rel=0.02)
        assert width(after, name) < width(before, name)


@pytest.mark.parametrize("pace", [Pace(host=1.6), Pace(decode=1.2, prompt=1.2), Pace(frontend=1.5)])
def test_a_slower_machine_is_recognised(pace: Pace) -> None:
    truth = untold(from_dict(BASE | ASKED), None, pace)
    before, after = untold(from_dict(BASE | ASKED)), ask([means(load, pace) for load in LOADS])
    off = {n: (abs(np.log(after[n] / truth[n])), abs(np.log(before[n] / truth[n]))) for n in MEANS}
    assert sum(now for now, _ in off.values()) < 0.7 * sum(was for _, was in off.values())
    assert all(after[f"{name}_low"] < truth[name] < after[f"{name}_high"] for name in MEANS)


def test_a_sibling_moves_the_same_way_but_less() -> None:
    told = [means(load, factor=1.4) for load in LOADS]
    own = ask(told)["tpot_ms"] / untold(from_dict(BASE | ASKED))["tpot_ms"]
    sibling = [load | {"model": "Qwen3-0.6B"} for load in told]
    other = answer(from_dict(BASE | ASKED | {"model": "Llama-3.2-1B", "told": sibling}))
    moved = other["tpot_ms"] / untold(from_dict(BASE | ASKED | {"model": "Llama-3.2-1B"}))["tpot_ms"]
    assert 1.0 < moved < own < 1.45


@pytest.mark.parametrize(("factor", "joules"), [(1.5, None), (0.7, None), (0.2, None), (1.0, 2.0), (1.0, 9.0)])
def test_watts_and_joules_follow_the_corrected_rate(factor: float, joules: float | None) -> None:
    """Joules of a token times tokens are the watts, within what the board may draw; work costs what it did."""
    before = untold(from_dict(BASE | ASKED))
    energy = {} if joules is None else {ENERGY: joules * before[ENERGY]}
    after = ask([means(load, factor=factor) | energy for load in LOADS])
    faster = after[RATE] / before[RATE]
    board = board_of(find("H100"))
    if after["power_w"] < board.limit_w:
        assert after[ENERGY] * after[RATE] == pytest.approx(after["power_w"], rel=1e-3)
    if joules is None:
        worked = board.idle_w + (before["power_w"] - board.idle_w) * faster
        assert after["power_w"] == pytest.approx(min(worked, board.limit_w), rel=1e-4)
        assert (after[ENERGY] < before[ENERGY]) == (faster > 1)
    for name in ("power_w", ENERGY):
        assert after[f"{name}_low"] <= after[name] <= after[f"{name}_high"]


def test_serve_shows_told_joules_as_python_does(tmp_path: Path) -> None:
    """The command had gone on with the joules that were predicted."""
    before = untold(from_dict(BASE | ASKED))
    told = [means(load) | {ENERGY: 1.6 * before[ENERGY]} for load in LOADS]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps(told))
    words = (
        "serve --model Qwen3-0.6B --gpu H100 --engine vllm:0.12.0 --isl 1000 --osl 60 --concurrency 24 --json --told"
    )
    shown, same = json.loads(CliRunner().invoke(build(), [*words.split(), str(file)]).output), ask(told)
    assert shown[ENERGY] > 1.2 * before[ENERGY]
    for name in (f"{figure}{side}" for figure in (ENERGY, "power_w") for side in ("", "_low", "_high")):
        assert shown[name] == pytest.approx(same[name], rel=1e-3)


def test_a_told_pace_is_the_run_s_own() -> None:
    """Runs told at a concurrency had been simulated at the rate that was asked about."""
    asked = BASE | {"isl": 500, "osl": 40, "rate": 2.0, "requests": 60}
    told = [{"concurrency": 8, "tpot_ms": 6.0}, {"rate": 3.0, "tpot_ms": 6.0}, {"isl": 400, "tpot_ms": 6.0}]
    paces = [(run.case.rate, run.case.concurrency) for run in from_dict(asked | {"told": told}).told]
    assert paces == [(None, 8), (3.0, None), (2.0, None)]


@pytest.mark.parametrize(("rate", "moves"), [(2.0, False), (500.0, True)])
def test_a_told_slowness_moves_a_rate_that_the_most_in_flight_hold_back(rate: float, moves: bool) -> None:
    load = {"rate": rate, "concurrency": 8, "requests": 80, "isl": 500, "osl": 40}
    before, after = untold(from_dict(BASE | load)), answer(from_dict(BASE | load | {"told": [means(load, factor=1.5)]}))
    assert (after[RATE] < 0.9 * before[RATE]) == moves


def test_one_run_that_fits_no_other_is_named_and_left_out() -> None:
    told = [means(load) for load in LOADS]
    found = ask([*told, means(ASKED | {"concurrency": 20}, factor=3.0)])
    assert any("told[3] fit" in note for note in found["notes"])
    assert found["tpot_ms"] == pytest.approx(ask(told)["tpot_ms"], rel=0.08)


def test_order_of_runs_does_not_matter_and_one_that_cannot_run_is_noted() -> None:
    told = [means(load, factor=1.2) for load in LOADS]
    impossible = {"tp": 3, "ttft_ms": 5.0}
    found, other = ask([*told, impossible]), ask([impossible, *reversed(told)])
    assert [found[name] for name in MEANS] == pytest.approx([other[name] for name in MEANS])
    assert any(note.startswith("told[3] is left out: ") for note in found["notes"])
    assert ask([impossible])["ttft_ms"] == untold(from_dict(BASE | ASKED))["ttft_ms"]


def test_a_told_run_is_the_case_but_for_what_it_says() -> None:
    case = from_dict(BASE | ASKED | {"tp": 2, "told": [{"input_len": 700, "tp": None, "ttft_ms": 3.0}]})
    assert case.told[0].case == replace(case, isl=700.0, tp=1, told=())
    listed = from_dict(BASE | {"arrivals": [[0.0, 10, 5]], "told": [LOADS[0] | {"ttft_ms": 3.0}, {"tpot_ms": 2.0}]})
    assert [run.case.arrivals is None for run in listed.told] == [True, False]


@pytest.mark.parametrize(
    ("told", "error", "field"),
    [
        ({"ttft_ms": 3.0}, BadInput, "told"),
        ([3.0], BadInput, "told"),
        ([{"concurrency": 3}], MissingField, "told[0]"),
        ([{"ttft_ms": 3.0}, {"ttft_ms": -3.0}], BadInput, "told[1].ttft_ms"),
        ([{"ttft_ms": 3.0, "concurency": 3}], UnknownField, "told[0].concurency"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(told: Any, error: type[BadInput], field: str) -> None:
    with pytest.raises(error) as wrong:
        from_dict(BASE | ASKED | {"told": told})
    assert wrong.value.field == field


def test_the_command_answers_by_what_it_is_told() -> None:
    case = BASE | ASKED | {"id": 7, "told": [means(load, factor=1.3) for load in LOADS]}
    result = CliRunner().invoke(build(), ["serve", "--cases", "-"], input=json.dumps(case) + "\n")
    found = json.loads(result.output.splitlines()[0])
    assert found["tpot_ms"] == answer(from_dict({**case}))["tpot_ms"]


def points(count: int, runs: int, seed: int) -> Points:
    rng = np.random.default_rng(seed)
    rows = [
        (
            rng.uniform(0, 1, len(CAUSES)),
            rng.uniform(0, 1, len(LATENTS)),
            rng.uniform(0, 9, len(PLACES)),
            i % runs,
            "a",
            i % 2,
        )
        for i in range(count)
    ]
    return Points.of(rows)


def test_the_closed_form_is_the_conditional_of_a_normal_law() -> None:
    prior = replace(shipped(), spoiled_share=np.array([1e-12]), unlike_share=np.array([1e-12]))
    told, asked = points(6, 3, 0), points(5, 1, 1)
    off = np.random.default_rng(2).normal(0, 0.2, 6)
    mean, spread = Posterior(prior, told, off).at(asked)
    both = Points(*(np.concatenate([getattr(told, name), getattr(asked, name)]) for name in Points.__slots__))
    apart = replace(both, run=np.concatenate([told.run, 10 + np.arange(5)]))
    whole = covariance(prior, apart, apart)
    sums, same = apart.parts.sum(-1), apart.run[:, None] == apart.run[None]
    whole += prior.run**2 * np.outer(sums, sums) * same
    whole += np.diag(variance(prior, apart) - np.diag(whole))
    known, cross = whole[:6, :6], whole[6:, :6]
    assert mean == pytest.approx(cross @ np.linalg.solve(known, off))
    assert spread == pytest.approx(np.diag(whole[6:, 6:] - cross @ np.linalg.solve(known, cross.T)))
    assert np.linalg.eigvalsh(whole).min() > 0


def test_runs_of_another_number_of_gpus_say_less_and_of_the_machine_s_level_alone_where_nothing_else_is_shared() -> (
    None
):
    """Kernels of other shards, and what couples them, are off by something else."""
    prior = replace(shipped(), lengths=np.full(len(PLACES), 1e9), trend=np.zeros((len(LATENTS), len(PLACES))))
    told, place = points(6, 3, 0), np.full(len(PLACES), 3.0)
    alike = replace(told, place=np.tile(place, (6, 1)), model=np.zeros(6), software=np.zeros(6))
    moved = replace(alike, place=alike.place + np.eye(len(PLACES))[PLACES.index("gpus")])
    of_level = (alike.parts * prior.level**2) @ alike.parts.T
    apart = {share: covariance(replace(prior, other_gpus=np.full(2, share)), alike, moved) for share in (0.0, 0.5, 1.0)}
    assert apart[0.0] == pytest.approx(of_level)
    assert apart[1.0] == pytest.approx(covariance(prior, alike, alike))
    assert (of_level < apart[0.5]).all() and (apart[0.5] < apart[1.0]).all()


def test_a_told_batch_draws_what_its_times_and_joules_say(tmp_path: Path) -> None:
    asked = "estimate --model Qwen3-0.6B --gpu H100 --engine vllm:0.12.0 --batch 8 --isl 500 --osl 40 --json --told"
    file = tmp_path / "runs.json"

    def told(**more: float) -> dict[str, Any]:
        file.write_text(json.dumps([{"isl": 500, "osl": 40, "concurrency": 8, "tpot_ms": 6.0, **more}]))
        return dict(json.loads(CliRunner().invoke(build(), [*asked.split(), str(file)]).output))

    slow, dear = told(), told(energy_j_per_output_token=5.0)
    for one in (slow, dear):
        spent = one["prefill_energy_j"] + one["decode_energy_j"]
        assert spent == pytest.approx(8 * 40 * one[ENERGY], rel=1e-3)
        assert one[ENERGY] * one[RATE] == pytest.approx(one["power_w"], rel=1e-3)
    assert dear[ENERGY] > 1.2 * slow[ENERGY]


@pytest.mark.parametrize(("runs", "ways"), [(6, 2**6), (7, 1 + 7 + 21), (24, 1 + 24 + 276), (25, 1 + 25)])
def test_how_many_runs_may_be_spoiled_at_once(runs: int, ways: int) -> None:
    """Of up to six runs any, of up to 24 two, of more one: as the module says."""
    causes, parts, place = np.zeros(len(CAUSES)), np.eye(len(LATENTS))[0], np.zeros(len(PLACES))
    told = Points.of([(causes, parts, place, run, "vllm", "model") for run in range(runs)])
    found = Posterior(shipped(), told, np.zeros(runs))
    assert found.ways.shape == (2 * ways, runs)  # whether the deployment is like others, or not
    for unlike in (0.0, 1.0):
        assert len({*map(tuple, found.ways[found.unlike == unlike].tolist())}) == ways


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_a_deployment_slower_altogether_is_followed_and_named(slower: float) -> None:
    """No published server is 50 % off at every load, so runs that agree say that this one is unlike them."""
    asked = {"model": "Llama-3.1-8B", "gpu": "H100", "engine": "vllm:0.12.0", "isl": 1024, "osl": 256}
    loads = [pw.serve(**asked, concurrency=concurrency) for concurrency in (8, 32, 64)]
    names = ("ttft_ms", "tpot_ms")
    told = [
        {"concurrency": c, **{name: slower * one[name] for name in names}}
        for c, one in zip((8, 32, 64), loads, strict=True)
    ]
    usual = pw.serve(**asked, concurrency=48)
    found = pw.serve(**asked, concurrency=48, told=told)
    for name in names:
        assert found[name] / usual[name] == pytest.approx(slower, rel=0.03)
        assert found[f"{name}_high"] / found[f"{name}_low"] < usual[f"{name}_high"] / usual[f"{name}_low"]
    assert ("off alike" in found.notes[-1]) == (slower > 1.0)
