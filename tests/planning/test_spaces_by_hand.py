"""Questions, splits and prices at their edges, by hand: what is refused, what is tried, what an hour costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadInput, MissingField, UnknownGPU
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.attention_spec import Mla
from pipewave.models.load import quantised
from pipewave.planning import Demand, Limit, Meter, Owned, Price, Question, Space, Split, cost, prices
from pipewave.planning.prices import number, table
from pipewave.published.unstated import newest
from pipewave.simulate.traffic import synthetic

MODEL, EXPERTS = load("Llama-3.1-8B"), load("Qwen3-30B-A3B")


@pytest.mark.parametrize(
    ("name", "fine", "wrong"),
    [
        ("input_len", (1, 1 << 22), (0, (1 << 22) + 1, 1.5, True)),
        ("output_len", (1, 1 << 22), (0, (1 << 22) + 1)),
        ("prefix_share", (0.0, 0.5, 1.0), (-0.01, 1.01)),
        ("ttft_ms", (0.1, "p50=3", None), (0, "p51=3", math.nan)),
        ("tpot_ms", (1, "P99=3"), (-1, "fast")),
        ("e2e_ms", (1e11,), (1e12,)),
    ],
)
def test_what_a_question_may_ask(name: str, fine: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    usual: dict[str, Any] = {"input_len": 100, "output_len": 10}
    for value in fine:
        assert getattr(Question(**usual | {name: value}), name) == value
    for value in wrong:
        with pytest.raises(BadInput) as told:
            Question(**usual | {name: value})
        assert told.value.field == name


def test_limits_of_a_question() -> None:
    asked = Question(100, 10, ttft_ms=500, e2e_ms="p95=900")
    assert asked.limits == (Limit("ttft_ms", 500.0, "mean"), Limit("e2e_ms", 900.0, "p95"))
    assert asked.limit("e2e_ms") == asked.limits[1] and asked.limit("tpot_ms") is None


def test_requests_of_a_question() -> None:
    question = Question(1000, 200, spread=0.25)
    drawn = question.traffic(400, 5.0)
    assert (drawn.input_len.min(), drawn.input_len.max()) == (
        pytest.approx(750, rel=0.03),
        pytest.approx(1250, rel=0.03),
    )
    assert len(drawn) == 400 and 399 / drawn.arrival_s[-1] == pytest.approx(5.0, rel=0.15) and drawn.found_len is None
    assert question.traffic(400, 5.0, seed=1).input_len.tolist() != drawn.input_len.tolist()
    cached = replace(question, prefix_share=0.5).traffic(400, 5.0)
    assert cached.found_len is not None and cached.found_len.tolist() == (drawn.input_len // 2).tolist()
    kept = replace(synthetic(2, input_len=8, output_len=8), input_len=np.array([10, 30]), output_len=np.array([5, 1]))
    recorded = replace(question, recorded=kept)
    assert (recorded.longest_prompt, recorded.longest) == (30, 31)
    pairs = set(
        zip(
            *(a.tolist() for a in (recorded.traffic(50, 5.0).input_len, recorded.traffic(50, 5.0).output_len)),
            strict=True,
        )
    )
    assert pairs == {(10, 5), (30, 1)}, "a prompt keeps its answer"
    assert recorded.traffic(50, 5.0).arrival_s.tolist() == question.traffic(50, 5.0).arrival_s.tolist()


def test_what_a_split_says_of_itself() -> None:
    wide = Split("H200", 2, 3, 8, engine="vllm", dp=4, power_limit_w=500.0)
    assert (wide.gpus, wide.board, wide.label) == (24, ("H200", 500.0), "H200 500 W tp2 pp3 ep8 dp4 vllm")
    assert wide.card.tdp_w == 500.0 and wide.by_gpu == {"H200": 24} and wide.parallel.world == 24
    one = Split("H100", engine="sglang")
    assert (one.gpus, one.board, one.label) == (1, ("H100", None), "H100 tp1 pp1 ep1 sglang")
    assert Split("H100").engine == f"vllm:{newest('vllm')}"
    apart = replace(wide, prefill=one, workers=(5, 2))
    assert apart.by_gpu == {"H200": 48, "H100": 5} and apart.gpus == 53
    assert replace(apart, prefill=replace(one, gpu="H200")).by_gpu == {"H200": 53}


@pytest.mark.parametrize("name", ["gpus", "tps", "pps", "dps", "kv_dtypes", "engines", "budgets", "batches",
                                  "speculative", "weights", "power_limits"])  # fmt: skip
def test_a_space_is_made_of_lists(name: str) -> None:
    for wrong in ("H100", (), 3):
        with pytest.raises(BadInput, match="must be a list of what to try") as told:
            Space(**{"gpus": ("H100",)} | {name: wrong})
        assert told.value.field == name
    if name in ("tps", "pps", "dps", "budgets", "batches"):
        for value in (0, -1, 1.0, True, "2"):
            with pytest.raises(BadInput, match=f"{name} = .*must be an integer from 1 to"):
                Space(**{"gpus": ("H100",)} | {name: (1, value)})
        if name in ("budgets", "batches"):
            assert getattr(Space(("H100",), **{name: (1, None)}), name) == (1, None), "the engine's own"
        else:
            with pytest.raises(BadInput, match=f"{name} = None: must be an integer from 1 to"):
                Space(**{"gpus": ("H100",)} | {name: (1, None)})


@pytest.mark.parametrize("wrong", [None, True, "x", [1], {}, math.nan, math.inf])
def test_numbers_of_a_question_and_a_demand_are_numbers(wrong: Any) -> None:
    for name in ("prefix_share", "spread"):
        with pytest.raises(BadInput, match=f"{name} = "):
            Question(100, 10, **{name: wrong})
    for name in ("rate", "tokens_per_s", "users", "budget", "think_s", "scale_delay_s"):
        if wrong is not None or name in ("think_s", "scale_delay_s"):
            with pytest.raises(BadInput, match=f"{name} = "):
                Demand(**{name: wrong})
    for name in ("gpus", "kv_dtypes", "budgets", "batches", "weights", "power_limits"):
        with pytest.raises(BadInput, match=f"{name} = None: must be a list"):
            Space(**{"gpus": ("H100",)} | {name: None})


@pytest.mark.parametrize("wrong", [True, "x", [1], math.nan])
def test_numbers_of_a_cost_are_numbers(wrong: Any) -> None:
    plain: dict[str, Any] = {"gpus": 1, "power_w": 600.0, "output_tokens_per_s": 4000.0}
    for name in (*plain, "usd_per_hour", "grid_g_per_kwh"):
        with pytest.raises(BadInput):
            cost("H200", **plain | {name: wrong})


def test_racks_of_a_space() -> None:
    for wrong in (0, -8, 2.0, True, None):
        with pytest.raises(BadInput, match="max_gpus") as told:
            Space(("H100",), gpus_most=wrong)
        assert told.value.field == "max_gpus"
    for watts, gpus, field in ((1e4, None, "gpus_per_rack"), (None, 8, "gpus_per_rack"), (0, 8, "rack_w"),
                               (1e9, 8, "rack_w"), (1e4, 0, "gpus_per_rack"), (1e4, 2.5, "gpus_per_rack")):  # fmt: skip
        with pytest.raises(BadInput) as told:
            Space(("H100",), rack_w=watts, gpus_per_rack=gpus)
        assert told.value.field == field
    h100 = find("H100")
    assert list(Space(("H100",), rack_w=8 * 700.0, gpus_per_rack=8).limits_on(h100)) == [None], "its own limit"
    assert list(Space(("H100",), rack_w=8 * 699.0, gpus_per_rack=8, power_limits=(None, 699.0)).limits_on(h100)) == [
        699.0
    ]
    assert list(Space(("H100",), power_limits=(300.0, None, 300.0, 800.0)).limits_on(h100)) == [300.0, None]


@pytest.mark.parametrize(
    ("model", "gpu", "options", "degrees"),
    [
        (EXPERTS, "H100", {"tps": (1, 2)}, [(1, 1, 1, 1), (2, 1, 1, 1), (2, 1, 2, 1), (1, 1, 2, 2), (1, 1, 4, 4), (1, 1, 8, 8)]),
        (EXPERTS, "H100", {"tps": (2,), "dps": (1, 2)}, [(2, 1, 1, 1), (2, 1, 2, 1), (2, 1, 4, 2)]),
        (EXPERTS, "H100", {"tps": (1,), "pps": (2,)}, [(1, 2, 1, 1), (1, 2, 2, 2), (1, 2, 4, 4), (1, 2, 8, 8)]),
        (EXPERTS, "H100", {"tps": (1,), "experts": False}, [(1, 1, 1, 1)]),
        (EXPERTS, "H100", {"tps": (2,), "dps": (2,), "experts": False}, [(2, 1, 1, 2)]),
        (EXPERTS, "GB200", {"tps": (1,), "gpus_most": 16}, [(1, 1, 1, 1), *[(1, 1, n, n) for n in (2, 4, 8, 16)]]),
        (EXPERTS, "GB200", {"tps": (1,)}, [(1, 1, 1, 1), *[(1, 1, n, n) for n in (2, 4, 8, 16, 32)]]),
        (MODEL, "GB200", {}, [(1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1), (8, 1, 1, 1)]),
        (MODEL, "H100", {"gpus_most": 3}, [(1, 1, 1, 1), (2, 1, 1, 1)]),
        (MODEL, "H100", {"tps": (2,), "pps": (1, 2), "gpus_most": 4}, [(2, 1, 1, 1), (2, 2, 1, 1)]),
        (load("DeepSeek-V3"), "H100", {}, [*[(1, 1, 1, 1), (2, 1, 1, 1), (2, 1, 2, 1), (4, 1, 1, 1), (4, 1, 4, 1),
                                            (8, 1, 1, 1), (8, 1, 8, 1)], *[(1, 1, n, n) for n in (2, 4, 8)],
                                           *[(8, pp, ep, 1) for pp in (2, 4) for ep in (1, 8)],
                                           (1, 1, 16, 16), (1, 1, 32, 32)]),
        (load("DeepSeek-V3"), "H100", {"tps": (8,)}, [(8, 1, 1, 1), (8, 1, 8, 1)]),
        (load("DeepSeek-V3"), "H100", {"pps": (1,), "dps": (1,)}, [(1, 1, 1, 1), (2, 1, 1, 1), (2, 1, 2, 1), (4, 1, 1, 1),
                                                                   (4, 1, 4, 1), (8, 1, 1, 1), (8, 1, 8, 1)]),
    ],
)  # fmt: skip
def test_degrees_of_a_space(model: Any, gpu: str, options: dict[str, Any], degrees: list[tuple[int, ...]]) -> None:
    """8 × 79.6 GiB of a node do not hold 671B parameters of a byte; a rack of GB200 joins 72 GPUs."""
    found = list(Space((gpu,), engines=("vllm",), **options).splits(model, gpu))
    assert [(s.tp, s.pp, s.ep, s.dp) for s in found if s.dcp == 1] == degrees
    parted = [(s.tp, s.dcp) for s in found if s.dcp > 1]  # all ranks of a tensor group hold the same latent keys
    assert parted == [(tp, tp) for tp, _, _, _ in degrees if tp > 1 and model.has(Mla)]


def test_order_of_splits_and_what_they_carry() -> None:
    space = Space(("H100",), (1,), engines=("vllm", "sglang"), kv_dtypes=(None, "fp8"), power_limits=(None, 500.0))
    found = list(space.splits(MODEL, "H100", "w"))
    order = [
        (f"{engine}:{newest(engine)}", kind, limit)
        for engine in ("vllm", "sglang")
        for kind in (None, "fp8")
        for limit in (None, 500.0)
    ]
    assert [(s.engine, s.kv_dtype, s.power_limit_w) for s in found] == order and {s.weights for s in found} == {"w"}
    assert Space(("H100",)).drafts(MODEL) == (None,) and Space(("H100",), speculative=("x",)).drafts(MODEL) == ("x",)
    assert len(Space(("H100",)).drafts(load("DeepSeek-V3"))) == 3
    assert [name.partition(":")[0] for name in Space(("H100",)).engines_on("H100")] == ["vllm", "sglang", "trtllm"]
    assert Space(("H100",), engines=("vLLM", "sglang:0.5.9", "vllm:0.27.x")).engines_on("H100") == (
        f"vllm:{newest('vllm')}", "sglang:0.5.9", "vllm:0.27.x")  # fmt: skip
    assert [name.partition(":")[0] for name in Space(("H100",)).engines_on("MI300X")] == ["vllm", "sglang"]


def test_quantised_forms_by_name() -> None:
    assert quantised("Qwen3-32B", ()) == {}
    assert (
        list(quantised("Qwen3-32B", ("awq",)))
        == ["Qwen/Qwen3-32B-AWQ"]
        == list(quantised("Qwen3-32B", ("Qwen/Qwen3-32B-AWQ",)))
    )
    assert list(quantised("Qwen3-32B", ("fp8", "published"))) == ["fp8", "Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-AWQ"]
    assert quantised("Qwen3-32B-FP8", ("published",)) == {}, "none is listed"
    with pytest.raises(BadInput, match="known: fp8, Qwen/Qwen3-32B-FP8") as told:
        quantised("Qwen3-32B", ("int3",))
    assert told.value.field == "quantize"
    with pytest.raises(BadInput, match="no checkpoint is listed"):
        quantised("Qwen3-32B-FP8", ("awq",))


@pytest.mark.parametrize("name", ["rate", "tokens_per_s", "users", "arrivals"])
def test_one_thing_says_how_much_comes(name: str) -> None:
    value: Any = synthetic(2, input_len=8, output_len=8, rate=1.0) if name == "arrivals" else 3.0
    assert Demand(**{name: value}).given and not Demand(budget=5.0).given
    other = "users" if name == "rate" else "rate"
    with pytest.raises(BadInput) as told:
        Demand(**{name: value, other: 2.0})
    both = sorted((name, other), key=("rate", "tokens_per_s", "users", "arrivals").index)
    assert told.value.field == both[1] and " and ".join(both) in str(told.value)


def test_demand_at_its_edges() -> None:
    arrivals = synthetic(2, input_len=8, output_len=8, rate=1.0)
    for name, beside in (("think_s", {"users": 3.0}), ("scale_delay_s", {"arrivals": arrivals})):
        assert getattr(Demand(**beside, **{name: 0.0}), name) == 0.0  # type: ignore[arg-type]
        for wrong in (-0.1, 1e9):
            with pytest.raises(BadInput, match="must be from 0") as told:
                Demand(**{name: wrong})  # type: ignore[arg-type]
            assert told.value.field == name
    question = Question(100, 40)
    assert Demand(rate=3.0).peak(question, 9.0) == 3.0 and Demand(tokens_per_s=100.0).peak(question, 9.0) == 2.5
    assert Demand(users=30.0, think_s=5.0).peak(question, 1.0) == 5.0
    at_once = replace(synthetic(3, input_len=8, output_len=8), arrival_s=np.zeros(3))
    with pytest.raises(BadInput, match="all requests come at once") as told:
        Demand(arrivals=at_once).peak(question, 1.0)
    assert told.value.field == "arrivals"


def test_what_tokens_cost_by_hand() -> None:
    found = cost("H100", gpus=2, power_w=500.0, output_tokens_per_s=1000.0, usd_per_hour=3.0, grid_g_per_kwh=400.0)
    assert found["usd_per_hour"] == 6.0 and found["usd_per_million_tokens"] == pytest.approx(6.0 / 3.6)
    assert found["tokens_per_mwh"] == pytest.approx(3.6e9) and found["kg_co2_per_million_tokens"] == pytest.approx(
        1e6 * 0.4 / 3.6e6
    )
    owned = {"H100": 8766.0, "years": 2.0, "usd_per_kwh": 0.2, "pue": 1.5, "utilisation": 0.5}
    bought = cost("H100", gpus=4, power_w=1000.0, output_tokens_per_s=1000.0, owned=owned)
    assert bought["usd_per_hour"] == pytest.approx(4 * (1.0 + 1.5 * 0.2))
    assert bought["tokens_per_mwh"] == pytest.approx(3.6e9 / (4 * 1.5))
    assert "usd_per_hour" not in cost("H20", gpus=1, power_w=1.0, output_tokens_per_s=1.0), "no price is known"
    for name in ("gpus", "power_w", "output_tokens_per_s"):
        work: dict[str, Any] = {"gpus": 1, "power_w": 1.0, "output_tokens_per_s": 1.0}
        assert cost("H100", **work | {name: 9e11})
        for wrong in (0, -1, 1e12, math.nan):
            with pytest.raises(BadInput, match=name) as told:
                cost("H100", **work | {name: wrong})
            assert told.value.field == name


@pytest.mark.parametrize(
    ("name", "fine", "wrong"),
    [("years", (1e-6, 1e9), (9e-7, 1.1e9, True)), ("usd_per_kwh", (0.0, 1e9), (-1e-9,)), ("pue", (1.0,), (0.999,)),
     ("utilisation", (1e-6, 1.0), (0.0, 1.001)), ("usd", (1e-6,), (0.0, "x"))],
)  # fmt: skip
def test_what_a_purchase_may_be(name: str, fine: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    usual: dict[str, Any] = {"years": 4.0, "usd_per_kwh": 0.1, "usd": 3e4}
    for value in fine:
        assert Owned.of(usual | {name: value}) is not None
    for value in wrong:
        with pytest.raises(BadInput, match=f"owned: {name} = ") as told:
            Owned.of(usual | {name: value})
        assert told.value.field == "owned"


def test_prices_by_hand() -> None:
    owned = Owned.of("usd=8766,years=2,usd_per_kwh=0.1")
    assert owned is not None and Owned.of(owned) is owned and Owned.of(None) is None
    assert owned.price("H100") == Price("H100", 0.5, "owned", "", verified=True, usd_per_kwh=0.1)
    assert Owned(1.0, 0.1, {"H100": 5.0}).price("H200") is None
    assert Price("H100", 2.0, "x", "", verified=True, usd_per_kwh=0.5).at(400.0) == 2.2
    assert prices() == table() and prices({"h100_sxm": 1}) == {
        **table(),
        "H100": Price("H100", 1.0, "yours", "", verified=True),
    }
    for wrong in (0, 1e6, "2", math.nan):
        with pytest.raises(BadInput) as told:
            prices({"H100": wrong})  # type: ignore[dict-item]
        assert told.value.field == "price"
    with pytest.raises(UnknownGPU) as unknown:
        prices({"H1000": 2.0})
    assert unknown.value.field == "price"
    assert number(" H100 =2.5", "price") == ("H100", 2.5)
    with pytest.raises(BadInput, match="must look like") as told:
        number("H100", "price")
    assert told.value.field == "price"
    with pytest.raises(MissingField):
        Owned(4.0, 0.1)
    for grid in (0, 1, 5000):
        assert Meter(1.0, grid).grid_g_per_kwh == grid
    for grid in (0.5, 5001, -1):
        with pytest.raises(BadInput):
            Meter(1.0, grid)
    assert Meter(1.0, 0).per_token(1.0) == {"tokens_per_mwh": 3.6e9, "kg_co2_per_million_tokens": 0.0}
