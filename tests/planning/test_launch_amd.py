"""Launches on AMD Instinct: AITER switched on, ROCm's images and devices, no engine that does not run there."""

from __future__ import annotations

import shlex

import pytest
import yaml

from pipewave.errors import BadInput
from pipewave.models import load
from pipewave.planning import Question, Space, plan
from pipewave.planning.manifests import NVIDIA, platform_of
from pipewave.published.server_command import read
from tests.sampled import sampled

SPACE = {"tps": (1,), "budgets": (4096,), "batches": (16,), "disaggregated": False}
VARIABLES = {"vllm": "VLLM_ROCM_USE_AITER=1", "sglang": "SGLANG_USE_AITER=1"}


def _launch(engine: str, form: str = "shell", gpu: str = "MI300X") -> str:
    found = plan(load("Llama-3.1-8B"), Question(1000, 200), Space((gpu,), engines=(engine,), **SPACE))  # type: ignore[arg-type]
    assert found.winner is not None
    return found.launch(found.winner, form)


@pytest.mark.parametrize("engine", VARIABLES)
def test_commands_switch_aiter_on_and_are_read_back(engine: str) -> None:
    line = _launch(engine)
    assert line.startswith(VARIABLES[engine] + " ")
    assert (read(line).engine, read(line).spec.name) == (engine, "Llama-3.1-8B")


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "card"), sampled([("MI300X", "mi30x"), ("MI355X", "mi35x")], 1))
def test_containers_get_rocm(gpu: str, card: str) -> None:
    words = shlex.split(_launch("sglang", "docker", gpu))
    assert any(word.endswith(card) for word in words) and "/dev/kfd" in words and "--gpus" not in words
    pod = yaml.safe_load(_launch("vllm", "kubernetes", gpu))["spec"]["template"]["spec"]["containers"][0]
    assert "rocm" in pod["image"] and list(pod["resources"]["limits"]) == ["amd.com/gpu"]


@pytest.mark.slow
def test_what_does_not_run_there_is_no_design() -> None:
    found = plan(load("Llama-3.1-8B"), Question(1000, 200), Space(("MI300X",), engines=("trtllm",), **SPACE))  # type: ignore[arg-type]
    assert found.winner is None
    with pytest.raises(BadInput, match="NVIDIA"):
        _launch("vllm", "dynamo")


def test_other_gpus_need_nothing() -> None:
    assert platform_of("H200", "trtllm") == NVIDIA and NVIDIA.words == []
