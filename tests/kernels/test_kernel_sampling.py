"""Kernels that choose tokens: their laws against the rows they were fitted to and traces that they were not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.gpus import find
from pipewave.kernels.streaming import sampling as argmax
from pipewave.kernels.streaming.sampling import LAWS, rounds_of, seconds
from pipewave.traces import explain_trace
from studies.e2e_kernels import explained

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "data" / "measured"
FITTED = json.loads((ROOT / "studies" / "results" / "sampling_fit.json").read_text())
DECODE = ROOT / "data" / "measured" / "h100" / "traces" / "trace-hf-llama-2layers-decode-modules.json.gz"


# Operation → what its own kernels' names hold ("" for all of them), values of a block's tile.
KINDS = {
    "softmax": ("SoftMaxForward", 0),
    "log_softmax": ("SoftMaxForward", 0),
    "gumbel": ("_gumbel", 1024),
    "temperature": ("_temperature", 8192),
    "min_p": ("_min_p", 0),
    "mask_top_k": ("_topk_topp", 0),
    "mask_top_p": ("_topk_topp", 0),
    "mask_top_k_top_p": ("_topk_topp", 0),
    "exponential": ("distribution", 0),
    "aten_topk": ("", 0),
    "aten_sort": ("", 0),
    "aten_multinomial": ("", 0),
}


def rows_of(op: str, part: str, gpu: str = "H100") -> list[tuple[int, int, float]]:
    """(requests, vocabulary, µs of a call) of an operation."""
    packed = (MEASURED / gpu.lower() / "sampling.jsonl.gz").read_bytes()
    found = [row for row in map(json.loads, gzip.decompress(packed).decode().splitlines()[1:])
             if row["op"] == op.removeprefix("aten_")]  # fmt: skip
    times = ((r, sum(k["us"] * k["calls"] for k in r["kernels"] if part in k["name"])) for r in found)
    return [(r["rows"], r["vocabulary"], us) for r, us in times if us > 0]


def us(op: str, requests: int, vocabulary: int, gpu: str = "H100") -> float:
    _, tile = KINDS[op]
    read = np.array([4.0 * requests * vocabulary])
    return float(1e6 * seconds(op, read, np.array([float(rounds_of(vocabulary, tile))]), find(gpu))[0])


@pytest.mark.parametrize("op", sorted(LAWS))
def test_a_law_meets_its_rows(op: str) -> None:
    rows = rows_of(op, KINDS[op][0])
    assert len(rows) == FITTED[op]["rows"] >= 40
    errors = [abs(us(op, n, v) / real - 1) for n, v, real in rows]
    assert 100 * np.mean(errors) <= FITTED[op]["error_percent"] + 3


@pytest.mark.parametrize("op", sorted(LAWS))
def test_constants_are_those_of_the_committed_fit(op: str) -> None:
    law = LAWS[op]
    five = (law.start_us, law.cycles, law.more_cycles, law.passes, law.resident)
    assert five == pytest.approx(FITTED[op]["law"], rel=1e-3, abs=1e-4)
    assert law.error_percent == FITTED[op]["error_percent"]


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_argmax_meets_the_rows_of_both_gpus(gpu: str) -> None:
    rows = rows_of("argmax", "reduce_kernel", gpu)
    law = argmax.START_S, argmax.SHARED_START_S, argmax.CYCLES_A_VALUE, argmax.MISSED_CYCLES, argmax.DRAM_SHARE
    assert FITTED["argmax"]["law"] == pytest.approx([*law, argmax.VALUES_A_CLOCK], rel=1e-3)
    assert len(rows) == 48
    n, v, real = (np.array([float(row[i]) for row in rows]) for i in range(3))
    errors = np.abs(1e6 * argmax.argmax_seconds(4 * n * v, 8 * n, find(gpu)) / real - 1)
    assert errors.mean() < 0.06
    assert errors.max() < 0.3  # 256 rows of 262,144 on the H200


@given(st.sampled_from(sorted(LAWS)), st.integers(1, 512), st.integers(8192, 300_000), st.sampled_from(["H200", "L40S", "B200"]))  # fmt: skip
def test_more_requests_or_words_take_no_less(op: str, requests: int, vocabulary: int, gpu: str) -> None:
    base = us(op, requests, vocabulary, gpu)
    assert us(op, 2 * requests, vocabulary, gpu) >= base * (1 - 1e-9)
    assert us(op, requests, 2 * vocabulary, gpu) >= base * (1 - 1e-9)


@pytest.mark.parametrize(("step", "kernel"), [
    ("Qwen3-32B-tp2-graph-decode", "_gumbel_sample_kernel"),
    ("Llama-3.1-8B-tp1-graph-decode", "ArgMaxOps"),
    ("Qwen3-30B-A3B-tp1-graph-decode", "ArgMaxOps"),
])  # fmt: skip
def test_samplers_of_another_gpu_are_predicted_as_what_they_are(step: str, kernel: str) -> None:
    """Traces of vLLM on an H200; the laws were fitted on an H100."""
    (entry,) = [one for one in explained(step).entries if any(kernel in name for name in one.kernels) and one.name == "sample"]  # fmt: skip
    assert entry.call["op"] in ("gumbel", "argmax")
    assert abs(entry.error) < 0.35
    assert not entry.counted  # nobody measured how fast another implementation would be


def test_operators_of_many_kernels_are_one_call() -> None:
    found = {one.name: one for one in explain_trace(DECODE).entries if one.name in ("aten::topk", "aten::multinomial")}
    assert {one.count for one in found.values()} == {3}  # steps
    assert len(found["aten::topk"].kernels) > 5
    assert all(abs(one.error) < 0.35 for one in found.values())


def test_the_public_call_takes_the_law() -> None:
    call = pw.elementwise(4 * 32 * 128_256, 8 * 32, op="gumbel", rounds=1)
    assert pw.predict(call, "H100").latency_us == pytest.approx(us("gumbel", 32, 128_256))
