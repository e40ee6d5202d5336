"""Rows of vLLM's HTTP client: figures of a level from its requests, and the cases made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.vllm_http import level, model_folder
from bench.vllm_http_score import case, levels

FOUND = {
    "start_times": [5.0, 4.0],
    "input_lens": [8, 16],
    "output_lens": [3, 2],
    "ttfts": [0.1, 0.2],
    "itls": [[0.01, 0.03], [0.04]],
    "completed": 2,
    "duration": 1.5,
    "request_throughput": 4 / 3,
    "output_throughput": 10 / 3,
}


def test_a_level_is_the_mean_of_its_requests() -> None:
    row = level(FOUND, (12, 2), concurrency=2, rate=float("inf"))
    assert row["requests"] == [[0.0, 16, 2, 200.0, 40.0, 40.0], [1.0, 8, 3, 100.0, 20.0, 30.0]]
    assert row["ttft_ms"] == pytest.approx(150.0) and row["tpot_ms"] == pytest.approx(30.0)
    assert row["rate"] is None and row["itl_ms"]["p50"] == pytest.approx(30.0)


def test_a_folder_has_a_word_for_every_token() -> None:
    folder = model_folder({"vocab_size": 7})
    assert json.loads((folder / "config.json").read_text()) == {"vocab_size": 7}
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(words.values()) == list(range(7))


def test_committed_levels_are_whole_and_become_cases() -> None:
    found = levels(Path(__file__).parents[2] / "data" / "measured" / "h100" / "http")
    assert {(row["model"], row["concurrency"]) for row in found} >= {("Llama-3.1-8B", 128), ("Qwen3-30B-A3B", None)}
    for row in found:
        assert len(row["requests"]) == row["completed"]
        made = sum(request[2] for request in row["requests"])
        assert row["output_tokens_per_s"] == pytest.approx(made / row["duration_s"], rel=1e-6)
        assert case(row, "a", replayed=True)["arrivals"][0] == [0.0, row["isl"], row["osl"]]
