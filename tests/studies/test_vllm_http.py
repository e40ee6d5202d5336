"""Rows of vLLM's HTTP client: figures of a level from its requests, and the cases made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.vllm_http import level, model_folder
from studies.vllm_http_score import Scored, case, levels, model_of, stood_still, summary

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
    found = levels()
    servers = {(row["gpu"], row["model"], row.get("quantization")) for row in found}
    models = [("Llama-3.1-8B", None), ("Llama-3.1-8B", "fp8"), ("Qwen3-30B-A3B", None)]
    models += [("DeepSeek-V2-Lite", None), ("gpt-oss-20b", None)]
    assert servers == {(gpu, *model) for gpu in ("H100", "H200") for model in models}
    for server in servers:
        own = [row for row in found if (row["gpu"], row["model"], row.get("quantization")) == server]
        assert [row["concurrency"] for row in own] == [1, 8, 32, 128, None]
    for row in found:
        assert len(row["requests"]) == row["completed"]
        made = sum(request[2] for request in row["requests"])
        assert row["output_tokens_per_s"] == pytest.approx(made / row["duration_s"], rel=1e-6)
        assert case(row, "a", replayed=True)["arrivals"][0] == [0.0, row["isl"], row["osl"]]


def test_quantised_weights_are_asked_as_such() -> None:
    config = json.loads((Path(model_of("Llama-3.1-8B", "fp8")) / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "fp8"
    assert model_of("Llama-3.1-8B", None) == "Llama-3.1-8B"


def _row(firsts: list[float], longest: float) -> dict[str, object]:
    return {"requests": [[0.0, 8, 4, first, 10.0, longest] for first in firsts], "gpu": "H100", "model": "m"}


def test_a_level_stood_still_when_a_token_or_a_first_one_was_late() -> None:
    assert not stood_still(_row([100.0, 300.0, 700.0], 200.0))
    assert stood_still(_row([100.0, 300.0, 900.0], 200.0)) and stood_still(_row([100.0, 300.0], 700.0))


def test_the_summary_counts_each_server_alike() -> None:
    def one(model: str, measured: float) -> Scored:
        row = {"gpu": "H100", "model": model, "concurrency": 1}
        row |= {"ttft_ms": measured, "tpot_ms": measured, "output_tokens_per_s": measured}
        sides = {f"{name}_{side}": v for name in ("ttft_ms", "tpot_ms") for side, v in (("low", 90.0), ("high", 120.0))}
        return Scored(row, "loop", {"ttft_ms": 110.0, "tpot_ms": 110.0, "output_tokens_per_s": 110.0} | sides)

    found = [one("a", 100.0), one("a", 100.0), one("a", 100.0), one("b", 220.0)]
    assert summary(found, "all") == "| all | 2 | 4 | 30.0 | 30.0 | 30.0 | 75 | 75 |"
