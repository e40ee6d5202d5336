"""Disaggregated cases whose pools nothing gives: answered as public launches ran them."""

from __future__ import annotations

from typing import Any

from pipewave.serving.answers import answer
from pipewave.serving.cases import from_dict

CASE = {
    "model": "DeepSeek-R1",
    "gpu": "H100",
    "engine": "trtllm",
    "version": "0.8.1.post3",
    "tp": 16,
    "isl": 922,
    "osl": 100,
    "concurrency": 60,
    "requests": 120,
}
POOL = {"workers": 1, "tp": 16, "ep": 16}


def _answer(**more: Any) -> dict[str, Any]:
    return answer(from_dict(CASE | more))


def test_a_launch_is_named_in_the_notes() -> None:
    notes = _answer()["notes"]
    assert any("as launched in public for DeepSeek-R1 on H100" in note for note in notes)
    assert any("3 engines of tp 16" in note for note in notes)


def test_requests_wait_for_room_to_decode_before_their_first_token() -> None:
    """Three engines of one request each, and six requests in flight: each waits about as long as it decodes."""
    crowded = _answer(concurrency=6, requests=60, osl=200)
    decoding_ms = 199 * crowded["tpot_ms"]
    assert 0.7 * decoding_ms < crowded["ttft_ms"] < 1.3 * decoding_ms


def test_pools_that_are_given_are_taken_at_their_word() -> None:
    given = _answer(prefill=POOL, decode=POOL)
    assert not any("as launched in public" in note for note in given["notes"])
    assert given["tpot_ms"] > _answer()["tpot_ms"]  # one engine decodes what three shared


def test_a_dense_model_has_pools_that_match_its_rate() -> None:
    case = CASE | {"model": "Llama-3.1-8B", "tp": 1, "gpu": "H100", "disaggregated": True, "version": "1.2.0"}
    assert any("match the rate" in note for note in answer(from_dict(case))["notes"])
