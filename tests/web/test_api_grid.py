"""A kernel over two fields at once: every cell is what `predict` says."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.web import limits
from tests.command_line import CliRunner

GEMM = {"kernel": "gemm", "case": {"k": 4096}, "gpu": "H200", "x": {"field": "m", "from": 1, "to": 4096, "points": 7},
        "y": {"field": "n", "from": 128, "to": 8192, "points": 5, "scale": "log"}}  # fmt: skip
LENGTHS = {"q_lens": [1, 1], "kv_lens": [512, 512], "heads": 8, "kv_heads": 8, "head_dim": 128}


def answer(client: Any, question: Any) -> Any:
    reply = client.post("/api/grid", question)
    assert reply.status == 200, reply.body[:500]
    return reply.json()


def test_cells_are_the_predictions_of_the_library(client: Any) -> None:
    found = answer(client, GEMM)
    for n, row, bounds in zip(found["y"], found["latency_us"], found["bound"], strict=True):
        direct = pw.predict([pw.gemm(m, n, 4096) for m in found["x"]], "H200")
        assert row == pytest.approx(direct.latency_us, rel=1e-4)
        assert bounds == direct.to_dict()["bound"]
    assert found["x"][-1] == 4096 and found["y"][0] == 128


def test_command_prints_the_same(client: Any) -> None:
    found = answer(client, GEMM)
    done = CliRunner().invoke(build(), shlex.split(found["command"])[1:])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["latency_us"] == found["latency_us"]


@pytest.mark.parametrize("fields", [("batch", "kv_lens"), ("kv_lens", "batch")])
def test_requests_and_their_length_can_be_swept_together(client: Any, fields: tuple[str, str]) -> None:
    last = {"batch": 16, "kv_lens": 4096}
    x, y = ({"field": name, "from": 1, "to": last[name], "points": 3} for name in fields)
    found = answer(client, {"kernel": "attention", "case": LENGTHS, "gpu": "H200", "x": x, "y": y})
    direct = pw.predict(pw.attention([1] * 16, [4096] * 16, 8, 8), "H200")
    assert found["latency_us"][-1][-1] == pytest.approx(direct.latency_us, rel=1e-4)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"y": {"field": "m", "from": 1, "to": 2}}, "must differ"),
        ({"y": {"field": "dtype", "from": 1, "to": 2}}, "integer field"),
        ({"x": {"field": "m", "from": 1, "to": 4096, "points": 2000}}, f"{limits.GRID_POINTS:,}"),
        ({"kernel": "gem"}, "did you mean gemm"),
        ({"gpu": "A100", "case": {"k": 4096, "dtype": "fp8"}}, "fp8"),
    ],
)
def test_what_cannot_be_asked_is_said(client: Any, more: dict[str, Any], says: str) -> None:
    big = {"y": {"field": "n", "from": 1, "to": 4096, "points": 2000}} if "x" in more else {}
    reply = client.post("/api/grid", GEMM | big | more)
    assert reply.status == 422 and says in reply.json()["error"]["message"], reply.body
