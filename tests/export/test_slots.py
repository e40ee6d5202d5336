"""Files for the tools of others: their names, our figures, and their own readers where these are there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipewave as pw
from pipewave.errors import DoesNotFit
from pipewave.export import dynamo, runs
from pipewave.gpus import find
from pipewave.models import load
from pipewave.published.answers import deploy, served
from pipewave.published.cases import from_dict
from pipewave.told.readers import read


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dynamo")
    dynamo.export(load("Llama-3.1-8B"), find("H200"), folder)
    return folder


def test_dynamo_reads_sweeps_of_a_worker(sweeps: Path) -> None:
    prefill = np.load(sweeps / "selected_prefill_interpolation" / "raw_data.npz")
    isl, ttft = prefill["prefill_isl"], prefill["prefill_ttft"]
    assert (np.diff(isl) > 0).all() and ttft[-1] > 50 * ttft[0]
    assert prefill["prefill_thpt_per_gpu"] == pytest.approx(1e3 * isl / ttft)
    decode = np.load(sweeps / "selected_decode_interpolation" / "raw_data.npz")
    tokens = int(decode["max_kv_tokens"][0])
    batch = decode["x_kv_usage"] * tokens / decode["y_context_length"]
    assert batch == pytest.approx(batch.round()) and (decode["x_kv_usage"] <= 1).all()
    step = pw.step_time("Llama-3.1-8B", "H200")
    at = len(batch) // 2
    n, held = round(batch[at]), int(decode["y_context_length"][at])
    assert decode["z_itl"][at] == pytest.approx(1e3 * step([1] * n, [held] * n))
    plain = json.loads((sweeps / "decode_raw_data.json").read_text())
    assert plain["max_kv_tokens"] == tokens and plain["z_itl"] == pytest.approx(decode["z_itl"])


def test_dynamos_own_reader_takes_them(sweeps: Path) -> None:
    metrics = pytest.importorskip("dynamo.planner.monitoring.perf_metrics")
    assert len(metrics._convert_prefill_profiling(str(sweeps))) == dynamo.PROMPTS
    assert all(one.wall_time > 0 for one in metrics._convert_decode_profiling(str(sweeps)))


def test_a_model_too_large_for_the_worker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit):
        dynamo.export(load("Llama-3.1-70B"), find("L40S"), tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    case = from_dict({"model": "Llama-3.1-8B", "gpu": "H200", "isl": 256, "osl": 32, "rate": 4, "requests": 40})
    found = served(deploy(case.stated(), case.traffic()), interval=False)
    folder = tmp_path_factory.mktemp("aiperf") / "made"
    runs.write_aiperf(folder, found.record, found.traffic, found.answer)
    return folder, found.answer


def test_a_run_reads_as_aiperfs(run: tuple[Path, Mapping[str, Any]]) -> None:
    folder, answer = run
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert summary["time_to_first_token"]["p99"] == pytest.approx(answer["ttft_p99_ms"])
    assert summary["inter_token_latency"]["avg"] == pytest.approx(answer["tpot_mean_ms"])
    lines = [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    assert len(lines) == 40
    first = lines[0]["metadata"]
    assert lines[0]["metrics"]["request_latency"]["value"] == pytest.approx(
        (first["request_end_ns"] - first["request_start_ns"]) / 1e6, rel=1e-6
    )
    (told,) = read(folder / "profile_export_aiperf.json", {"concurrency": 1}).runs
    assert told["ttft_ms"] == pytest.approx(answer["ttft_mean_ms"])


def test_aiperfs_own_loader_takes_them(run: tuple[Path, Mapping[str, Any]]) -> None:
    loader = pytest.importorskip("aiperf.plot.core.data_loader").DataLoader()
    found = loader.load_run(run[0])
    assert len(found.requests) == 40
