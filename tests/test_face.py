"""The package's own face: every public name resolves, and the command line spells its output one way."""

from __future__ import annotations

import dataclasses
import inspect
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.cli.command import Group, first_line, read
from tests.command_line import as_a_process

TRACE = Path(__file__).parents[1] / "data/measured/h200/traces/trace-Llama-3.1-8B-tp1-4layers-eager-decode.json.gz"


@pytest.mark.parametrize("name", pw.__all__)
def test_every_public_name_says_what_it_takes_gives_and_raises(name: str) -> None:
    """Every parameter or attribute by its name; units are in names, and where a name has none, in the text."""
    public = getattr(pw, name)
    told = inspect.getdoc(public) or ""
    if dataclasses.is_dataclass(public):
        parts = {"Attributes": [field.name for field in dataclasses.fields(public)]}
    elif inspect.isclass(public):
        parts = {"Args": list(inspect.signature(public).parameters), "Attributes": ["code"]}
    else:
        starred = {inspect.Parameter.VAR_KEYWORD: "**"}
        taken = inspect.signature(public).parameters.values()
        parts = {"Args": [starred.get(each.kind, "") + each.name for each in taken], "Returns": [], "Raises": []}
    for part, names in parts.items():
        section = re.search(rf"^{part}:\n((?:    .*\n?|\n)+)", told, re.MULTILINE)
        assert section is not None, f"{name} lacks the section {part}:"
        assert [each for each in names if not re.search(rf"^    {re.escape(each)}: \S", section[1], re.MULTILINE)] == []


METHODS = [
    pytest.param(method, id=method.__qualname__)
    for public in [getattr(pw, name) for name in pw.__all__]
    if inspect.isclass(public)
    for method in vars(public).values()
    if inspect.isfunction(method) and not method.__name__.startswith("_")
]


@pytest.mark.parametrize("method", METHODS)
def test_every_public_method_says_what_it_takes_and_gives(method: Any) -> None:
    told = inspect.getdoc(method) or ""
    taken = [name for name in inspect.signature(method).parameters if name != "self"]
    assert "Returns:\n" in told
    assert [name for name in taken if not re.search(rf"^    \**{name}: \S", told, re.MULTILINE)] == []


@pytest.mark.parametrize("command", sorted(build().lines()))
def test_every_command_says_what_it_does_and_what_its_options_take(command: str) -> None:
    """Commands of a group too; the kernels of `predict` take the fields of calls, which the contract describes."""
    found = [build().command(command)]
    while found:
        one = found.pop()
        assert one.help, f"{one.name}: no description"
        silent = [each.name for each in one.params if not (each.help or each.hidden)]
        assert silent == [], f"{one.name}: options without help"
        found += [one.command(name) for name in one.lines()] if isinstance(one, Group) and command != "predict" else []


def test_rooms_never_hide_functions_of_the_face() -> None:
    import pipewave.planning
    import pipewave.prediction.api
    import pipewave.simulate.server
    import pipewave.traces  # noqa: F401

    for name in ("predict", "serve", "plan", "trace", "estimate"):
        assert callable(getattr(pw, name))


def test_estimate_serve_and_plan_answer_from_the_top() -> None:
    estimated = pw.estimate("Llama-3.1-8B", "H200", batch=4, input_len=512, output_len=32)
    served = pw.serve("Llama-3.1-8B", "H200", mode="estimate", isl=512, osl=32, concurrency=4)
    assert served["tpot_ms"] == pytest.approx(estimated.tpot_ms, rel=0.15)
    planned = pw.plan("Llama-3.1-8B", "H200", isl=512, osl=32, tps=(1,), engines=("vllm",))
    assert planned.winner is not None
    with pytest.raises(pw.PipewaveError, match="concurency"):
        pw.serve("Llama-3.1-8B", "H200", isl=512, osl=32, concurency=4)


def test_a_trace_is_explained_from_the_top() -> None:
    assert pw.trace(TRACE).to_dict()["gpu"] == "H200"


@pytest.mark.parametrize(
    "words", [["gpus", "--json"], ["gpus", "--format", "json"], ["predict", "gemm", "8", "512", "512", "--json"]]
)
def test_json_is_asked_for_in_one_way(words: list[str]) -> None:
    assert json.loads(as_a_process(*words).stdout)


def test_commands_that_only_know_json_take_the_format_too() -> None:
    params = {name: build().command(name).params for name in ("plan", "trace")}
    needed = ["--model", "x", "--gpus", "H200", "--isl", "1", "--osl", "1"]
    for words in (["--format", "json"], ["--format=json"], ["--json"]):
        assert read([*needed, *words], params["plan"])["as_json"] is True
    assert read(["a.json", "--json"], params["trace"])["format"] == "json"


def test_the_list_of_commands_says_of_each_what_it_says_of_itself() -> None:
    assert {name: first_line(build().command(name).help) for name in build().lines()} == build().lines()


