"""No command writes over what it reads, through whatever link or spelling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipewave.cli import build
from pipewave.errors import BadInput
from tests.command_line import CliRunner

CASE = {"id": 1, "kernel": "gemm", "m": 64, "n": 64, "k": 64}
ROW = {"prompt_tokens": 8, "output_tokens": 2, "arrival_s": 0.5}
TRACES = Path(__file__).parents[2] / "data" / "measured" / "h100" / "traces"
SERVE = "serve --model Llama-3.1-8B --gpu H200"


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("predict --cases IN --out OUT", json.dumps(CASE)),
        ("serve --cases IN --out OUT", json.dumps(CASE)),
        ("measure --plan IN --store OUT --device fake --quiet", json.dumps(CASE)),
        ("calibrate --store IN --gpu H200 --out OUT", json.dumps(CASE)),
        ("workload --model Llama-3.1-8B --requests IN --out OUT", json.dumps(ROW)),
        (f"{SERVE} --trace IN --trace-out OUT", json.dumps(ROW)),
        ("trace IN --out OUT", None),
        ("trace IN IN --out OUT", None),
        ("report trace IN --out OUT", None),
        ("report IN --out OUT", "answer"),
    ],
)
def test_equal_input_and_output_are_refused(command: str, content: str | None, link: bool, tmp_path: Path) -> None:
    file, out = tmp_path / "in.json", tmp_path / "out.json"
    if content is None:
        file.write_bytes((TRACES / "trace-hf-llama-2layers-prefill.json.gz").read_bytes())
    elif content == "answer":
        words = ["predict", "gemm", "64", "64", "64", "--format", "json"]
        file.write_text(CliRunner().invoke(build(), words).stdout)
    else:
        file.write_text(content + "\n")
    before = file.read_bytes()
    if link:
        out.symlink_to(file)
    words = command.replace("IN", str(file)).replace("OUT", str(out if link else tmp_path / "." / "in.json")).split()
    found = CliRunner().invoke(build(), words)
    assert isinstance(found.exception, BadInput), found
    assert "is the input" in found.exception.message
    assert file.read_bytes() == before
