"""The documented example of a user's kernel works through every face."""

from __future__ import annotations

import io
import json
import runpy
from pathlib import Path

import pipewave as pw
from pipewave.kernels import families
from pipewave.prediction.jsonl import answer_stream

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_kernel.py"


def test_the_example_is_short_and_registers_a_family() -> None:
    body = EXAMPLE.read_text().partition("\n\n\n@dataclass")[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 30
    namespace = runpy.run_path(str(EXAMPLE))
    assert "layer_norm" in families()
    answers = pw.predict([namespace["LayerNorm"](rows, 4096) for rows in (1, 512, 32768)], "H200")
    assert list(answers.latency_us) == sorted(answers.latency_us)
    assert answers[2].bound == "dram"
    out = io.StringIO()
    answer_stream(['{"id": 1, "kernel": "layer_norm", "rows": 512, "dim": 4096}'], out, gpu="H200")
    assert json.loads(out.getvalue())["latency_us"] == round(float(answers.latency_us[1]), 6)
