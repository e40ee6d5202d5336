"""Plans: every design once, the front is a front, limits hold, and the closed form follows the simulator."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipewave.errors import BadInput, UnknownGPU
from pipewave.models import load
from pipewave.planning import Plan, Question, Space, Split, plan, prices
from pipewave.planning.arrivals import Groups
from pipewave.planning.executors import executor
from pipewave.planning.launch import command
from pipewave.planning.search import TIMES
from pipewave.planning.steady import evaluate
from pipewave.simulate import estimate
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from studies.plan_steady import Load, compare

MODEL = load("Llama-3.1-8B")
SPACE = Space(("H100", "L40S", "T4"), tps=(1, 2, 3), budgets=(2048, 8192), batches=(1, 8, 64, 512))
QUESTION = Question(1000, 100, ttft_ms=2000, tpot_ms=40)


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(MODEL, QUESTION, SPACE)


def test_every_design_is_evaluated_refused_or_crowded_out(found: Plan) -> None:
    settings = len(SPACE.budgets) * len(SPACE.batches)
    designs = found.designs
    assert len(designs) + designs.crowded_out + settings * len(designs.refused) == SPACE.size(MODEL)
    reasons = {(split.gpu, split.tp): why for split, why in designs.refused}
    assert "must divide" in reasons["H100", 3]
    assert "does not fit 1 × T4" in reasons["T4", 1]


def test_the_front_meets_the_limits_and_nothing_beats_it(found: Plan) -> None:
    designs = found.designs
    cost, speed = designs.usd_per_million, designs.columns["tokens_per_s_per_user"]
    assert found.front
    assert found.winner == found.front[0]
    for index in found.front:
        assert found.meets[index]
        better = found.meets & (cost <= cost[index]) & (speed >= speed[index])
        better &= (cost < cost[index]) | (speed > speed[index])
        assert not better.any()
    assert np.all(np.diff(cost[list(found.front)]) >= 0)
    assert cost[found.winner] == np.min(cost[found.meets])


def test_a_million_tokens_cost_the_seconds_they_take(found: Plan) -> None:
    """A GPU's price is of an hour: so many seconds for a million tokens, an hour has 60 times 60."""
    designs = found.designs
    for index in range(0, len(designs), 7):
        hourly = found.prices[designs.row(index)["gpu"]].usd_per_hour
        seconds = 1e6 / designs.columns["tokens_per_s_per_gpu"][index]
        assert designs.usd_per_million[index] == pytest.approx(hourly * seconds / 60 / 60, rel=1e-9)


def test_limits_shrink_the_choice(found: Plan) -> None:
    tight = plan(MODEL, Question(1000, 100, ttft_ms=2000, tpot_ms=8), SPACE)
    assert tight.meets.sum() < found.meets.sum()
    none = plan(MODEL, Question(1000, 100, tpot_ms=0.001), SPACE)
    assert none.winner is None
    assert none.to_dict()["launch"] is None
    shortest = none.to_dict()["shortest"]
    assert set(shortest) == set(TIMES)
    assert 0.001 < shortest["tpot_ms"] < shortest["ttft_ms"]


def test_own_prices_decide(found: Plan) -> None:
    dear = plan(MODEL, QUESTION, SPACE, own_prices={"h100_sxm": 1000.0})
    assert dear.to_dict()["winner"]["gpu"] == "L40S"
    assert prices({"H100": 1.0})["H100"].provider == "yours"
    with pytest.raises(BadInput):
        prices({"H100": -1.0})
    with pytest.raises(UnknownGPU):
        prices({"H1000": 1.0})


