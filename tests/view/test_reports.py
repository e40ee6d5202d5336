"""Reports say what the answers say, hold together as files, and let nothing of the input through as markup."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.cli import build
from pipewave.errors import BadFile, BadInput
from pipewave.view import report
from pipewave.view.svg import Axis
from pipewave.web.kernel import KernelQuery, kernel_answer
from pipewave.web.planning import PlanQuery, plan_answer
from pipewave.web.serving import ServeQuery, serve_answer
from tests.command_line import CliRunner

TRACE = Path(__file__).parents[2] / "data/measured/h200/traces/trace-Llama-3.1-8B-tp1-4layers-eager-decode.json.gz"
EVIL = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
VOID = {"meta", "line", "rect", "circle", "path"}


def serve() -> dict[str, Any]:
    return serve_answer(ServeQuery(model="Llama-3.1-8B", gpu="H200", batch=4, input_len=256, output_len=32))


@cache
def plan() -> dict[str, Any]:
    query = PlanQuery(model="Llama-3.1-8B", gpus=["H100", "L4"], input_len=256, output_len=32, tp=[1, 2], max_num_seqs=[1, 32, 64],
                  max_num_batched_tokens=[2048])  # fmt: skip
    return plan_answer(query)


def kernel() -> dict[str, Any]:
    sweep = {"field": "m", "from": 1, "to": 512, "points": 30}
    return kernel_answer(
        KernelQuery.model_validate(
            {"kernel": "gemm", "case": {"n": 512, "k": 512}, "sweep": sweep, "gpus": ["H200", "L40S"]}
        )
    )


def trace() -> dict[str, Any]:
    done = CliRunner().invoke(build(), ["trace", str(TRACE), "--gpu", "H200", "--format", "json"])
    return json.loads(done.stdout)


ANSWERS = {"serve": serve, "plan": plan, "kernel": kernel, "trace": trace}


@pytest.fixture(scope="module", params=ANSWERS)
def answer(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ANSWERS[request.param]()


class Checker(HTMLParser):
    """Counts elements, and fails where tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_pages_are_well_formed_and_load_nothing(answer: dict[str, Any]) -> None:
    page = report(answer)
    found = Checker(page)
    assert {"svg", "table", "h1"} <= set(found.seen)
    assert not {"script", "img", "link", "iframe", "object", "a", "form"} & set(found.seen)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "href", "style")]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src 'none'" in page and "prefers-color-scheme:dark" in page and "@media print" in page


def test_no_number_is_nan(answer: dict[str, Any]) -> None:
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r"<style>.*?</style>", "", report(answer), flags=re.S))


