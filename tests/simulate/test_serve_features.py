"""The feature table of docs/serve.md: every engine with every feature, each doing what it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadInput
from pipewave.models import load
from pipewave.models.expert_parallel import Balance
from pipewave.models.lora_and_drafts import Lora
from pipewave.planning import Split
from pipewave.planning.launch import pools
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.simulate import estimate
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.shared_tokens import of_hashes
from pipewave.simulate.traffic import Traffic, synthetic
from pipewave.software.front import INSIDE, Host
from pipewave.software.front import of as front_of
from pipewave.step import find_engine
from tests.sampled import sampled
from tests.simulate.serving import serve

ENGINES = ("vllm", "sglang", "trtllm")
BASE = {"model": "Llama-3.1-8B", "gpu": "H200", "isl": 1024, "osl": 64, "concurrency": 8, "requests": 24}
MOE = BASE | {"model": "Qwen3-30B-A3B", "tp": 4, "ep": 4}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "studies" / "deployments.md"


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
    shared = replace(traffic, shared=of_hashes(blocks, traffic.input_len, traffic.output_len))
    server = Server.of("Llama-3.1-8B", "H200", Setup(engine=engine, front=INSIDE), traffic.longest)
    return bool(serve(server, shared).answer["ttft_mean_ms"] < 0.7 * serve(server, traffic).answer["ttft_mean_ms"])


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
    plain, adapted = (serve(Server.of("Llama-3.1-8B", "H200", setup, 512), traffic).answer for setup in setups)
    return bool(plain["tpot_mean_ms"] < adapted["tpot_mean_ms"])


def _offload(engine: str) -> bool:
    """A prefix that went to the host is found again."""
    rows = [family for _ in range(2) for family in range(12)]
    blocks = tuple(tuple(100 * family + b for b in range(16)) for family in rows)
    size = len(rows)
    lengths = np.full(size, 8200), np.full(size, 4)
    traffic = Traffic(np.arange(size) * 4.0, *lengths, shared=of_hashes(blocks, *lengths))
    server = Server.of("Llama-3.1-8B", "L40S", Setup(engine=engine, kv_offload_gib=64.0), traffic.longest)
    without = Server.of("Llama-3.1-8B", "L40S", Setup(engine=engine), traffic.longest)
    found, lost = (serve(one, traffic).answer["prefix_found_share"] for one in (server, without))
    return bool(found >= lost and found > 0.4)


def _wide(engine: str, **changes: Any) -> dict[str, float]:
    """A server of 128 experts over four ranks."""
    traffic = synthetic(128, input_len=1024, output_len=16, concurrency=64)
    server = Server.of("Qwen3-30B-A3B", "H200", Setup(engine=engine, dp=4, ep=4, **changes), traffic.longest)
    return dict(serve(server, traffic).answer)


def _exchange(engine: str) -> bool:
    """Tokens go to their experts' ranks alone, and come sooner where there are many."""
    found = [_wide(engine, exchange=word)["ttft_mean_ms"] for word in ("allgather", "deepep")]
    return len(set(found)) == 2


def _balanced(engine: str) -> bool:
    """Copies of busy experts win back most of what a law of loads takes."""
    even, skewed, mended = (_wide(engine, balance=one) for one in (None, Balance(), Balance(16)))
    times = [one["tpot_mean_ms"] for one in (even, mended, skewed)]
    return times == sorted(times) and mended["expert_skew_balanced"] < mended["expert_skew"]


def _two_batch(engine: str) -> bool:
    """Halves of long prompts hide each other's exchange; TensorRT-LLM has no such overlap, and says so."""
    if engine == "trtllm":
        with pytest.raises(BadInput, match="has none"):
            _wide(engine, exchange="deepep", two_batch=True)
        return True
    plain, cut = (_wide(engine, exchange="deepep_high_throughput", two_batch=both) for both in (False, True))
    return cut["ttft_mean_ms"] < plain["ttft_mean_ms"]


def _host(engine: str) -> bool:
    """A core a process, or turns."""
    chats = synthetic(200, input_len=16, output_len=4, concurrency=100)
    fronts = (Host(cores=cores).front(front_of(engine), gpus=1) for cores in (8, 1))
    rates = [
        serve(Server.of("Llama-3.2-1B", "H200", Setup(engine=engine, front=front), chats.longest), chats).answer[
            "requests_per_s"
        ]
        for front in fronts
    ]
    return bool(rates[0] > 1.5 * rates[1])


def _estimated_drafts(engine: str) -> bool:
    size: dict[str, Any] = {"batch": 4, "input_len": 512, "output_len": 64, "engine": engine}
    plain, drafted = (estimate("Llama-3.1-8B", "H200", **size, speculative=how) for how in (None, "eagle3"))
    return drafted.tpot_ms < plain.tpot_ms


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
    "all-to-all by name": _exchange,
    "EPLB": _balanced,
    "two-batch overlap": _two_batch,
    "host": _host,
    "static batch with drafts": _estimated_drafts,
}


@pytest.mark.parametrize(("feature", "engine"), sampled(product(FEATURES, ENGINES), 18))
def test_feature(feature: str, engine: str) -> None:
    assert FEATURES[feature](engine)


def test_the_page_lists_them() -> None:
    """One row a feature, one cell an engine, each with the name of its test."""
    text = PAGE.read_text("utf-8")
    for feature in FEATURES:
        row = next(line for line in text.splitlines() if line.startswith(f"| {feature} |"))
        assert [f"`[{engine}-{feature}]`" in row for engine in ENGINES] == [True] * 3
