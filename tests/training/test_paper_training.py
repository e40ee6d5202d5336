"""Training of the paper's estimator: on made-up rows that a right implementation must learn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
pd = pytest.importorskip("pandas")

import paper  # noqa: E402
from paper import estimator  # noqa: E402
from paper.training import baselines, collectives, export, mlp, neusight, public, score  # noqa: E402
from paper.training.rows import Rows, split_by_shape  # noqa: E402
from pipewave import gpus  # noqa: E402

ORDER = paper.KERNELS["gemm_fp8"].order


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def rows() -> Rows:
    """GEMMs whose time is a smooth function of waves and bytes, on two GPUs."""
    generator = np.random.default_rng(0)
    shape = {name: generator.integers(64, 8192, size=600) for name in ("m", "n", "k")}
    return _concatenate([_measured(gpu, shape) for gpu in ("H20", "H200")])


def _measured(gpu: str, shape: dict[str, np.ndarray]) -> Rows:
    hw = paper.find(gpu)
    found = paper.features("gemm_fp8", hw, **shape)
    latency_us = 3 + (found["tensor_sm_max_cycle"] + 0.3 * found["global_cycle"]) / (0.8 * hw.clock_mhz)
    perf = paper.overall_perf("gemm_fp8", hw, found, latency_us)
    return Rows("gemm_fp8", np.full(len(perf), gpu), shape, found, latency_us, perf)


def _concatenate(parts: list[Rows]) -> Rows:
    def join(field: str) -> dict[str, np.ndarray]:
        return {
            name: np.concatenate([getattr(part, field)[name] for part in parts]) for name in getattr(parts[0], field)
        }

    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("gpu", "latency_us", "perf")}
    return Rows("gemm_fp8", shape=join("shape"), features=join("features"), **arrays)


def test_folded_weights_answer_as_the_network_does(rows: Rows, tmp_path: Path) -> None:
    fitted = mlp.fit(rows, ORDER, replace(mlp.MEAN, epochs=3))  # BatchNorm has moved by then
    export.save_mlp(fitted, "gemm_fp8", "mean", tmp_path, {"trained on": "made-up rows"})
    loaded = estimator.load(tmp_path / "gemm_fp8_mean.safetensors")
    assert loaded.order == ORDER
    assert loaded.efficiency(rows.features) == pytest.approx(fitted.perf(rows), rel=1e-4)
    assert json.loads((tmp_path / "gemm_fp8_mean.card.json").read_text())["trained on"] == "made-up rows"


def test_training_learns_and_repeats(rows: Rows) -> None:
    recipe = replace(mlp.MEAN, epochs=60)
    first, again = (mlp.fit(rows, ORDER, recipe) for _ in range(2))
    assert np.array_equal(first.perf(rows), again.perf(rows))
    untrained = mlp.fit(rows, ORDER, replace(mlp.MEAN, epochs=0))
    error = [score.errors(rows.perf, fitted.perf(rows))["efficiency_mape"] for fitted in (first, untrained)]
    assert error[0] < 20 < error[1]


def test_pinball_loss_is_least_at_the_quantile() -> None:
    sample = torch.linspace(0, 1, 1001)
    loss = [float(mlp.pinball(0.8)(torch.full_like(sample, q), sample)) for q in (0.7, 0.79, 0.8, 0.81, 0.9)]
    assert int(np.argmin(loss)) == 2


def test_early_stopping_keeps_the_best_epoch(rows: Rows) -> None:
    fitted = mlp.fit(rows, ORDER, replace(mlp.MEAN, epochs=40, patience=5))
    assert 1 <= fitted.epoch <= 40


def test_a_split_shares_no_shape_and_loses_no_row(rows: Rows) -> None:
    split = split_by_shape(rows, ("m", "n", "k"))
    shapes = [
        set(zip(*(part.shape[name].tolist() for name in ("m", "n", "k")), strict=True))
        for part in (split.train, split.test)
    ]
    assert not shapes[0] & shapes[1]
    assert len(split.train) + len(split.test) == len(rows)
    assert set(split.test.gpu) == set(rows.gpu)


def test_roofline_is_the_longer_of_both_times() -> None:
    """By hand for an H200 at 1,979 FP8 TFLOP/s and 4,917 GB/s: one product bound by either."""
    shape = {"m": np.array([4096, 1]), "n": np.array([4096, 8192]), "k": np.array([4096, 8192])}
    by_hand = [2 * 4096**3 / (8192 * 132 * 1830), (8193 * 8192 + 2 * 8192) / 4916.7e3]
    assert baselines.roofline_us(_measured("H200", shape)) == pytest.approx(by_hand)


def test_the_linear_baseline_finds_a_line(rows: Rows) -> None:
    compute, memory = baselines.times_us(rows)
    straight = replace(rows, latency_us=2 * compute + 3 * memory + 5)
    assert baselines.linear_us(straight, straight) == pytest.approx(straight.latency_us, rel=1e-6)


def test_tiles_cover_the_output(rows: Rows) -> None:
    found = neusight.tiles(rows)
    padded = found.count * 128 * 128
    assert np.all(padded >= rows.shape["m"] * rows.shape["n"])
    assert found.ops * found.count == pytest.approx(padded * 2 * rows.shape["k"])


def test_neusight_learns(rows: Rows) -> None:
    def error(epochs: int) -> float:
        return float(np.abs(neusight.fit_predict_us(rows, rows, epochs, width=32) / rows.latency_us - 1).mean())

    assert error(60) < 0.5 * error(1)


def test_steps_are_the_forest() -> None:
    generator = np.random.default_rng(1)
    size = np.repeat(np.sort(generator.integers(1, 2**30, 150)).astype(float), 2)
    known = collectives.Messages("X", "all_reduce", size, np.tile([2, 4], 150), 5 + size / 1e5 + generator.random(300))
    forest = collectives.fit(known)
    asked = np.concatenate([size, generator.integers(1, 2**30, 2000).astype(float), [1.0, 2.0**40]])
    for workers in (2, 4):
        exact = forest.predict(np.stack([asked, np.full(len(asked), workers)], axis=1))
        assert collectives.steps(forest, workers).at(asked) == pytest.approx(exact, rel=1e-6)


def test_held_out_sizes_are_whole_sizes() -> None:
    size = np.repeat(np.arange(1, 2001) * 8192.0, 2)
    known = collectives.Messages("X", "all_reduce", size, np.tile([2, 4], 2000), size)
    out = collectives.held_out(known)
    assert not set(size[out]) & set(size[~out])
    assert 0.15 < out.mean() < 0.25


def test_coverage_counts_rows_at_or_below(rows: Rows) -> None:
    assert score.coverage(rows, rows.perf)["all rows"] == 100
    assert score.coverage(rows, rows.perf * 0.999)["all rows"] == 0


def test_public_rows_keep_their_own_gpu_and_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come shuffled and leave sorted by GPU; each must still carry its own features and target."""
    generator = np.random.default_rng(2)
    table = pd.DataFrame(
        {
            "gpu": pd.Categorical(generator.choice(["H100", "A40", "A100"], 200), categories=["H100", "A40", "A100"]),
            "source": "vidur",
            "rows": generator.integers(1, 4096, 200),
            "dim": 512 * generator.integers(1, 17, 200),
            "latency_us": generator.uniform(2, 90, 200),
        }
    )
    table["group"] = table["dim"].astype(str)
    monkeypatch.setattr(public.corpus, "training_rows", lambda family, data: table)
    split = public.split("rmsnorm", Path("nowhere"))
    assert len(split.train) + len(split.test) == 200
    expected = {row["latency_us"]: row for row in table.to_dict("records")}
    for part in (split.train, split.test):
        for index, latency_us in enumerate(part.latency_us.tolist()):
            row = expected[latency_us]
            assert part.gpu[index] == row["gpu"]
            hw = paper.hardware_of(gpus.find(row["gpu"]))
            found = paper.features("rmsnorm", hw, rows=row["rows"], dim=row["dim"])
            assert part.perf[index] == pytest.approx(paper.overall_perf("rmsnorm", hw, found, latency_us))
            assert part.features["fma_all_ops"][index] == found["fma_all_ops"]
    widths = [
        {expected[latency_us]["dim"] for latency_us in part.latency_us.tolist()} for part in (split.train, split.test)
    ]
    assert not widths[0] & widths[1]
