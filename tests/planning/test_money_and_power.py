"""Rented and bought GPUs, energy at the meter, carbon, and power limits as an axis of a plan: one law behind all doors."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.errors import BadInput, MissingField, UnknownField
from pipewave.gpus import find
from pipewave.planning import Meter, Owned, Plan, Space, prices
from tests.command_line import CliRunner

BOUGHT = "H100=25000,usd=30000,years=4,usd_per_kwh=0.1,pue=1.25,utilisation=0.5"
ASKED: dict[str, Any] = {"input_len": 500, "output_len": 40, "tpot_ms": 40, "tps": (1,), "engines": ("vllm",),
                         "disaggregated": False, "budgets": (8192,), "rate": 10.0, "grid_g_per_kwh": 400.0}  # fmt: skip


@pytest.fixture(scope="module")
def capped() -> Plan:
    return pw.plan("Llama-3.1-8B", "H100", **ASKED, owned=BOUGHT, power_limits=(700.0, 400.0))


def run(*words: str) -> Any:
    done = CliRunner().invoke(build(), [*words, "--json"], catch_exceptions=False)
    assert not done.exit_code, done.output
    return json.loads(done.stdout)


def test_an_hour_of_a_bought_gpu_is_its_share_of_the_purchase_and_its_energy() -> None:
    owned = Owned.of(BOUGHT)
    assert owned is not None
    known = prices({"L40S": 1.0}, owned, ["H100", "H200", "L40S"])
    assert known["H100"].at(600) == pytest.approx(25000 / (4 * 8766 * 0.5) + 0.6 * 1.25 * 0.1)
    assert known["H200"].at(0) == pytest.approx(30000 / (4 * 8766 * 0.5))
    assert known["L40S"].at(300) == 1.0, "a rent of one's own stands before a purchase"
    assert "A100" not in known, "nothing is said of what the others cost"
    assert Owned.of({"H100": 25000, "years": 4, "usd_per_kwh": 0.1}) == Owned(4, 0.1, {"H100": 25000})


def test_energy_at_the_meter() -> None:
    found = Meter(1.25, 400.0).per_token(0.5)
    assert found["tokens_per_mwh"] == pytest.approx(3.6e9 / (0.5 * 1.25))
    assert found["kg_co2_per_million_tokens"] == pytest.approx(1e6 * 0.5 * 1.25 / 3.6e6 * 0.4)
    assert "kg_co2_per_million_tokens" not in Meter().per_token(0.5), "no grid is assumed"


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        ("years=4,usd_per_kwh=0.1", MissingField, "usd=30000"),
        ("usd=1,years=4", MissingField, "usd_per_kwh is missing"),
        ("usd=1,years=0,usd_per_kwh=0.1", BadInput, "years = 0.0"),
        ("usd=1,years=1,usd_per_kwh=0.1,pue=0.9", BadInput, "pue = 0.9"),
        ("usd=1,years=1,usd_per_kwh=0.1,utilisation=1.5", BadInput, "utilisation = 1.5"),
        ("usd=x,years=1,usd_per_kwh=0.1", BadInput, "must look like"),
        ("usd=1,years=nan,usd_per_kwh=0.1", BadInput, "years = nan"),
        ("H1000=1,years=1,usd_per_kwh=0.1", BadInput, "did you mean H100"),
    ],
)
def test_wrong_purchases_are_typed(words: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        Owned.of(words)


def test_estimate_and_serve_say_what_tokens_cost_as_python_does() -> None:
    bill = ["--owned", BOUGHT, "--grid", "400"]
    static = ["estimate", "--model", "Llama-3.1-8B", "--gpu", "H100", "--batch", "8", "--isl", "256", "--osl", "16"]
    running = ["serve", "--model", "Llama-3.1-8B", "--gpu", "H100", "--isl", "256", "--osl", "16", "--requests", "40"]
    for words in (static, [*running, "--rate", "5", "--no-interval"]):
        found = run(*words, *bill)
        work = {name: found[name] for name in ("gpus", "power_w", "output_tokens_per_s")}
        assert found["cost"] == pytest.approx(pw.cost("H100", **work, owned=BOUGHT, grid_g_per_kwh=400))
        each = found["power_w"] * found["gpus"] / found["output_tokens_per_s"]
        assert found["cost"]["tokens_per_mwh"] == pytest.approx(3.6e9 / (1.25 * each))
    assert "cost" not in run(*static)
    rented = pw.cost("H100", gpus=2, power_w=500, output_tokens_per_s=1000, usd_per_hour=2.5)
    assert rented["usd_per_hour"] == 5.0 and rented["usd_per_million_tokens"] == pytest.approx(5e6 / 3.6e6)
    assert "kg_co2_per_million_tokens" not in rented
    with pytest.raises(BadInput, match="power_w"):
        pw.cost("H100", gpus=1, power_w=0, output_tokens_per_s=1)


def test_which_power_limit_gives_the_most_tokens_a_joule(capped: Plan) -> None:
    rows = {row["power_limit_w"]: row for row in capped.rows()}
    assert set(rows) == {None, 400.0}, "700 W is the part's own"
    for limit, row in rows.items():
        assert row["power_w"] <= (limit or find("H100").tdp_w) and row["tpot_ms_high"] <= 40
        price = capped.prices["H100"]
        assert row["usd_per_hour"] == pytest.approx(row["replicas"] * price.at(row["power_w"]), rel=1e-3)
        assert row["tokens_per_mwh"] == pytest.approx(3.6e9 / (1.25 * row["energy_j_per_output_token"]), rel=1e-3)
    least = capped.to_dict()["least_energy"]
    assert least["power_limit_w"] == 400.0
    assert least["energy_j_per_output_token"] == min(row["energy_j_per_output_token"] for row in rows.values())


def test_nothing_beats_a_design_of_the_front_in_cost_energy_and_speed(capped: Plan) -> None:
    aims = [(d.cost, d.joules, -d.speed) for d in capped.designs]
    for design in capped.energy_front:
        one = design.cost, design.joules, -design.speed
        assert not [aim for aim in aims if aim != one and all(a <= b for a, b in zip(aim, one, strict=True))]
    assert capped.winner in capped.energy_front and capped.least_energy in capped.energy_front


def test_the_command_plans_as_python_does_and_serve_answers_alike(capped: Plan) -> None:
    words = ["plan", "--model", "Llama-3.1-8B", "--gpus", "H100", "--isl", "500", "--osl", "40", "--tpot", "40", "--tp",
             "1", "--engine", "vllm", "--no-disaggregated", "--max-num-batched-tokens", "8192", "--rate", "10", "--grid", "400", "--owned", BOUGHT,
             "--power-limit", "700,400"]  # fmt: skip
    found, same = run(*words), capped.to_dict(12)
    assert found["rows"] == json.loads(json.dumps(same["rows"])) and found["least_energy"] == same["least_energy"]
    assert capped.least_energy is not None
    served = run(*shlex.split(capped.serve_command(capped.least_energy))[1:])
    row = capped.least_energy.row(capped.question)
    for name in ("power_w", "energy_j_per_output_token"):  # told from a sample of a run's steps
        assert served[name] == pytest.approx(row[name], rel=0.02)
    assert served["tpot_mean_ms"] == pytest.approx(row["tpot_ms"], abs=2e-4)


def test_a_rent_beside_a_purchase_or_of_another_gpu_and_kilograms_for_grams_are_refused() -> None:
    owned = Owned.of("H100=25000,years=4,usd_per_kwh=0.1")
    for gpus in (["H100"], ["H100", "H200"]):
        with pytest.raises(BadInput, match="leave one out"):
            prices({"H100": 2.0}, owned, gpus)
    with pytest.raises(BadInput, match="leave one out"):
        pw.cost("H100", gpus=1, power_w=600, output_tokens_per_s=4000, usd_per_hour=2, owned=BOUGHT)
    with pytest.raises(BadInput, match="grams"):
        Meter(1.25, 0.4)
    asked = ("plan", "--model", "Llama-3.1-8B", "--gpus", "h100", "--isl", "500", "--osl", "40", "--price", "H200=2")
    done = CliRunner().invoke(build(), asked)
    assert done.exit_code == 2 and "--price H200: the plan is of h100 alone" in str(done.exception)


def test_without_limits_a_design_is_listed_once_at_a_rate() -> None:
    rows = pw.plan("Llama-3.1-8B", "H100", **{**ASKED, "rate": None, "tpot_ms": None, "budgets": (None,)}).to_pandas()
    assert not rows.duplicated().any()


@pytest.mark.parametrize("wrong", [{"tps": 1}, {"engines": "vllm"}, {"gpus_most": 0}])
def test_what_to_try_is_a_list(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        pw.plan("Llama-3.1-8B", "H100", **{**ASKED, **wrong})


def test_a_rack_holds_each_board_to_its_share() -> None:
    h100, l40s = find("H100"), find("L40S")
    rack = Space(("H100", "L40S"), rack_w=16_000, gpus_per_rack=32, power_limits=(None, 300.0))
    assert list(rack.limits_on(h100)) == [500.0, 300.0]
    assert list(rack.limits_on(l40s)) == [None, 300.0]
    splits = list(rack.splits(pw.load_model("Llama-3.1-8B"), "H100"))
    assert {split.card.tdp_w for split in splits} == {500.0, 300.0}
    for wrong in ({"rack_w": 1e4}, {"gpus_per_rack": 8}, {"rack_w": -1.0, "gpus_per_rack": 8}):
        with pytest.raises(BadInput):
            Space(("H100",), **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="power_limit_w"):
        Space(("H100",), power_limits=(10.0,)).splits(pw.load_model("Llama-3.1-8B"), "H100").__next__().card  # noqa: B018


def test_plan_names_an_argument_that_it_does_not_have() -> None:
    with pytest.raises(UnknownField, match="did you mean tpot_ms"):
        pw.plan("Llama-3.1-8B", "H100", input_len=8, output_len=8, tpot_m=3)
