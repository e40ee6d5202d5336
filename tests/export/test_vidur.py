"""Profiles for Vidur: its columns, our times, and its own way of reading them."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.errors import BadInput
from pipewave.export.vidur import LayerTimes, export
from pipewave.gpus import find
from pipewave.models import load
from tests.command_line import CliRunner

PROFILES = Path(os.environ.get("PIPEWAVE_DATA", "../shared/data")) / "vidur" / "profiling"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("profiles")
    arguments = ["export", "vidur", "--model", "Meta-Llama-3-8B", "--gpu", "A100", "--tp", "1,2", "--out", str(out)]
    done = CliRunner().invoke(build(), arguments)
    assert done.exit_code == 0, done.output
    return out


def test_times_are_predictions_in_ms(folder: Path) -> None:
    row = next(
        one
        for one in rows(folder / "mlp.csv")
        if (one["num_tokens"], one["num_tensor_parallel_workers"]) == ("1024", "2")
    )
    found = pw.predict(pw.gemm(1024, 14336, 4096), "A100", protocol="serving")
    assert float(row["time_stats.mlp_up_proj.median"]) == pytest.approx(found.latency_us / 1e3, rel=1e-3)
    assert float(row["time_stats.mlp_up_proj.min"]) < float(row["time_stats.mlp_up_proj.max"])
    decode = [one for one in rows(folder / "attention.csv") if one["is_prefill"] == "False"]
    assert all(one["time_stats.attn_decode.median"] and not one["time_stats.attn_prefill.median"] for one in decode)


def test_tables_grow_with_their_sizes(folder: Path) -> None:
    reduced = [float(one["time_stats.all_reduce.median"]) for one in rows(folder / "all_reduce.csv")]
    assert reduced[-1] > 10 * reduced[0]
    mlp = [one for one in rows(folder / "mlp.csv") if one["num_tensor_parallel_workers"] == "1"]
    times = [float(one["time_stats.mlp_up_proj.median"]) for one in mlp]
    assert times[-1] > 50 * times[0]


@pytest.mark.skipif(not PROFILES.is_dir(), reason="needs the public corpus")
def test_columns_are_those_of_published_profiles(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    model = PROFILES / "compute" / "a100" / "meta-llama" / "Meta-Llama-3-8B" / "mlp.parquet"
    network = PROFILES / "network" / "a100_dgx" / "all_reduce.parquet"
    for ours, theirs in (("mlp", model), ("all_reduce", network)):
        published = pandas.read_parquet(theirs)
        assert set(rows(folder / f"{ours}.csv")[0]) == set(published.columns)
    published = pandas.read_parquet(model)
    mine = rows(folder / "mlp.csv")[0]
    for name in ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", "use_gated_mlp"):
        assert {str(value) for value in published[name].unique()} == {mine[name]}


@pytest.mark.skipif(not PROFILES.is_dir(), reason="needs the public corpus")
def test_products_are_near_the_measured_profile(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    measured = pandas.read_parquet(PROFILES / "compute" / "a100" / "meta-llama" / "Meta-Llama-3-8B" / "mlp.parquet")
    mine = pandas.read_csv(folder / "mlp.csv")
    keys = ["num_tokens", "num_tensor_parallel_workers"]
    both = mine.merge(measured.groupby(keys, as_index=False).median(numeric_only=True), on=keys)
    assert len(both) > 50
    for name in ("attn_pre_proj", "mlp_up_proj", "mlp_down_proj"):
        column = f"time_stats.{name}.median"
        assert (both[f"{column}_x"] / both[f"{column}_y"] - 1).abs().median() < 0.15


def test_a_mixture_of_experts_is_one_operator(tmp_path: Path) -> None:
    export(load("Mixtral-8x7B"), find("H200"), tmp_path, tps=(2,))
    row = next(one for one in rows(tmp_path / "mlp.csv") if one["num_tokens"] == "1024")
    assert row["n_expanded_embd"] == "14336"
    assert float(row["time_stats.mlp_act.median"]) == float(row["time_stats.mlp_down_proj.median"]) == 0.0
    alone = pw.predict(pw.fused_moe(1024, 8, 2, 4096, 14336, tp=2), "H200", protocol="serving").latency_us / 1e3
    assert alone < float(row["time_stats.mlp_up_proj.median"]) < 1.1 * alone  # with its router
    times = LayerTimes(load("Mixtral-8x7B"), find("H200"), 2).of((1024,), (1024,))
    assert times["mlp_up_proj"] == pytest.approx(float(row["time_stats.mlp_up_proj.median"]), rel=1e-4)


@pytest.mark.parametrize("model", ["gpt-oss-20b", "DeepSeek-V3"])
def test_models_that_vidur_cannot_describe_are_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="equal layers"):
        export(load(model), find("H200"), tmp_path)
    assert not list(tmp_path.iterdir())
