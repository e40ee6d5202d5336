"""What an interactive session shows: a line or a few for each answer, never its arrays; and the public names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pipewave as pw
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from tests.simulate.serving import serve

MODEL, GPU = "Llama-3.1-8B", "H200"
TRACE = Path(__file__).parents[1] / "docs" / "fixtures" / "step.json.gz"


def server() -> Server:
    return Server.of(MODEL, GPU, Setup(), 128)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: pw.load_model(MODEL), [MODEL, "32 layers"]),
        (
            lambda: pw.plan(MODEL, [GPU], isl=256, osl=32, tps=(1,), batches=(8,)),
            [MODEL, "designs", "1 × H200", "TPOT"],
        ),
        (
            lambda: pw.plan(MODEL, [GPU], isl=256, osl=32, tps=(1,), batches=(8,), tpot_ms=1e-3),
            ["none keeps the limits"],
        ),
        (lambda: pw.trace(TRACE), [TRACE.name, GPU, "ms of kernels"]),
        (lambda: pw.step_time(MODEL, GPU), [MODEL, GPU, "vllm"]),
        (server, [MODEL, GPU]),
        (lambda: serve(server(), synthetic(requests=2, input_len=64, output_len=2)), ["2 requests", MODEL]),
    ],
)
def test_an_answer_is_one_line(make: Any, told: list[str]) -> None:
    shown = repr(make())
    assert "\n" not in shown
    assert len(shown) < 250
    assert all(word in shown for word in told)


def test_many_predictions_show_the_first_of_them() -> None:
    many = pw.predict({"kernel": "gemm", "m": list(range(1, 31)), "n": 4096, "k": 4096}, GPU)
    lines = repr(many).split("\n")
    assert lines[0] == "Predictions of 30 calls:"
    assert lines[1].strip() == str(many[0])
    assert lines[-1].strip() == "... 22 more"
    assert repr(pw.predict([pw.gemm(1, 2, 3)], GPU)).startswith("Predictions of 1 call:\n")


def test_one_prediction_prints_as_a_sentence_and_evaluates_to_itself() -> None:
    answer = pw.predict(pw.gemm(4096, 4096, 4096), GPU)
    assert str(answer).startswith(f"{answer.latency_us:.4g} µs ({answer.low_us:.4g} to {answer.high_us:.4g}), bound by")
    assert eval(repr(answer), {"Prediction": pw.Prediction}) == answer


def test_an_estimate_prints_its_times() -> None:
    found = pw.estimate(MODEL, GPU, batch=1, input_len=64, output_len=4)
    assert str(found).startswith(f"{MODEL} on 1 × {GPU}, vllm: first tokens {found.prefill_ms:,.4g} ms (")


def test_completion_offers_every_public_name() -> None:
    assert set(pw.__all__) <= set(dir(pw))
