"""Requests longer than a model is made for: answered, and every command says so."""

from __future__ import annotations

import pytest

from pipewave.models import load
from pipewave.planning import Question, Space, plan
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.simulate import estimate
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from tests.simulate.serving import serve

MODEL, GPU, OUTPUT = "Llama-3.1-8B", "H200", 8
LONGEST = load(MODEL).max_length or 0


def estimated(prompt: int) -> tuple[str, ...]:
    return estimate(MODEL, GPU, batch=1, input_len=prompt, output_len=OUTPUT).notes


def served(prompt: int) -> list[str]:
    server = Server.of(MODEL, GPU, Setup(), prompt + OUTPUT)
    return list(
        serve(server, synthetic(requests=2, input_len=prompt, output_len=OUTPUT, concurrency=1)).answer["notes"]
    )


def answered(prompt: int) -> list[str]:
    case = {"model": MODEL, "gpu": GPU, "isl": prompt, "osl": OUTPUT, "concurrency": 1, "requests": 2}
    return list(answer(from_dict(case))["notes"])


def planned(prompt: int) -> list[str]:
    space = Space((GPU,), tps=(1,), engines=("vllm",), disaggregated=False, batches=(1,), budgets=(8192,))
    return plan(load(MODEL), Question(prompt, OUTPUT, spread=0.0), space).notes()


@pytest.mark.parametrize("notes", [estimated, served, answered, pytest.param(planned, marks=pytest.mark.slow)])
def test_what_is_too_long_for_the_model_is_told(notes) -> None:  # type: ignore[no-untyped-def]
    assert not any("exceed" in note for note in notes(LONGEST - OUTPUT))
    told = [note for note in notes(LONGEST - OUTPUT + 1) if "exceed" in note]
    assert told == [f"requests of {LONGEST + 1:,} tokens exceed the {LONGEST:,} that {MODEL} is made for"]