@pytest.mark.slow
def test_gpus_without_a_price_are_named_not_ranked() -> None:
    space = Space(("H100", "GB300"), tps=(1,), budgets=(8192,), batches=(8, 64))
    mixed = plan(MODEL, QUESTION, space).to_dict()
    assert mixed["without_price"] == ["GB300"]
    assert {row["gpu"] for row in mixed["front"]} == {"H100"}
    alone = plan(MODEL, QUESTION, Space(("GB300",), tps=(1,), budgets=(8192,), batches=(8, 64))).to_dict()
    assert alone["winner"]["usd_per_million_tokens"] is None


def test_an_executor_changes_nothing(found: Plan) -> None:
    with ThreadPoolExecutor(3) as pool:
        spread = plan(MODEL, QUESTION, SPACE, executor=pool)
    assert json.dumps(spread.to_dict()) == json.dumps(found.to_dict())


def test_more_memory_bandwidth_speeds_up_decode(found: Plan) -> None:
    by_name = {row["more"]: row for row in found.elasticities}
    assert by_name["+10 % DRAM bandwidth"]["tpot_ms_change_percent"] < 0
    power, clock = (by_name[f"+10 % {name}"]["ttft_ms_change_percent"] for name in ("power", "clock"))
    assert power < -1, "prompts run at the power limit"
    assert -7 < clock < 1, "where a higher clock buys less than itself"
    assert by_name["+10 % memory size"]["tpot_ms_change_percent"] == 0


@pytest.mark.parametrize("engine", ["vllm:0.22.1", "sglang:0.5.14"])
@pytest.mark.parametrize(("batch", "isl", "osl"), [(8, 1024, 128), (64, 1024, 128), (32, 256, 400), (16, 4000, 100)])
def test_closed_form_follows_the_simulator(engine: str, batch: int, isl: int, osl: int) -> None:
    one = evaluate(MODEL, Split("H200", engine=engine), Question(isl, osl), [4096], [batch])
    traffic = synthetic(8 * batch, input_len=isl, output_len=osl, concurrency=batch, spread=0.5)
    server = Server.of(MODEL, "H200", Setup(engine=engine, max_num_batched_tokens=4096), traffic.longest)
    ran = server.run(traffic).answer
    assert one.columns["tpot_ms"][0] == pytest.approx(ran["tpot_mean_ms"], rel=0.2)
    assert one.columns["tokens_per_s_per_gpu"][0] == pytest.approx(ran["output_tokens_per_s_per_gpu"], rel=0.2)


@pytest.mark.parametrize(
    ("engine", "batch", "budget", "isl", "osl"),
    [
        ("vllm:0.22.1", 32, 8192, 500, 100),  # steps with prompts lie on both sides of the largest captured graph
        ("vllm:0.22.1", 128, 8192, 400, 400),
        ("vllm:0.22.1", 256, 8192, 512, 128),
        ("vllm:0.22.1", 256, 1024, 512, 128),  # prompts queue for the token budget
        ("vllm:0.22.1", 16, 2048, 5000, 200),  # a prompt takes several steps
        ("sglang:0.5.14", 64, 4096, 256, 256),
    ],
)
def test_closed_form_knows_that_prompts_come_in_groups(
    engine: str, batch: int, budget: int, isl: int, osl: int
) -> None:
    load = Load("Llama-3.1-8B", Split("H200", engine=engine), budget, batch, isl, osl)
    off = compare(load).percent
    assert abs(off["tpot_ms"]) < 8
    assert abs(off["e2e_ms"]) < 8
    assert abs(off["ttft_ms"]) < 20


def test_groups_of_prompts_keep_their_rate() -> None:
    rate = np.array([1e-3, 0.3, 1.0, 7.5, 200.0, 1024.0])
    groups = Groups.at(rate)
    assert groups.share * groups.prompts.mean(axis=0) == pytest.approx(rate)
    assert groups.share == pytest.approx(1 - np.exp(-rate))
    assert (np.diff(groups.prompts, axis=0) >= 0).all()
    assert groups.length.mean(axis=0) == pytest.approx(1.0, abs=0.05)
    deviation = groups.prompts.std(axis=0)[3:] / np.sqrt(rate[3:])
    assert deviation == pytest.approx(1.0, abs=0.15), "counts spread as Poisson counts do"


