"""Lengths of recorded conversations: the shipped counts, what is drawn from them, and clients' words for them."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from pipewave.cli import build
from pipewave.errors import BadInput
from pipewave.published.client_command import read
from pipewave.simulate.traffic import LENGTHS_FILE as FILE
from pipewave.simulate.traffic import datasets as names
from pipewave.simulate.traffic import drawn_from as drawn
from pipewave.simulate.traffic import synthetic
from tests.command_line import CliRunner

CORPUS = Path(os.environ.get("PIPEWAVE_DATA", "/absent")) / "serving" / "rows.csv"


def test_what_is_drawn_has_the_means_and_the_limits_of_the_rows() -> None:
    traffic = drawn("sharegpt", 50_000)
    prompt, output = traffic.input_len, traffic.output_len
    means = json.loads(FILE.read_text("utf-8"))["sharegpt"]["mean_tokens"]
    assert [prompt.mean(), output.mean()] == pytest.approx(means, rel=0.03)
    assert min(prompt.min(), output.min()) >= 4 and prompt.max() <= 1024 and output.max() <= 2048
    assert np.corrcoef(np.log(prompt), np.log(output))[0, 1] < -0.2  # short questions get long answers


@pytest.mark.skipif(not CORPUS.exists(), reason="needs the corpus")
def test_published_runs_count_as_many_tokens() -> None:
    """Servers that others measured with this dataset saw 214 to 233 and 194 to 221 tokens, by tokeniser; longer ones were of
    chat templates."""
    rows = [row for row in csv.DictReader(CORPUS.open(encoding="utf-8")) if row["mode"] == "sharegpt"]
    published = [np.median([float(row[name]) for row in rows if float(row["isl"]) < 300]) for name in ("isl", "osl")]
    traffic = drawn("sharegpt", 50_000)
    assert [traffic.input_len.mean(), traffic.output_len.mean()] == pytest.approx(published, rel=0.06)


def test_seeded_and_paced() -> None:
    first, again, other = (drawn("sharegpt", 100, seed=seed, rate=10.0) for seed in (1, 1, 2))
    assert (first.input_len == again.input_len).all() and (first.input_len != other.input_len).any()
    assert 5 < first.arrival_s[-1] < 20 and drawn("sharegpt", 10, concurrency=4).concurrency == 4


def test_clients_name_it() -> None:
    command = "vllm bench serve --dataset-name sharegpt --num-prompts 300 --max-concurrency 64"
    asked = read(command)
    assert len(asked.traffic) == 300 and len(set(asked.traffic.input_len.tolist())) > 100 and not asked.notes
    assert set(read(command + " --sharegpt-output-len 99").traffic.output_len.tolist()) == {99}


def test_lengths_beside_a_dataset_are_refused() -> None:
    words = "serve --model Qwen3-0.6B --gpu H100 --dataset sharegpt --requests 5 --rate 2 --osl 9"
    wrong = CliRunner().invoke(build(), words.split()).exception
    assert isinstance(wrong, BadInput) and wrong.field == "osl" and "--dataset" in str(wrong)


def test_unknown_names_are_refused() -> None:
    assert tuple(names()) == ("sharegpt",)
    with pytest.raises(BadInput, match="did you mean sharegpt"):
        drawn("share-gpt", 10)


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 8.0])
def test_requests_come_at_the_rate_asked_for_whatever_is_drawn(burstiness: float) -> None:
    for seed in range(3):
        sent = synthetic(300, input_len=8, output_len=8, rate=5.0, burstiness=burstiness, seed=seed).arrival_s
        assert sent[0] == 0.0 and sent[-1] == pytest.approx(299 / 5.0)
    assert np.diff(sent).std() * 5.0 == pytest.approx(burstiness**-0.5, rel=0.25)
