"""One deployment has one answer: the command `serve`, `pw.serve`, a line of `serve --cases`, and `plan`."""

from __future__ import annotations

import json
import random
import shlex
from typing import Any

import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.errors import BadInput, PipewaveError
from pipewave.planning import Plan
from pipewave.planning.plan import Design
from pipewave.published.stream import answer_lines
from tests.command_line import CliRunner
from tests.sampled import sampled

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
TIMES, ENDS = ("ttft_ms", "tpot_ms", "e2e_ms"), ("", "_low", "_high")
WATTS = ("power_w", "energy_j_per_output_token")
FIGURES = ("output_tokens_per_s", *(name + end for name in TIMES + WATTS for end in ENDS))


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
    return by_words(["serve", *words])


def by_words(words: list[str]) -> dict[str, Any]:
    """What a command prints, under the names of a case's answer."""
    found = CliRunner().invoke(build(), [*words, "--json"], catch_exceptions=False)
    if found.exit_code:
        return {"error": found.output}
    answer = json.loads(found.stdout)
    return answer | {name: answer[name.replace("_ms", "_mean_ms")] for name in FIGURES if name not in answer}


def by_python(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return pw.serve(**case)
    except PipewaveError as problem:
        return {"error": problem.message}


def by_case(case: dict[str, Any]) -> dict[str, Any]:
    return next(iter(answer_lines([json.dumps(case)])))


def check(one: dict[str, Any], other: dict[str, Any], case: dict[str, Any]) -> None:
    """Both are the same answer."""
    assert ("error" in one) == ("error" in other), (case, one, other)
    for name in () if "error" in one else FIGURES:
        assert other[name] == pytest.approx(one[name], rel=1e-9), (case, name)


def same(case: dict[str, Any]) -> None:
    one, *others = (by(case) for by in (by_case, by_python, by_command))
    for other in others:
        check(one, other, case)
        assert "error" in one or list(other["notes"]) == list(one["notes"])


@pytest.mark.parametrize("seed", sampled(range(200), 8))
def test_every_door_gives_the_same_answer(seed: int) -> None:
    same(deployment(seed))


ASKED = {"model": "Llama-3.1-8B", "gpu": "H200", "isl": 64, "osl": 4, "requests": 4, "concurrency": 2}


@pytest.mark.parametrize("form", ["fp8", "nvidia/Llama-3.1-8B-Instruct-FP8"])
def test_other_weights_are_the_same_through_every_door(form: str) -> None:
    """What `plan --quantize` tries is what the others answer, `estimate` and a pasted server among them."""
    case = ASKED | {"quantize": form, "engine": "vllm:0.22.1"}
    same(case)
    served, plain = by_python(case), by_python(ASKED | {"engine": "vllm:0.22.1"})
    assert served["tpot_ms"] < 0.9 * plain["tpot_ms"]
    line = ["serve", "--gpu", "H200", "--engine", "vllm:0.22.1", "--isl", "64", "--osl", "4", "--requests", "4"]
    word = "Llama-3.1-8B --quantization fp8" if form == "fp8" else form
    check(by_words([*line, "--concurrency", "2", "--from-command", f"vllm serve {word}"]), served, case)
    batch = pw.estimate("Llama-3.1-8B", "H200", batch=2, input_len=64, output_len=4, quantize=form)
    words = f"estimate --model Llama-3.1-8B --gpu H200 --batch 2 --isl 64 --osl 4 --quantize {form} --json".split()
    assert json.loads(CliRunner().invoke(build(), words).stdout)["tpot_ms"] == round(batch.tpot_ms, 4)
    found = planned(case | {"tp": 1, "max_num_seqs": 4}, quantize=(form,))
    winner = next(design for design in found.designs if design.split.weights == form)
    command = shlex.split(found.serve_command(winner))
    assert command[command.index("--quantize") + 1] == form
    check(by_plan(found, winner), by_words(command[1:]), case)


@pytest.mark.parametrize(
    ("model", "form", "engine", "says"),
    [("Llama-3.1-8B", "int3", "vllm", "names no form"), ("Qwen3-8B-FP8", "fp8", "vllm", "changes nothing"),
     ("Llama-3.1-8B", "fp8", "trtllm:1.2.0", "trtllm does not quantise"), ("Qwen3-32B", "published", "sglang", "give one")],
)  # fmt: skip
def test_weights_that_cannot_be_are_refused(model: str, form: str, engine: str, says: str) -> None:
    asked: dict[str, Any] = {"gpu": "H200", "engine": engine, "isl": 64, "osl": 4, "quantize": form}
    with pytest.raises(BadInput, match=says) as caught:
        pw.estimate(model, **asked, batch=2)
    told = by_case({**asked, "model": model, "concurrency": 2})["error"]
    assert caught.value.field == told["field"] == "quantize" and told["message"] == caught.value.message


def test_a_line_of_versions_is_its_newest_through_every_door() -> None:
    """`0.27.x`, as people write it: 0.27.1, in answers, in their notes and in the image that a plan starts."""
    line, newest = (by_case({**ASKED, "engine": "vllm", "version": version}) for version in ("0.27.x", "0.27.1"))
    assert line == newest and any("vllm-0.27.1" in note for note in line["notes"])
    same({**ASKED, "engine": "vllm:0.27.x"})
    check(by_python({**ASKED, "engine": "vllm:0.27.x"}), newest, ASKED)
    static = [
        pw.estimate("Llama-3.1-8B", "H200", engine=f"vllm:{of}", batch=2, isl=64, osl=4).to_dict()
        for of in ("0.27.x", "0.27.1")
    ]
    assert static[0] == static[1]
    said = planned({**ASKED, "engine": "vllm:0.27.x", "tp": 1, "max_num_seqs": 4})
    assert said.winner is not None and " vllm/vllm-openai:v0.27.1 " in said.launch(said.winner, "docker")


@pytest.mark.parametrize("version", ["99.0.x", "0.27.foo"])
def test_a_version_that_is_none_is_refused_through_every_door(version: str) -> None:
    told = f"engine = 'vllm:{version}': not known; the newest is 0"
    refused = {"code": "bad_value", "field": "engine"}
    for case in (
        {**ASKED, "engine": "vllm", "version": version},
        {**ASKED, "engine": f"vllm:{version}", "mode": "estimate"},
    ):
        error = by_case(case)["error"]
        assert error.items() >= refused.items() and told in error["message"]
    assert told in by_python({**ASKED, "engine": f"vllm:{version}"})["error"]
    with pytest.raises(BadInput, match="not known; the newest is"):
        pw.estimate("Llama-3.1-8B", "H200", engine=f"vllm:{version}", batch=2, isl=64, osl=4)
    looks = planned({**ASKED, "engine": f"vllm:{version}", "tp": 1}).looked
    assert looks and all(told in look.refused for look in looks)


def planned(case: dict[str, Any], **more: Any) -> Plan:
    """A search that has nothing to choose but the rate."""
    lists = {"kv_dtypes": "kv_dtype", "batches": "max_num_seqs", "budgets": "max_num_batched_tokens", "tps": "tp"}
    only: dict[str, Any] = {plural: (case.get(name),) for plural, name in lists.items()}
    return pw.plan(
        case["model"],
        case["gpu"],
        input_len=case["isl"],
        output_len=case["osl"],
        ttft_ms=5000,
        tpot_ms=200,
        engines=(case.get("engine", "vllm"),),
        speculative=(None,),
        dps=(1,),
        pps=(1,),
        experts=False,
        disaggregated=False,
        **only,
        **more,
    )


def by_plan(found: Plan, design: Design) -> dict[str, Any]:
    """What a plan says of a design: its row, and the tokens that its run made a second."""
    tokens = round(design.fleet.point.figures["output_tokens_per_s"], 4)
    return design.row(found.question) | {"output_tokens_per_s": tokens}


def case_of(found: Plan, design: Design) -> dict[str, Any]:
    """A design of one replica as a case."""
    split, point, question = design.split, design.fleet.point, found.question
    names = ("gpu", "tp", "engine", "kv_dtype", "max_num_seqs", "max_num_batched_tokens")
    case = {"model": found.model} | {name: getattr(split, name) for name in names}
    case |= {"isl": question.input_len, "osl": question.output_len, "spread": question.spread, "steady": True}
    return {name: value for name, value in case.items() if value is not None} | {
        "rate": point.rate,
        "requests": point.requests,
    }


@pytest.mark.parametrize("seed", sampled(range(0, 200, 10), 2))  # `studies.plan_checks` holds 200 wider searches so
def test_what_a_plan_says_of_its_winner_is_what_serve_says(seed: int) -> None:
    found = planned(deployment(seed))
    if found.winner is None:
        assert all(look.refused or not look.rate for look in found.looked)
        return
    asked, said = case_of(found, found.winner), by_plan(found, found.winner)
    check(said, by_case(asked), asked)
    check(said, by_python(asked), asked)
    check(said, by_words(shlex.split(found.serve_command(found.winner))[1:]), asked)
