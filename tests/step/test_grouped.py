"""Experts by a grouped product that walks a block of every expert."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from pipewave.calls.families import FusedMoe
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Runner, find_engine
from pipewave.step.grouped import every_block_us

EXPERTS = {"experts": 128, "topk": 8, "hidden": 4096, "inter": 1536, "dtype": "fp8_block"}


def fp8() -> dict[str, Any]:
    """Qwen3-235B-A22B with weights in blocks of 128 × 128 of FP8."""
    config = json.loads((files("pipewave") / "data" / "models" / "Qwen3-235B-A22B.json").read_text("utf-8"))
    return dict(config) | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def decode_us(version: str, requests: int, tp: int = 2) -> float:
    """µs of the experts of one decode step of Qwen3-235B-A22B in FP8 on H200."""
    runner = Runner.of(Deployment(load(fp8()), Parallel(tp)), find("H200"), find_engine(f"vllm:{version}"))
    steps = runner.steps([runner.batch([1] * requests, [1000] * requests)])
    return float(steps.families["fused_moe"][0])


def test_tiles_of_every_block_by_hand() -> None:
    """128 experts, 12 column tiles of gate and up and 32 of down, each with 128 rows of either operand."""
    gpu = find("H200")
    call = FusedMoe(16, tp=2, **EXPERTS)  # type: ignore[arg-type]
    tiles = 128 * (12 * (128 + 128) * 4096 + 32 * (128 + 128) * 768)
    assert every_block_us(call, 128, gpu) == pytest.approx(tiles / (22.0 * gpu.sms * gpu.sustained_clock_mhz))
    spread = FusedMoe(16, ep=2, **EXPERTS)  # type: ignore[arg-type]
    assert every_block_us(spread, 128, gpu) == pytest.approx(every_block_us(call, 128, gpu))


def test_decode_hangs_on_the_split_and_not_on_the_batch() -> None:
    few, many = (decode_us("0.12.0", requests) for requests in (4, 20))
    assert few == pytest.approx(many)
    assert decode_us("0.12.0", 4, tp=4) == pytest.approx(few / 2)


@pytest.mark.parametrize("version", ["0.11.0", "0.19.0"])
def test_versions_that_take_triton_read_what_tokens_ask_for(version: str) -> None:
    assert decode_us(version, 4) < 0.7 * decode_us(version, 20) < decode_us("0.12.0", 20)
