"""Notes without which an answer would be taken for another one stand above those that `--verbose` shows."""

from __future__ import annotations

import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.view import document_of, terminal
from pipewave.view import plan as view
from tests.command_line import CliRunner


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--speculative method=mtp,tokens=1", "counts no MTP heads"),  # which the engine would refuse to start with
        ("--isl 200000", "is made for"),
    ],
)
def test_what_no_engine_would_do_is_said_in_short(words: str, said: str) -> None:
    line = f"serve --model Llama-3.1-8B --gpu H200 --concurrency 1 --requests 4 --osl 3 {words}"
    assert said in CliRunner().invoke(build(), line.split()).output


def test_drafts_of_heads_that_are_not_there_are_said_of_an_estimate() -> None:
    asked = {"batch": 2, "input_len": 100, "output_len": 20}
    found = pw.estimate("Llama-3.1-8B", "H200", **asked, speculative="method=mtp,tokens=1").to_dict()
    assert "counts no MTP heads" in terminal.write(document_of(found), verbose=False)


def test_changes_that_round_to_nothing_have_no_sign_of_less() -> None:
    answer = {
        "winner": None, "shortest": None, "does_not_fit": [], "prices": [], "without_price": [], "notes": [],
        "left_out": [{"option": option, "rate_change_percent": percent} for option, percent in
                     (("--a", -0.4), ("--b", 0.3), ("--c", -0.6))],
    }  # fmt: skip
    blocks = " ".join(str(block) for block in view._blocks(answer))
    assert "--a (+0 % of the rate), --b (+0 % of the rate), --c (-1 % of the rate)" in blocks
