"""Products in 32-bit floats: operations from bytes, the peak of the FMA units, and steps measured with such routers."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pipewave as pw
from lab.float_products import RESULTS
from lab.vllm_engine.launch import config_of
from pipewave.calls.streaming import Elementwise
from pipewave.gpus import find
from pipewave.kernels.streaming.elementwise import FLOAT_PRODUCT as OP
from pipewave.kernels.streaming.elementwise import FMA_SHARE, operations
from pipewave.kernels.streaming.stream import Stream
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.step import Runner, find_engine
from studies import kinds
from studies.e2e_steps import measure_loads


def us(m: int, n: int, k: int, gpu: str = "H100") -> pw.Prediction:
    return pw.predict(Elementwise(4 * m * k, 4 * m * n, weight_bytes=4 * n * k, op=OP), gpu, protocol="serving")


@pytest.mark.parametrize(("m", "n", "k"), [(1, 256, 3072), (8192, 128, 4096), (7, 160, 5120)])
def test_operations_follow_from_bytes(m: int, n: int, k: int) -> None:
    sizes = (np.array([4.0 * size]) for size in (n * k, m * k, m * n))
    assert operations(Stream(*sizes))[0] == pytest.approx(2.0 * m * n * k)


@pytest.mark.parametrize("gpu", ["A100", "H100", "H200", "B200"])
def test_many_rows_take_what_the_fma_units_allow(gpu: str) -> None:
    part = find(gpu)
    peak = 2.0 * part.fma_per_clk_per_sm * part.sms * part.sustained_clock_mhz  # FLOP a us
    one, two = us(16384, 256, 3072, gpu), us(32768, 256, 3072, gpu)
    assert two.latency_us - one.latency_us == pytest.approx(2.0 * 16384 * 256 * 3072 / (FMA_SHARE * peak), rel=0.01)
    assert one.floor_us < one.latency_us
    assert one.bound == "fma"


def test_one_row_waits_for_the_weights_and_few_rows_for_two_kernels() -> None:
    assert us(1, 256, 3072).latency_us < 1.2 * us(1, 16, 3072).latency_us + 4 * 256 * 3072 / 1e6
    assert us(1, 256, 3072).latency_us < us(2, 256, 3072).latency_us < us(64, 256, 3072).latency_us
    assert us(64, 256, 3072).latency_us < us(4096, 256, 3072).latency_us


def test_measured_products_of_routers() -> None:
    rows = json.loads(RESULTS.read_text("utf-8"))["rows"]
    off = {m: np.mean([abs(us(m, n, k, "H200").latency_us / took - 1) for m_, n, k, took, _ in rows if m_ == m])
           for m in {row[0] for row in rows}}  # fmt: skip
    assert np.mean(list(off.values())) < 0.12
    assert max(off.values()) < 0.2


@pytest.mark.parametrize("model", ["GLM-4.5-Air", "MiniMax-M2.5"])
def test_measured_prompts_of_models_with_such_routers_are_nearer_with_it(model: str) -> None:
    """vLLM on an H100, rows that no constant is fitted on: prompts of 8,192 tokens of a model's first layers."""
    long = [point for point in kinds.points() if model in point.model and point.batch * point.input_len == 8192]
    layers = int(long[0].model.partition(kinds.CUT)[2])
    deployment = Deployment(load(config_of(str(kinds.FOLDER / f"{model}.json"), layers)))
    real = np.array([point.measured_ms for point in long])

    def off(**chosen: bool) -> float:
        engine = find_engine("vllm").what_if(fused_norm_mib=0.0, routing="random", **chosen)
        loads = measure_loads(long, lambda name, tp: Runner.of(deployment, find("H100"), engine))
        return float(np.abs(loads.predict_ms(engine) / real - 1).mean())

    assert len(long) >= 2
    assert off() < min(0.03, off(float_routers=False))
