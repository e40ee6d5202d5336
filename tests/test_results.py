"""Answers of the Python API show themselves: in a notebook, as a DataFrame, as a drawing; they read like their JSON."""

from __future__ import annotations

import json
import sys

import pytest

import pipewave as pw
from pipewave.errors import MissingExtra
from pipewave.published.find_rate import FoundRate
from pipewave.results import Shown
from tests.test_face import TRACE

CASE = {"input_len": 128, "output_len": 8, "concurrency": 2, "requests": 6}
MODEL, GPU = "Llama-3.1-8B", "H200"


@pytest.fixture(scope="module")
def answers() -> dict[str, Shown]:
    curve = ({"rate": 1.0, "tpot_mean_ms": 5.0, "ttft_mean_ms": 9.0}, {"rate": 2.0, "tpot_mean_ms": 7.0})
    rate = FoundRate("m", "g", 1, "vllm", (), 1.5, 1.2, 1.8, 2.5, "capacity", curve, "1.5", "none", ("<b>",))
    return {
        "serve": pw.serve(MODEL, GPU, **CASE),
        "estimate": pw.estimate(MODEL, GPU, batch=2, input_len=128, output_len=8),
        "trace": pw.trace(TRACE),
        "rate": rate,
    }


@pytest.mark.parametrize("name", ["serve", "estimate", "trace", "rate"])
def test_answers_show_themselves(name: str, answers: dict[str, Shown]) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    answer, rows = answers[name], {"trace": "calls", "rate": "curve"}.get(name)
    html = answer._repr_html_()
    assert html.startswith("<table>") and html.count("<table>") == html.count("</table>") == (2 if rows else 1)
    assert "<b>" not in html
    frame = answer.to_pandas()
    assert len(frame) == (len(answer.to_dict()[rows]) if rows else 1)
    axes = answer.plot()
    assert axes.lines if rows else len(axes.patches) >= 3
    matplotlib.pyplot.close("all")


def test_an_answer_of_serve_reads_like_its_json(answers: dict[str, Shown]) -> None:
    served = pw.serve(MODEL, GPU, **CASE)
    assert served.ttft_ms == served["ttft_ms"] == dict(served)["ttft_ms"]
    assert json.loads(json.dumps(dict(served))) == served.to_dict()
    assert served == answers["serve"]
    assert served.ttft_ms_low is not None and served.ttft_ms_low < served.ttft_ms
    assert pw.serve(MODEL, GPU, **CASE | {"output_len": 1}).tpot_ms is None
    with pytest.raises(KeyError):
        served["nothing"]


@pytest.mark.parametrize(("package", "method"), [("pandas", "to_pandas"), ("matplotlib", "plot")])
def test_what_is_not_installed_is_named(
    package: str, method: str, answers: dict[str, Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=f"pip install {package}"):
        getattr(answers["estimate"], method)()
