"""LLMServingSim's reader on our profile: `python lab/llmservingsim_run.py CHECKOUT` (2.x, pandas beside pipewave).

CHECKOUT is its repository, of which `serving/core/trace_generator.py` and `profiler/models/llama.yaml` are used: the
half that turns a profile into a trace of timed layers. Its C++ network simulator, which replays traces, is not needed.
Each batch's layers are added up and compared with the same kernels, asked for directly. Where a batch lies on the grid
of the profile both are the same; elsewhere its interpolation shows.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipewave.calls.families import Elementwise
from pipewave.export import llmservingsim as profile
from pipewave.export.tables import served_us
from pipewave.gpus import find
from pipewave.kernels.streaming.metadata import ARGMAX_KERNEL, as_run
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment

MODEL, GPU = "Llama-3.1-8B", "H200"
CONFIG = Path(__file__).resolve().parents[1] / "src" / "pipewave" / "data" / "models" / f"{MODEL}.json"
KERNELS = {**profile.DENSE, **profile.PER_SEQUENCE, "attention": "attention"}
SAME, NEAR = 0.005, 0.1
# name: (new tokens of each prompt, cached tokens of each prompt, cached tokens of each decode), how near
BATCHES: dict[str, tuple[list[int], list[int], list[int], float]] = {
    "64 decodes at 1,024": ([], [], [1024] * 64, SAME),
    "a prompt of 512": ([512], [0], [], SAME),
    "a chunk of 256 over 1,024 beside 16 decodes": ([256], [1024], [2048] * 16, NEAR),
    "48 decodes at 1,500": ([], [], [1500] * 48, NEAR),
    "a prompt of 700": ([700], [0], [], NEAR),
    "32 decodes from 200 to 4,000": ([], [], list(range(200, 4000, 119)), NEAR),
}


def theirs(tracer: Any, folder: Path, new: list[int], cached: list[int], decodes: list[int]) -> dict[str, float]:
    """ms that each layer has in the trace that LLMServingSim writes for a batch."""
    batch = SimpleNamespace(
        batch_id=0, requests=[SimpleNamespace(id=i) for i in range(len(new) + len(decodes))], num_prefill=len(new),
        num_decode=len(decodes), total_len=sum(new) + len(decodes), prefill_q_list=new, prefill_k_list=cached,
        decode_k_list=decodes,
    )  # fmt: skip
    config, trace = json.loads(CONFIG.read_text()), folder / "trace.txt"
    tracer._synthesize_trace(
        hardware=GPU, model=MODEL, config=config, tp_size=1, pp_size=1, local_ep=1, ep_total=1, pd_type=None, node_id=0,
        instance_id=0, batch=batch, max_len=2048, output_path=str(trace), placement={}, block_mode_on=False, gate=None,
        enable_attn_offloading=False, power_model=None, pim_model=None, fp=2, variant="bf16",
    )  # fmt: skip
    found: dict[str, float] = {}
    for line in trace.read_text().splitlines():
        layer, took = line.split()[:2]
        found[layer] = found.get(layer, 0.0) + int(took) / 1e6
    return found


def ours(new: list[int], cached: list[int], decodes: list[int]) -> float:
    """ms of the same kernels."""
    q = [*new, *[1] * len(decodes)]
    kv = [*(n + k for n, k in zip(new, cached, strict=True)), *(k + 1 for k in decodes)]
    uses = Deployment(load(MODEL), page_size=profile.BLOCK).kernels(Batch.of(q, kv))
    wanted = [use for use in uses if use.name in {*KERNELS.values(), "ffn_norm"}]
    calls = [as_run(use.call, ARGMAX_KERNEL) if use.name == "sample" and isinstance(use.call, Elementwise) else use.call
             for use in wanted]  # fmt: skip
    return sum(use.count * took for use, took in zip(wanted, served_us(calls, find(GPU)), strict=True)) / 1e3


def main() -> int:
    """Print both times of each batch; 1 where they are further apart than they may be."""
    sys.path.insert(0, str(Path(sys.argv[1]).resolve()))
    tracer, failed = importlib.import_module("serving.core.trace_generator"), False
    with tempfile.TemporaryDirectory() as root:
        profile.export(load(MODEL), find(GPU), Path(root) / "profiler" / "perf")
        (Path(root) / "astra-sim").mkdir()
        os.chdir(Path(root) / "astra-sim")  # it reads ../profiler
        for name, (new, cached, decodes, most) in BATCHES.items():
            layers, mine = theirs(tracer, Path(root), new, cached, decodes), ours(new, cached, decodes)
            apart = sum(layers.values()) / mine - 1
            failed |= abs(apart) > most or layers.keys() != KERNELS.keys() - {"qk_norm"}
            print(f"{name}: LLMServingSim {sum(layers.values()):.3f} ms, pipewave {mine:.3f} ms, {apart:+.1%}")
        os.chdir("/")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
