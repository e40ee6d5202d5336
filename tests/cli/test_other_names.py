"""Names that engines and their benchmarks have for an option, an argument or a field are taken for its own."""

from __future__ import annotations

from typing import Any

import pytest

import pipewave as pw
from pipewave.calls.fields import OTHER_NAMES, own_name
from pipewave.cli import build
from pipewave.cli.command import Option, read
from pipewave.errors import BadInput, UnknownField
from pipewave.files import packaged
from pipewave.planning import Question, Space
from tests.command_line import CliRunner

LOAD = {"input_len": 300, "output_len": 20, "concurrency": 2, "requests": 6}


@pytest.mark.parametrize(
    "named",
    [
        {"random_input_len": 300, "random_output_len": 20, "max_concurrency": 2, "num_prompts": 6},
        {"isl": 300, "osl": 20, "concurrency": 2, "request_count": 6, "tensor_parallel_size": 1},
        {"synthetic_input_tokens_mean": 300, "output_tokens_mean": 20, "concurrency": 2, "num_requests": 6},
    ],
)
def test_serve_takes_the_names_of_benchmarks(named: dict[str, Any]) -> None:
    assert pw.serve("Qwen3-0.6B", "H100", **named) == pw.serve("Qwen3-0.6B", "H100", **LOAD)


def test_a_rate_by_its_name_on_benchmarks() -> None:
    lengths = {"isl": 300, "osl": 20, "requests": 8}
    by = [pw.serve("Qwen3-0.6B", "H100", **lengths, **{name: 2.0}) for name in ("rate", "request_rate", "qps")]
    assert by[0] == by[1] == by[2]


@pytest.mark.parametrize(("one", "other"), [("rate", "request_rate"), ("isl", "prompt_len"), ("tp", "tp_size")])
def test_one_thing_by_two_names_is_refused(one: str, other: str) -> None:
    with pytest.raises(BadInput, match=f"{one} and {other} are one") as wrong:
        pw.serve("Qwen3-0.6B", "H100", **{one: 2, other: 2})
    assert wrong.value.field == other


def test_limits_of_a_rate_by_the_names_of_the_command_line() -> None:
    lengths = {"input_len": 300, "output_len": 20}
    own = pw.find_rate("Qwen3-0.6B", "H100", **lengths, ttft_ms="p99=500", tpot_ms=9)
    assert pw.find_rate("Qwen3-0.6B", "H100", **lengths, ttft="p99=500", tpot=9) == own and len(own.limits) == 2
    with pytest.raises(BadInput, match="ttft_ms"):
        pw.find_rate("Qwen3-0.6B", "H100", **lengths, ttft="fast")
    with pytest.raises(BadInput, match="ttft_ms and ttft are one"):
        pw.find_rate("Qwen3-0.6B", "H100", **lengths, ttft=500, ttft_ms=300)


def test_none_is_nothing_said() -> None:
    asked = {"batch": 2, "isl": 10, "osl": 2}
    assert pw.estimate("Qwen3-0.6B", "H100", **asked, input_len=None) == pw.estimate("Qwen3-0.6B", "H100", **asked)
    for name in ("batch", "input_len", "output_len"):  # and what has no default is refused by its name
        with pytest.raises(BadInput, match=name):
            pw.estimate("Qwen3-0.6B", "H100", **{"batch": 2, "input_len": 10, "output_len": 2, name: None})


def test_arguments_of_an_estimate_and_a_plan() -> None:
    own = pw.estimate("Qwen3-0.6B", "H100", batch=2, input_len=100, output_len=10, tp=1, kv_dtype="fp8")
    other = {"batch_size": 2, "prompt_len": 100, "osl": 10, "tensor_parallel_size": 1, "kv_cache_dtype": "fp8"}
    assert pw.estimate("Qwen3-0.6B", "H100", **other) == own and own.ttft_ms == own.prefill_ms
    with pytest.raises(BadInput, match="tps = 1: must be a list"):
        pw.plan("Qwen3-0.6B", "H100", isl=10, osl=2, tp=1)
    with pytest.raises(UnknownField, match="plan has no argument 'colour'"):
        pw.plan("Qwen3-0.6B", "H100", isl=10, osl=2, colour=1)


@pytest.mark.parametrize(
    "words",
    ["--num-requests 6", "--num_prompts=6", "--request-count 6", "--requests 6 --max_num_seqs 9 --max-batch-size 256"],
)
def test_options_by_other_names(words: str) -> None:
    asked = [
        "serve",
        "--model",
        "Qwen3-0.6B",
        "--gpu",
        "H100",
        "--concurrency",
        "2",
        "--random-input",
        "300",
        "--osl",
        "20",
    ]
    said = CliRunner().invoke(build(), [*asked, *words.split()])
    assert said.exit_code == 0 and "6 requests, 2 in flight, 300 + 20 tokens" in said.output


def test_an_option_that_nobody_has_is_still_refused() -> None:
    known = [Option("--requests").of("requests", int), Option("-n").of("n", int, 1)]
    with pytest.raises(UnknownField, match=r"no option --request_s; did you mean --requests\?"):
        read(["--request_s", "3"], known)
    with pytest.raises(UnknownField, match="no option --n"):
        read(["--n", "3"], known)
    assert read(["--num-prompts", "3"], known) == {"requests": 3, "n": 1}


def test_a_name_stands_in_one_row() -> None:
    rows = packaged.shared(OTHER_NAMES)["rows"]
    names = [name for row in rows for name in row]
    assert len(set(names)) == len(names)
    assert own_name("isl", {"input_len"}) == "input_len" and own_name("isl", {"isl", "input_len"}) == "isl"
    assert own_name("isl", Question.__dataclass_fields__) == "input_len"
    assert own_name("max_gpus", Space.__dataclass_fields__) == "gpus_most" and own_name("colour", {"rate"}) == "colour"