def test_the_version_is_told() -> None:
    done = subprocess.run([sys.executable, "-m", "pipewave", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"pipewave {pw.__version__}"


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda bad: pw.plan("Qwen3-0.6B", bad, input_len=9, output_len=9), "gpus"),
        (lambda bad: pw.plan("Qwen3-0.6B", "H200", quantize=bad, input_len=9, output_len=9), "quantize"),
        (lambda bad: pw.plan("Qwen3-0.6B", "H200", ignore=bad, input_len=9, output_len=9), "ignore"),
        (lambda bad: pw.plan("Qwen3-0.6B", "H200", prices=bad, input_len=9, output_len=9), "prices"),
        (lambda bad: pw.plan("Qwen3-0.6B", "H200", arrivals=bad, input_len=9, output_len=9), "arrivals"),
        (lambda bad: pw.cost("H200", gpus=1, power_w=300, output_tokens_per_s=9, owned=bad), "owned"),
        (
            lambda bad: pw.estimate("Qwen3-0.6B", "H200", batch=1, input_len=9, output_len=9, power_limit_w=bad),
            "power_limit_w",
        ),
        (lambda bad: pw.trace(bad), "file"),
        (lambda bad: pw.tell(bad), "files"),
        (lambda bad: pw.tell(["a.json"], also=bad), "also"),
    ],
)
@pytest.mark.parametrize("bad", [7.5, object(), float("nan")], ids=["number", "object", "nan"])
def test_an_argument_of_a_wrong_type_is_named(ask: Any, field: str, bad: Any) -> None:
    with pytest.raises(pw.PipewaveError) as found:
        ask(bad)
    assert found.value.field == field and field in str(found.value)


def test_telling_takes_one_path_or_several_and_not_none(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([{"isl": 500, "osl": 40, "concurrency": 8, "tpot_ms": 6.0}]))
    said = {"model": "Qwen3-0.6B", "gpu": "H100", "engine": "vllm:0.12.0"}
    assert pw.tell(file, **said).runs == pw.tell(str(file), **said).runs == pw.tell([file], **said).runs
    with pytest.raises(pw.PipewaveError, match="name a result"):
        pw.tell([], **said)


ASKED: dict[str, dict[str, Any]] = {
    "estimate": {"model": "Qwen3-0.6B", "gpu": "H200", "batch": 2, "input_len": 100, "output_len": 4},
    "serve": {"model": "Qwen3-0.6B", "gpu": "H200", "input_len": 100, "output_len": 4, "rate": 2, "requests": 20},
    "find_rate": {"model": "Qwen3-0.6B", "gpu": "H200", "input_len": 100, "output_len": 4, "tpot_ms": 30},
    "step_time": {"model": "Qwen3-0.6B", "gpu": "H200"},
    "cost": {"gpu": "H200", "gpus": 1, "power_w": 300, "output_tokens_per_s": 1000},
    "plan": {"model": "Qwen3-0.6B", "gpus": ["H200"], "input_len": 100, "output_len": 4, "rate": 1, "tps": (1,)},
    "predict": {"calls": pw.gemm(10, 64, 64), "gpu": "H200"},
    "find": {}, "load_model": {}, "trace": {}, "tell": {}, "gemm": {"m": 4, "n": 64, "k": 64},
}  # fmt: skip
CASE = ("concurrency", "isl", "tp", "engine", "version", "told", "quantize", "power_limits", "prefix_share", "kv_dtype")
WRONG = (object(), b"x", ("a",), [None], {}, float("nan"), 2**70, "")


def _probes() -> list[tuple[str, str, Any]]:
    parts = {name: inspect.signature(getattr(pw, name)).parameters.values() for name in ASKED}
    names = {name: [one for each in those for one in (CASE if each.kind == each.VAR_KEYWORD else (each.name,))]
             for name, those in parts.items()}  # fmt: skip
    return [(name, one, bad) for name, those in names.items() for one in those for bad in WRONG]


def test_wrong_types_through_the_python_door_raise_typed_errors() -> None:
    """Eighty of a thousand: any answer will do, and any error of pipewave; Python's own, of a name alone."""
    for name, argument, bad in random.Random(11).sample(_probes(), 80):
        try:
            getattr(pw, name)(**ASKED[name] | {argument: bad})
        except pw.PipewaveError as error:
            assert str(error)
        except TypeError as error:
            assert "unexpected keyword" in str(error) or "missing" in str(error), (name, argument, bad)


@pytest.mark.parametrize("bad", [None, 7, "x", object(), [None], ["a"], float("nan")], ids=list("abcdefg"))
def test_lengths_and_types_that_are_none_are_named(bad: Any) -> None:
    step, gpu = pw.step_time("Qwen3-0.6B", "H200"), pw.find("H200")
    for ask in (lambda: step(bad, [9]), lambda: step([1], bad), lambda: gpu.supports(bad), lambda: gpu.peak_flops(bad)):
        with pytest.raises(pw.PipewaveError):
            ask()


def test_a_step_takes_arrays() -> None:
    step = pw.step_time("Qwen3-0.6B", "H200")
    assert step(np.ones(4, int), np.full(4, 512)) == step([1] * 4, [512] * 4)
