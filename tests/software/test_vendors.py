"""What engines do on AMD's GPUs."""

from __future__ import annotations

import pytest

from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Runner, find_engine


def runner(engine: str, gpu: str, model: str = "Llama-3.1-8B") -> Runner:
    return Runner.of(Deployment(load(model), Parallel(1)), find(gpu), find_engine(engine))


@pytest.mark.parametrize("gpu", ["MI300X", "MI355X"])
def test_tensorrt_llm_runs_on_nvidia_alone(gpu: str) -> None:
    with pytest.raises(BadInput, match=f"does not run on {gpu}") as refused:
        runner("trtllm", gpu)
    assert refused.value.field == "engine"
    assert runner("trtllm", "H100").engine.name == "trtllm"


def test_kernels_of_nvidia_are_not_asked_of_amd() -> None:
    """No FlashInfer, no prompts in pieces of graphs, and vLLM's AITER attends for decodes and prompts apart."""
    for gpu, nvidia in (("MI300X", False), ("L40S", True)):
        sglang, vllm = runner("sglang", gpu).engine, runner("vllm", gpu).engine
        assert any(rule.impl == "flashinfer" for rule in sglang.kernels.kernel_rules) == nvidia
        assert bool(sglang.graphs.piecewise_tokens) == nvidia
        assert vllm.kernels.separate_attention != nvidia


def test_sinks_run_triton_where_flash_attention_has_none() -> None:
    for engine, impl in (("vllm:0.11.0", "vllm_triton_attn"), ("sglang", "triton")):
        rule = runner(engine, "A100", "gpt-oss-20b").engine.kernel("attention", "bf16")
        assert rule is not None
        assert rule.impl == impl
