"""The loads that `tell --next` proposes: the best ones by closed form, whatever they will find."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipewave.cli import build
from pipewave.told.posterior import CAUSES, LATENTS, PLACES, Points, Posterior, left_open, shipped
from pipewave.told.tell import PROPOSED, next_loads, tell
from tests.command_line import CliRunner

RUN = {"model": "Llama-3.1-8B", "gpu": "H200", "engine": "vllm", "isl": 512, "osl": 64, "concurrency": 8,
       "requests": 16, "ttft_ms": 60.0, "tpot_ms": 6.0}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("told") / "runs.json"
    path.write_text(json.dumps([RUN]))
    return path


def drawn(seed: int, run: int = 0) -> Points:
    rng = np.random.default_rng(seed)
    rows = [(rng.normal(size=len(CAUSES)), rng.normal(size=len(LATENTS)), rng.normal(5, 2, len(PLACES)), run, "a", "m")
            for _ in range(3)]  # fmt: skip
    return Points.of(rows)


def test_what_is_left_open_is_the_posteriors_variance_where_all_is_sound() -> None:
    told, asked = Points.joined([drawn(0), drawn(1)]), drawn(2)
    assert told.run.tolist() == [0, 0, 0, 1, 1, 1]
    posterior = Posterior(shipped(), told, np.zeros(6))
    posterior.weights = np.array([1.0, *[0.0] * (len(posterior.weights) - 1)])
    assert left_open(shipped(), told, asked) == pytest.approx(posterior.at(asked)[1])


def test_three_loads_are_proposed_and_each_narrows(file: Path) -> None:
    rows = next_loads(tell([file]))
    assert len(rows) == PROPOSED
    left = [row["then ± %"] for row in rows]
    assert left == sorted(left, reverse=True) and left[-1] < left[0]
    loads = [(row["isl"], row["osl"], row["concurrency"]) for row in rows]
    assert len(set(loads)) == PROPOSED and loads[0] != (512, 64, 8)


def test_the_command_says_them(file: Path) -> None:
    done = CliRunner().invoke(build(), ["tell", str(file), "--next", "--json"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.output)["next"]) == PROPOSED
