"""Images in `serve`: the tower runs once a prompt, at its own cost, and drafts do not repeat it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pipewave.errors import BadInput
from pipewave.models import load
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of
from pipewave.simulate.traffic import Traffic
from pipewave.software.front import INSIDE
from tests.simulate.serving import serve

CORPUS = Path(os.environ.get("PIPEWAVE_DATA", "/absent")) / "models" / "Qwen--Qwen3-VL-8B-Instruct"
needs_corpus = pytest.mark.skipif(not CORPUS.exists(), reason="needs the corpus of configs")
APART = Traffic(2.0 * np.arange(8), np.full(8, 2048), np.full(8, 8))  # one prompt at a time


def _answer(images: int, **more: object) -> dict[str, float]:
    setup = Setup(images=images, front=INSIDE, **more)  # type: ignore[arg-type]
    return dict(serve(Server.of(load(CORPUS), "H200", setup, APART.longest), APART).answer)


@needs_corpus
@pytest.mark.parametrize("speculative", [None, of("ngram")])
def test_each_prompt_takes_its_tower_longer_and_no_later_token_does(speculative: object) -> None:
    none, two = (_answer(images, speculative=speculative) for images in (0, 2))
    server = Server.of(load(CORPUS), "H200", Setup(), APART.longest)
    tower_ms = float(server.runner.price([server.runner.deployment.images(2)]).us[0]) * 1e-3
    assert two["ttft_mean_ms"] - none["ttft_mean_ms"] == pytest.approx(tower_ms, rel=1e-3)
    assert two["tpot_mean_ms"] == pytest.approx(none["tpot_mean_ms"], rel=1e-6)


@needs_corpus
def test_chunks_of_a_prompt_encode_once() -> None:
    """A prompt in four pieces pays as much for its images as one in a piece."""
    extra = []
    for budget in (512, 8192):
        none, one = (_answer(images, max_num_batched_tokens=budget) for images in (0, 1))
        extra.append(one["ttft_mean_ms"] - none["ttft_mean_ms"])
    assert extra[0] == pytest.approx(extra[1], rel=1e-3)


def test_a_model_without_a_tower_is_refused() -> None:
    with pytest.raises(BadInput):
        Server.of("Llama-3.1-8B", "H200", Setup(images=1), 1024)