def _poisoned(value: Any) -> Any:
    """The same answer with markup in every text."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, dict):
        return {name: _poisoned(item) for name, item in value.items()}
    return [_poisoned(item) for item in value] if isinstance(value, list) else value


def test_markup_in_an_answer_stays_text(answer: dict[str, Any]) -> None:
    page = report(_poisoned(answer))
    found = Checker(page)
    assert not {"script", "img"} & set(found.seen)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    text = report(_poisoned(answer), "md")
    outside = re.sub(r"```.*?```", "", text, flags=re.S)
    assert "<script" not in outside.replace("\\<", "")


def test_estimates_numbers_are_in_both_forms() -> None:
    answer = serve()
    for form in ("html", "md"):
        text = report(answer, form)
        assert f"{answer['tpot_ms']:.4g} ms" in text
        assert f"{answer['memory_gib']['weights']:.4g}" in text
        assert answer["command"].split(" --model")[0] in text


def test_plan_report_holds_the_front_and_the_launch_command() -> None:
    answer = plan()
    page = report(answer)
    assert page.count("<circle") == len(answer["all"]) + len(answer["front"])
    assert answer["launch"] in page
    assert all(f"{row['tpot_ms']:.4g}" in page for row in answer["front"])


def test_a_plan_report_marks_designs_whose_interval_straddles_a_limit() -> None:
    answer = plan()
    first, *others = answer["rows"]
    doubted = report(answer | {"rows": [first | {"sure": "perhaps"}, *others]})
    assert "straddles its limit" in doubted and "perhaps" in doubted
    certain = report(answer | {"rows": [row | {"sure": "yes"} for row in answer["rows"]]})
    assert "straddles" not in certain and "perhaps" not in certain


def test_a_plan_without_a_winner_is_a_report_too() -> None:
    query = PlanQuery(model="Llama-3.1-8B", gpus=["L4"], input_len=256, output_len=32, tpot_ms=0.001, tp=[1], max_num_seqs=[1],
                  max_num_batched_tokens=[2048])  # fmt: skip
    assert "No design meets the limits" in report(plan_answer(query))


def test_trace_report_ranks_calls() -> None:
    answer = trace()
    page = report(answer)
    assert f"{answer['calls'][0]['name']} ×{answer['calls'][0]['count']}" in page
    assert page.index(answer["calls"][0]["name"]) < page.index(answer["calls"][-1]["name"])


@given(st.dictionaries(st.sampled_from(["tpot_ms_low", "meet_the_limits", "recoverable_us", "series", "calls", "front", "x"]),
                       st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2) | st.just({}), max_size=5))  # fmt: skip
def test_what_is_no_answer_is_a_typed_error(junk: dict[str, Any]) -> None:
    with pytest.raises(BadFile):
        report(junk)


@pytest.mark.parametrize("lost", ["breakdown", "basis", "prefill_ms"])
def test_a_part_that_is_missing_is_named(lost: str) -> None:
    with pytest.raises(BadFile, match=lost):
        report({name: value for name, value in serve().items() if name != lost})


def test_unknown_form() -> None:
    with pytest.raises(BadInput, match="html, md"):
        report({}, "pdf")


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=8), st.booleans())
def test_axes_hold_their_values_and_have_ticks_inside(values: list[float], log: bool) -> None:
    axis = Axis.over(values, 0.0, 100.0, log=log)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)
    assert all(axis.low <= tick <= axis.high * 1.000001 for tick in axis.ticks())


def _run(*words: str) -> Any:
    return CliRunner().invoke(build(), ["report", *words])


def test_command_runs_the_other_commands(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    queries = ["--model", "Llama-3.1-8B", "--gpu", "H200", "--batch", "4", "--input-len", "256", "--output-len", "32"]
    done = _run("estimate", *queries, "--out", str(out))
    assert done.exit_code == 0, done.output
    page = out.read_text("utf-8")
    assert "Llama-3.1-8B on 1 × H200" in page and "pipewave estimate --model Llama-3.1-8B" in page
    assert _run("trace", str(TRACE), "--gpu", "H200", "--format", "md").stdout.startswith("# trace")
    small = ["--gpus", "H100", "--isl", "128", "--osl", "16", "--tp", "1", "--max-num-seqs", "1,8"]
    assert "## Designs" in _run("plan", "--model", "Llama-3.1-8B", *small, "--format", "md").stdout


def test_command_reads_a_saved_answer(tmp_path: Path) -> None:
    saved, out = tmp_path / "answer.json", tmp_path / "report.md"
    saved.write_text(json.dumps(serve()))
    assert _run(str(saved), "--out", str(out)).exit_code == 0
    assert out.read_text("utf-8").startswith("# Llama\\-3.1\\-8B") or out.read_text("utf-8").startswith(
        "# Llama-3.1-8B"
    )


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (("estimat",), BadInput, "estimate, plan, trace or a file"),
        (("none.json",), BadFile, "cannot be read"),
        (("estimate", "--model", "Llama-3.1-8B", "--gpu", "H2000", "--batch", "1", "--input-len", "1", "--output-len", "1"),
         BadInput, "unknown GPU"),
        (("none.json", "--format", "pdf"), BadInput, "html, md"),
    ],
)  # fmt: skip
def test_command_errors_are_typed(words: tuple[str, ...], kind: type[Exception], says: str) -> None:
    error = _run(*words).exception
    assert isinstance(error, kind) and says in str(error)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": 1}'])
def test_files_that_are_no_answer(tmp_path: Path, text: str) -> None:
    path = tmp_path / "answer.json"
    path.write_text(text)
    assert isinstance(_run(str(path)).exception, BadFile)
