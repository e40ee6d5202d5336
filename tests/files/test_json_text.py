"""No NaN and no infinity ever leaves as JSON: the answer is an error instead, and its neighbours stay."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import numpy as np
import pytest

from pipewave.errors import NotFinite
from pipewave.files.json_text import dumps
from pipewave.prediction import jsonl
from pipewave.published import stream


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_the_field_is_named(number: float) -> None:
    with pytest.raises(NotFinite, match=r"rows\[1\]\.us is not a finite number"):
        dumps({"rows": [{"us": 1.0}, {"us": number}]})


def test_a_case_without_a_finite_latency_is_an_error_of_its_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = jsonl.answer

    def spoilt(*given: Any) -> Any:
        found = answer(*given)
        numbers = found.numbers.copy()
        numbers[0, 1] = np.nan
        return found._replace(numbers=numbers)

    monkeypatch.setattr(jsonl, "answer", spoilt)
    out = StringIO()
    lines = [json.dumps({"id": i, "kernel": "gemm", "m": 8, "n": 64, "k": 64, "gpu": "H200"}) for i in range(3)]
    counts = jsonl.answer_stream(lines, out)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one.get("error", {}).get("code") for one in found] == [None, "not_finite", None]
    assert (counts.answered, counts.failed) == (2, 1)


def test_a_deployment_without_a_finite_time_is_an_error_of_its_line_alone() -> None:
    times = iter((1.0, float("nan"), 2.0))
    out = StringIO()
    case = {"model": "Llama-3.1-8B", "gpu": "H200", "isl": 8, "osl": 8, "concurrency": 1}
    lines = [json.dumps({"id": i, **case}) for i in range(3)]
    counts = stream.answer_stream(lines, out, ask=lambda case: {"ttft_ms": next(times)})
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one.get("error", {}).get("code") for one in found] == [None, "not_finite", None]
    assert (counts.answered, counts.failed) == (2, 1)
