"""The feature table of docs/serve.md: every engine with every feature, each doing what it is for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipewave.models import load
from pipewave.models.adapters import Lora
from pipewave.planning import Split
from pipewave.planning.launch import pools
from pipewave.serving import estimate
from pipewave.serving.answers import answer
from pipewave.serving.cases import from_dict
from pipewave.serving.run import Server, Setup
from pipewave.serving.traffic import Traffic, synthetic
from pipewave.step import find_engine

ENGINES = ("vllm", "sglang", "trtllm")
BASE = {"model": "Llama-3.1-8B", "gpu": "H200", "isl": 1024, "osl": 64, "concurrency": 8, "requests": 24}
MOE = BASE | {"model": "Qwen3-30B-A3B", "tp": 4, "ep": 4}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "serve.md"


def _ask(engine: str, **changes: Any) -> dict[str, Any]:
    return answer(from_dict(BASE | {"engine": engine} | changes))


def _drafts(engine: str) -> bool:
    plain = _ask(engine)["tpot_ms"]
    return all(_ask(engine, speculative=how)["tpot_ms"] < plain for how in ("mtp", "eagle3"))


def _draft_model(engine: str) -> bool:
    how = {"method": "draft", "model": "Llama-3.2-1B", "tokens": 3}
    large = BASE | {"engine": engine, "model": "Llama-3.1-70B", "tp": 4}
    return bool(answer(from_dict(large | {"speculative": how}))["tpot_ms"] < answer(from_dict(large))["tpot_ms"])


def _ngram(engine: str) -> bool:
    rates = (0.0, 0.5)
    worse, better = (
        _ask(engine, speculative={"method": "ngram", "tokens": 3, "acceptance": a})["tpot_ms"] for a in rates
    )
    return bool(better < worse)


def _prefix(engine: str) -> bool:
    return bool(_ask(engine, prefix_share=0.8)["ttft_ms"] < _ask(engine)["ttft_ms"])


def _hashes(engine: str) -> bool:
    traffic = synthetic(20, input_len=2048, output_len=16, concurrency=2)
    blocks = tuple((1, 2, 3, 100 + i) for i in range(20))
    shared = type(traffic)(traffic.arrival_s, traffic.input_len, traffic.output_len, 2, blocks=blocks)
    server = Server.of("Llama-3.1-8B", "H200", Setup(engine=engine), traffic.longest)
    return bool(server.run(shared).answer["ttft_mean_ms"] < 0.7 * server.run(traffic).answer["ttft_mean_ms"])


def _data_parallel(engine: str) -> bool:
    wide = answer(from_dict(MOE | {"engine": engine, "tp": 1, "dp": 4}))
    return bool(wide["kv_tokens"] > 0 and wide["tpot_ms"] > 0)


def _wide_experts(engine: str) -> bool:
    """Over two hosts: 16 ranks of DeepSeek-V3."""
    case = BASE | {"engine": engine, "model": "DeepSeek-V3", "dp": 16, "ep": 16, "concurrency": 32, "requests": 64}
    return bool(answer(from_dict(case))["tpot_ms"] > 0)


def _apart(engine: str) -> bool:
    """Later tokens are not held up by prompts: the slowest in a hundred comes sooner."""
    both = {"concurrency": 24, "requests": 96}
    apart = _ask(engine, prefill={"workers": 2}, decode={"workers": 1}, **both)
    return bool(apart["tpot_p99_ms"] < _ask(engine, **both)["tpot_p99_ms"])


def _queue(engine: str) -> bool:
    found = estimate("Llama-3.1-8B", "L40S", batch=200, input_len=2048, output_len=64, engine=engine)
    return any("wait their turn" in note for note in found.notes)


def _lora(engine: str) -> bool:
    traffic = synthetic(16, input_len=256, output_len=16, concurrency=4)
    setups = (Setup(engine=engine, lora=lora) for lora in (None, Lora(16, 4)))
    plain, adapted = (Server.of("Llama-3.1-8B", "H200", setup, 512).run(traffic).answer for setup in setups)
    return bool(plain["tpot_mean_ms"] < adapted["tpot_mean_ms"])


def _offload(engine: str) -> bool:
    """A prefix that went to the host is found again."""
    rows = [family for _ in range(2) for family in range(12)]
    blocks = tuple(tuple(100 * family + b for b in range(16)) for family in rows)
    size = len(rows)
    traffic = Traffic(np.arange(size) * 4.0, np.full(size, 8200), np.full(size, 4), blocks=blocks)
    server = Server.of("Llama-3.1-8B", "L40S", Setup(engine=engine, kv_offload_gib=64.0), traffic.longest)
    without = Server.of("Llama-3.1-8B", "L40S", Setup(engine=engine), traffic.longest)
    found, lost = (one.run(traffic).answer["prefix_found_share"] for one in (server, without))
    return bool(found >= lost and found > 0.4)


def _commands(engine: str) -> bool:
    split = Split(
        "H200",
        ep=8,
        engine=engine,
        dp=8,
        speculative="mtp,tokens=1",
        prefill=Split("H200", tp=8, ep=8, engine=engine),
        workers=(2, 1),
    )
    found = pools("DeepSeek-V3", split, 64, 4096, length=4096, engine=find_engine(engine))
    return [pool.engines for pool in found] == [2, 1] and load("DeepSeek-V3").is_moe


FEATURES: dict[str, Callable[[str], bool]] = {
    "MTP, EAGLE-3": _drafts,
    "n-gram drafts": _ngram,
    "draft model": _draft_model,
    "prefix share": _prefix,
    "prefix cache by hashes": _hashes,
    "attention DP": _data_parallel,
    "DP × EP over hosts": _wide_experts,
    "disaggregation": _apart,
    "batches that queue": _queue,
    "LoRA": _lora,
    "KV offload": _offload,
    "launch commands": _commands,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("feature", FEATURES)
def test_feature(feature: str, engine: str) -> None:
    assert FEATURES[feature](engine)


def test_the_page_lists_them() -> None:
    """One row a feature, one cell an engine, each with the name of its test."""
    text = PAGE.read_text("utf-8")
    for feature in FEATURES:
        row = next(line for line in text.splitlines() if line.startswith(f"| {feature} |"))
        assert [f"`[{engine}-{feature}]`" in row for engine in ENGINES] == [True] * 3
