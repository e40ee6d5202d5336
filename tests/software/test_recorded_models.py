"""Engines' recorded lists of models."""

from __future__ import annotations

import pytest

from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.software.recorded import first_versions, unread
from pipewave.step import Runner, find_engine

CASE = {"gpu": "H200", "mode": "serve", "isl": 64, "osl": 8, "concurrency": 1, "requests": 2}


@pytest.mark.parametrize(
    ("version", "model_type", "said"),
    [
        ("1.0.0", "llama", ""),
        ("1.0.0", "gpt_oss", "recorded from 1.1.0 on"),
        ("1.1.0rc2", "gpt_oss", ""),
        ("1.2.0", "minimax_m2", "recorded from 1.3.0rc23 on"),
        ("1.3.0rc10", "glm_moe_dsa", ""),
        ("1.3.0rc20", "glm4", "no class of its PyTorch backend is recorded for glm4"),
        ("1.3.0rc20", "", ""),
    ],
)
def test_what_a_version_reads(version: str, model_type: str, said: str) -> None:
    told = unread("trtllm", version, model_type)
    assert said in told and bool(said) == bool(told)


def test_engines_without_a_list_are_not_doubted() -> None:
    assert unread("vllm", "0.6.0", "glm4") == "" == first_versions("vllm").get("glm4", "")


def test_every_command_says_so_once() -> None:
    for engine, said in (("trtllm", 1), ("vllm", 0)):
        notes = answer(from_dict(CASE | {"engine": engine, "model": "GLM-4-9B"}))["notes"]
        assert sum("may not serve this model" in note for note in notes) == said
    runner = Runner.of(Deployment(load("GLM-4-9B"), Parallel()), find("H200"), find_engine("trtllm:1.2.0"))
    assert "glm4" in runner.engine.unsupported_model
