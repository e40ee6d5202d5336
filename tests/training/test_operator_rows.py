"""Rows of the newer operators: rules of cleaning on made-up series, and real rows against the physics."""

from __future__ import annotations

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from corpus import operators  # noqa: E402
from corpus.select import HELD_OUT, fold  # noqa: E402
from corpus.sources import data_dir  # noqa: E402
from pipewave.kernels.base import Family, family_of  # noqa: E402
from pipewave.physics.demand import floor_s  # noqa: E402
from train.net import analyses, balanced_names, nets  # noqa: E402

HERE = (data_dir() / "aiconfigurator").is_dir()
needs_corpus = pytest.mark.skipif(not HERE, reason="the public corpus is not here")


def series(latency_ms: dict[int, float], batch: int = 1, step: int = 0) -> pd.DataFrame:
    rows = [{"isl": isl, "batch_size": batch, "step": step, "latency": ms, "by": "x"} for isl, ms in latency_ms.items()]
    return pd.DataFrame(rows)


def floors_us(family: Family, frame: pd.DataFrame) -> np.ndarray:
    """Physical lower bound of each row, µs."""
    least = np.empty(len(frame))
    for index, ctx, analysis in analyses(family, frame):
        least[index] = floor_s(analysis.demand.seconds(ctx.gpu, ctx.dtype)) * 1e6
    return least


RULE = {"by": ["by"], "flat": 1.25, "factor": 1.35}


def test_flat_times_of_short_prompts_are_the_hosts() -> None:
    rows = series({4: 0.90, 64: 0.93, 1024: 0.92, 2048: 1.1, 4096: 2.0, 8192: 4.0})
    assert operators.host_bound(rows, RULE).tolist() == [True, True, True, True, False, False]


def test_times_that_grow_from_the_start_are_the_gpus() -> None:
    host = series({4: 0.3, 8: 0.3, 4096: 2.0})
    grows = series({4: 1.0, 8: 2.0, 16: 4.0}, batch=1024)
    assert not operators.host_bound(pd.concat([host, grows], ignore_index=True), RULE)[3:].any()


def test_rows_slower_than_the_same_call_on_the_lesser_twin_go() -> None:
    rows = pd.DataFrame(
        {
            "gpu": ["H200", "H200", "H100", "H100", "H200"],
            "framework": ["sglang"] * 5,
            "m": [1, 2, 1, 2, 3],
            "latency": [2.0, 1.0, 1.0, 1.0, 9.0],
        }
    )
    rule = {"gpu_name": "H200", "twin": "H100", "fw": ["sglang"], "factor": 1.3}
    assert operators.slower_than_twin(rows, rule).tolist() == [True, False, False, False, False]


def test_rows_of_so_many_tokens_go_where_they_match() -> None:
    rows = series({512: 1.0, 1024: 2.0, 2048: 3.0}, batch=2).assign(kernel_source=["a", "a", "b"])
    rule = {"tokens": [2048, 1e12], "where": {"kernel_source": ["a"]}}
    assert operators.ACTIONS["sized"](rows, rule).tolist() == [False, True, False]


def test_a_few_groups_still_fill_the_fold_that_is_scored() -> None:
    for count in (4, 7, 16, 40):
        named = balanced_names(pd.Series([f"group {i % count}" for i in range(100)]))
        assert HELD_OUT in {fold(name) for name in named}
        assert named.nunique() == count


def test_capped_keeps_the_same_rows_of_each_series() -> None:
    rows = pd.DataFrame({"gpu": ["A"] * 50 + ["B"] * 5, "stack": "s", "dtype": "bf16", "impl": "i", "n": range(55)})
    kept = operators.capped(rows, 10)
    assert kept.groupby("gpu").size().to_dict() == {"A": 10, "B": 5}
    assert kept.equals(operators.capped(rows, 10))


@needs_corpus
@pytest.mark.usefixtures("trained_tables")
@pytest.mark.parametrize("net", ["gdn_step", "kda_context", "causal_conv1d", "compressed_generation", "index_topk"])
def test_no_measured_row_is_below_its_floor(net: str) -> None:
    frame = nets()[net].rows(net, None).sample(1500, random_state=0, ignore_index=True)
    family = family_of("attention_module")
    if net == "causal_conv1d":
        family = family_of("causal_conv1d")
    elif net in family_of("delta_net").nets:
        family = family_of("delta_net")
    assert (frame["latency_us"].to_numpy() >= floors_us(family, frame)).all()


@needs_corpus
@pytest.mark.parametrize("net", ["moe_all_to_all", "hyper_connection", "batched_gemm", "mega_moe"])
def test_nor_is_one_of_calls_without_requests(net: str) -> None:
    frame = nets()[net].rows(net, None)
    frame = frame.sample(min(len(frame), 1500), random_state=0, ignore_index=True)
    family = family_of(net)
    floors = floors_us(family, frame)
    assert (frame["latency_us"].to_numpy() >= floors).all()


@needs_corpus
def test_features_of_every_net_are_finite() -> None:
    for net in ("gdn_context", "kda_step", "mega_moe"):
        frame = nets()[net].rows(net, None).sample(200, random_state=1, ignore_index=True)
        features, base_us = nets()[net].features(net, frame)
        assert all(np.isfinite(values).all() for values in features.values())
        assert (base_us > 0).all()
