"""One deployment has one answer: the command `serve`, `pw.serve`, a line of `serve --cases`, and `plan`."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.errors import PipewaveError
from pipewave.published.stream import answer_lines
from tests.command_line import CliRunner

MODELS = (("Llama-3.1-8B", (1, 2)), ("Qwen3-0.6B", (1,)), ("Qwen3-30B-A3B", (1, 2)), ("Llama-3.1-70B", (4,)))
ENGINES = (
    None,
    "vllm",
    "vllm:0.12.0",
    "vllm:0.22.1",
    "sglang",
    "sglang:0.5.6",
    "sglang:0.5.14",
    "trtllm",
    "trtllm:1.0.0",
)
GPUS = ("H200", "H100", "B200", "A100")
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")


def deployment(seed: int) -> dict[str, Any]:
    """A random one, small enough to be served at once."""
    draw = random.Random(seed)
    model, tps = draw.choice(MODELS)
    case: dict[str, Any] = {"model": model, "gpu": draw.choice(GPUS), "engine": draw.choice(ENGINES)}
    case |= {"tp": draw.choice(tps), "isl": draw.choice((64, 300, 1000)), "osl": draw.choice((2, 16, 40))}
    case |= {"requests": draw.choice((8, 30)), "spread": draw.choice((0.0, 0.3))}
    case |= draw.choice(({"concurrency": 2}, {"concurrency": 8}, {"rate": 5.0}))
    case |= draw.choice(({}, {}, {"max_num_seqs": 4}, {"max_num_batched_tokens": 2048}, {"kv_dtype": "fp8"}))
    return {name: value for name, value in case.items() if value is not None}


OPTIONS = {"kv_dtype": "--kv-cache-dtype"}


def by_command(case: dict[str, Any]) -> dict[str, Any]:
    words = [
        str(word) for name, value in case.items() for word in (OPTIONS.get(name, "--" + name.replace("_", "-")), value)
    ]
    found = CliRunner().invoke(build(), ["serve", *words, "--json"], catch_exceptions=False)
    if found.exit_code:
        return {"error": found.output}
    answer = json.loads(found.stdout)
    names = {f"{name}{end}": f"{name[:-3]}_mean_ms{end}" for name in METRICS for end in ("", "_low", "_high")}
    return {ours: answer[name] for ours, name in names.items()} | {"notes": answer["notes"]}


def by_python(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return pw.serve(**case)
    except PipewaveError as problem:
        return {"error": problem.message}


def by_case(case: dict[str, Any]) -> dict[str, Any]:
    return next(iter(answer_lines([json.dumps(case)])))


def same(case: dict[str, Any]) -> None:
    one, *others = (by(case) for by in (by_case, by_python, by_command))
    for other in others:
        assert ("error" in one) == ("error" in other), (case, one, other)
        if "error" in one:
            continue
        for name in METRICS:
            for end in ("", "_low", "_high"):
                assert other[name + end] == pytest.approx(one[name + end], rel=1e-9), (case, name)
        assert list(other["notes"]) == list(one["notes"])


@pytest.mark.parametrize("seed", range(8))
def test_every_door_gives_the_same_answer(seed: int) -> None:
    same(deployment(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 200))
def test_every_door_gives_the_same_answer_to_many_deployments(seed: int) -> None:
    same(deployment(seed))
