"""Adapters and offloaded caches: bytes by hand, and what they change in a served run."""

from __future__ import annotations

import numpy as np
import pytest

from pipewave.errors import BadInput, DoesNotFit
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.lora_and_drafts import Lora, adapter_bytes, lora_of
from pipewave.models.shard import Parallel
from pipewave.simulate.kv_budget import PCIE_SHARE
from pipewave.simulate.prefix_cache import PrefixCache
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.shared_tokens import of_hashes
from pipewave.simulate.traffic import Traffic, synthetic
from pipewave.step.memory import cache_bytes
from tests.simulate.serving import serve

MODEL = load("Llama-3.1-8B")


def test_an_adapter_is_its_thin_maps() -> None:
    """Rank 16 on Llama-3.1-8B: q, k, v fused, o, gate and up fused, down, in 32 layers, two bytes each."""
    maps = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))
    by_hand = 32 * 2 * 16 * sum(inp + out for inp, out in maps)
    assert adapter_bytes(MODEL, Parallel(), Lora(16)) == by_hand
    assert adapter_bytes(MODEL, Parallel(), Lora(16, 4)) == 4 * by_hand


def test_adapters_add_two_kernels_a_map() -> None:
    plain, adapted = (Deployment(MODEL, lora=lora).kernels(Batch.of([1] * 8, [64] * 8)) for lora in (None, Lora(16, 4)))
    added = [use for use in adapted if use.name.startswith("lora_")]
    assert sum(use.count for use in added) == 2 * 4 * 32
    assert [use for use in adapted if not use.name.startswith("lora_")] == plain
    one, four = (
        sum(use.call.weight_bytes * use.count for use in Deployment(MODEL, lora=Lora(16, n)).kernels(Batch.of([1] * 8, [64] * 8))  # type: ignore[attr-defined]
            if use.name.startswith("lora_"))
        for n in (1, 4)
    )  # fmt: skip
    assert four == 4 * one == 4 * adapter_bytes(MODEL, Parallel(), Lora(16))


def test_adapters_cost_time_and_cache() -> None:
    traffic = synthetic(24, input_len=256, output_len=32, concurrency=8)
    plain, few, many = (
        serve(Server.of(MODEL, "H200", Setup(lora=lora), traffic.longest), traffic).answer
        for lora in (None, Lora(16, 2), Lora(64, 8))
    )
    assert plain["tpot_mean_ms"] < few["tpot_mean_ms"] < many["tpot_mean_ms"]
    assert plain["kv_tokens"] > few["kv_tokens"] > many["kv_tokens"]
    with pytest.raises(DoesNotFit, match="adapters"):
        Server.of(MODEL, "H200", Setup(lora=Lora(4096, 400)), 1024)
    assert lora_of("rank=16,adapters=4") == Lora(16, 4)
    for wrong in ("16", "rank=0", "rank=x", "size=3"):
        with pytest.raises(BadInput):
            lora_of(wrong)


def test_idle_blocks_go_to_the_host_and_come_back() -> None:
    lengths = np.array([32, 32, 48])
    cache = PrefixCache(of_hashes([[1, 2], [3, 4], [1, 2, 5]], lengths, np.ones(3, int), 16), 16, host_pages=3)
    for request in (0, 1):
        cache.admit(request, cache.match(request, 32, 2, 100))
        cache.passed(request, 0, 32, 32)
        assert cache.leave(request, 2, 32) == 2
    cache.trim(1)
    assert cache.host_used == 3  # the longest idle first; one page of the second prompt stays in the GPU
    match = cache.match(2, 48, 3, 1)
    assert (match.tokens, match.on_gpu) == (32, 0)
    cache.admit(2, match)
    assert cache.loaded() == 32
    assert cache.loaded() == 0
    assert cache.host_used == 1


def test_an_offloaded_prefix_costs_its_copy_and_saves_its_prompt() -> None:
    """Twelve families of 8,192 tokens that a small cache cannot all keep, each asked in turn, three times."""
    rows = [family for _ in range(3) for family in range(12)]
    blocks = tuple(tuple(100 * family + b for b in range(16)) for family in rows)
    count = len(rows)
    lengths = np.full(count, 8200), np.full(count, 8)
    traffic = Traffic(np.arange(count) * 4.0, *lengths, shared=of_hashes(blocks, *lengths))
    setup = {"gpu_memory_utilization": 0.2}
    plain, host = (
        Server.of(MODEL, "H200", Setup(**setup, kv_offload_gib=gib), traffic.longest)
        for gib in (0.0, 64.0)  # type: ignore[arg-type]
    )
    assert plain.memory.kv_tokens < 12 * 8192
    cold, warm = (serve(server, traffic).answer for server in (plain, host))
    assert cold["prefix_found_share"] < 0.1
    assert warm["prefix_found_share"] > 0.6
    copy_s = 8192 * cache_bytes(host.runner.deployment, 4096) / 4096 / (1e9 * PCIE_SHARE * find("H200").pcie_gbps)
    assert copy_s < warm["ttft_p50_ms"] / 1e3 < 0.6 * cold["ttft_p50_ms"] / 1e3
    with pytest.raises(BadInput):
        Server.of(MODEL, "H200", Setup(kv_offload_gib=-1), 1024)
