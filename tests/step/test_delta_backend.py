"""Prompts of gated delta nets: which scan runs, what stands beside it, and what the host launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.step import Runner, find_engine

PROMPTS, DECODES = Batch.of([2048] * 4, [2048] * 4), Batch.of([1] * 16, [2048] * 16)
MODEL = Path(__file__).resolve().parents[2] / "data" / "measured" / "h100" / "kinds" / "Qwen3-Next-80B-A3B.json"


def _runner(backend: str = "", version: str = "0.22.1", gpu: str = "H200") -> Runner:
    engine = find_engine(f"vllm:{version}")
    return Runner.of(Deployment(load(MODEL)), find(gpu), engine.what_if(delta_backend=backend) if backend else engine)


def _us(runner: Runner, batch: Batch) -> float:
    return float(runner.steps([batch]).families["delta_net"][0])


def test_the_triton_scan_takes_prompts_several_times_longer_and_decodes_as_long() -> None:
    flash, triton = _runner(), _runner("triton")
    assert _us(triton, PROMPTS) > 3 * _us(flash, PROMPTS)
    assert _us(triton, DECODES) == _us(flash, DECODES)


def test_releases_without_the_choice_ran_the_triton_scan() -> None:
    assert _us(_runner(version="0.12.0"), PROMPTS) == _us(_runner("triton"), PROMPTS)


def test_a_backend_that_is_not_known_is_refused() -> None:
    with pytest.raises(BadInput, match="known to run triton"):
        _runner("cuda")


def test_bytes_beside_the_scan() -> None:
    """Per layer: 12,288 elements parted, 8,192 normed and parted, 4,096 zeroed and copied, 16 bits each."""
    calls = {use.name: use.call for use in Deployment(load(MODEL)).kernels(Batch.of([100], [100]))}
    streams = {name: call for name, call in calls.items() if name.startswith("delta_") and name != "delta_net"}
    moved = {name: (call.bytes_read, call.bytes_written) for name, call in streams.items()}  # type: ignore[attr-defined]
    assert moved == {
        "delta_unpack": (100 * 12288 * 2, 100 * 12288 * 2),
        "delta_prepare": (100 * 8192 * 2, 100 * 8192 * 2),
        "delta_output": (100 * 4096 * 2, 2 * 100 * 4096 * 2),
    }


def test_only_qwen3_next_interleaves_heads_and_only_prompts_prepare() -> None:
    names = {use.name for use in Deployment(load(MODEL)).kernels(Batch.of([1], [100]))}
    assert "delta_unpack" in names and not names & {"delta_prepare", "delta_output"}


def test_a_prompt_launches_what_its_scan_is_made_of() -> None:
    """36 delta layers: nine launches more for the scan, three kernels beside the scan and the convolution's."""
    runner = _runner()
    launches = [float(runner.steps([batch]).load.launches[0]) for batch in (PROMPTS, DECODES)]
    assert launches[0] - launches[1] == 36 * (9 + 2)