@pytest.mark.parametrize("engine", ["vllm:0.22.1", "sglang:0.5.14"])
@pytest.mark.parametrize(("isl", "osl"), [(1, 1), (1, 4000), (30_000, 1), (30_000, 2), (512, 512)])
def test_extreme_lengths_stay_finite_and_ordered(engine: str, isl: int, osl: int) -> None:
    columns = evaluate(MODEL, Split("H200", engine=engine), Question(isl, osl), [64, 2048], [1, 8, 63]).columns
    assert all(np.isfinite(column).all() and (column > 0).all() for name, column in columns.items() if name != "spread")
    assert (columns["e2e_ms"] >= columns["ttft_ms"]).all()


def test_launch_commands_carry_the_design() -> None:
    assert command("m", Split("H100", tp=4, ep=4, kv_dtype="fp8"), 64, 8192) == (
        "vllm serve m --tensor-parallel-size 4 --enable-expert-parallel --max-num-seqs 64 "
        "--max-num-batched-tokens 8192 --gpu-memory-utilization 0.92 --kv-cache-dtype fp8"
    )
    sglang = command("m", Split("H100", tp=2, pp=2, engine="sglang"), 64, 8192)
    assert "--tp-size 2 --pp-size 2 --max-running-requests 64 --chunked-prefill-size 8192" in sglang
    assert command("a model; rm", Split("H100"), 1, 1).startswith("vllm serve 'a model; rm'")


def test_impossible_spaces_are_named() -> None:
    with pytest.raises(UnknownGPU, match="did you mean H200"):
        plan(MODEL, QUESTION, Space(("H201",)))
    for wrong in ({"tps": ()}, {"batches": (0,)}, {"budgets": (-1,)}):
        with pytest.raises(BadInput):
            Space(("H100",), **wrong)  # type: ignore[arg-type]
    for ask in ({"input_len": 0}, {"output_len": -2}, {"tpot_ms": 0.0}):
        with pytest.raises(BadInput):
            Question(**{"input_len": 8, "output_len": 8} | ask)  # type: ignore[arg-type]
    for name in ("ray://x", "processes://0", "dask://"):
        with pytest.raises(BadInput), executor(name):
            pass


def test_every_shipped_price_is_of_a_known_gpu_and_says_whence() -> None:
    from pipewave.gpus import names

    for name, price in prices().items():
        assert name in names()
        assert price.provider
        assert price.date


def test_notes_say_what_the_fronts_kernels_rest_on() -> None:
    """SGLang's kernels were not measured on an L40S: the plan says whose rows answer, as an estimate does."""
    space = Space(("L40S",), tps=(1,), engines=("sglang",), budgets=(2048,), batches=(8,))
    found = plan(load("Llama-3.1-8B"), Question(512, 64), space).to_dict()["notes"]
    said = estimate("Llama-3.1-8B", "L40S", batch=8, input_len=512, output_len=64, engine="sglang").notes
    substituted = [note.replace("of this GPU", "of L40S") for note in said if "answered" in note]  # a plan has several
    assert substituted and all(any(note.partition(":")[2] in one for one in found) for note in substituted)


@pytest.mark.slow
def test_notes_and_prices_are_of_every_gpu_shown() -> None:
    """The front is the H200's alone; the MI300X's best design stands beside it, and says whose rows and which price."""
    space = Space(("H200", "MI300X"), tps=(1,), budgets=(2048,), batches=(8,))
    answer = plan(load("Llama-3.1-8B"), Question(512, 64), space).to_dict()
    shown = {row["gpu"] for row in (*answer["front"], *answer["best_by_gpu"])}
    assert shown == {price["gpu"] for price in answer["prices"]} == {"H200", "MI300X"}
    assert any("on MI300X" in note for note in answer["notes"])
