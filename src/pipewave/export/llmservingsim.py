"""Profiles of a model as LLMServingSim (2.x) reads them: what its profiler would have measured, as predicted.

    <folder>/<GPU>/<model>/<variant>/meta.yaml, and in tp<N>/ beside it
    dense.csv          layer, tokens, time_us                 each kernel of a layer but attention
    per_sequence.csv   layer, sequences, time_us              what runs once a request: lm_head, sampler
    attention.csv      prefill_chunk, kv_prefill, n_decode, kv_decode, time_us
    moe.csv            tokens, activated_experts, time_us     routed experts, where a model has them

Columns, names of layers and folders are those of the profiles that it publishes. Decodes of unequal caches it takes for
equal ones of their mean, and adds a share of what the longest would add. That share is fitted to rows which only a GPU
gives; here it is the mean of the published fits. `lab/llmservingsim_run.py` has its own reader take a profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import yaml

from pipewave.calls.families import Elementwise, FusedMoe
from pipewave.export.tables import Row, check_equal_layers, csv_table, names_of, served_us
from pipewave.files.whole import write
from pipewave.gpus import GPU
from pipewave.kernels.streaming.metadata import ARGMAX_KERNEL, as_run
from pipewave.models import ModelSpec
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.version import VERSION

DENSE = names_of("llmservingsim_dense")
PER_SEQUENCE = names_of("llmservingsim_per_sequence")
TOKENS = (1, 2, 4, 8, *range(16, 257, 16), *range(320, 1025, 64), *range(1152, 2049, 128))
SEQUENCES = (1, 2, 4, 8, *range(16, 257, 16))
CHUNKS, CACHES = (0, *(16 << i for i in range(8))), (0, *(16 << i for i in range(11)))
DECODES = (0, *(1 << i for i in range(9)))
EXPERT_TOKENS = tuple(1 << i for i in range(12))
BLOCK = 16
UNEQUAL = 0.063  # mean of `alpha_default` of its six published profiles (RTX PRO 6000, three models, tp 1 and 2)


def export(model: ModelSpec, gpu: GPU, folder: Path, *, tps: Sequence[int] = (1,)) -> tuple[Path, ...]:
    """Write the profile of a model on a GPU, for each degree. BadInput for layers that differ, CannotShard."""
    check_equal_layers(model, "LLMServingSim")
    step = Deployment(model).kernels(Batch.of([1], [1]))
    variant = next(str(getattr(use.call, "dtype", "bf16")) for use in step if use.name == "qkv_proj")
    root = folder / gpu.name.replace(" ", "") / model.name / variant
    files = []
    for tp in tps:
        Parallel(tp).check(model)
        deployment = Deployment(model, Parallel(tp), None, BLOCK)
        tables = {"dense": dense(deployment, gpu), "per_sequence": per_sequence(deployment, gpu),
                  "attention": attention(deployment, gpu), "moe": experts(deployment, gpu)}  # fmt: skip
        rows = {name: list(table) for name, table in tables.items()}
        files += [csv_table(root / f"tp{tp}" / f"{name}.csv", rows) for name, rows in rows.items() if rows]
    return (*files, _meta(root / "meta.yaml", model, gpu, tps))


def _meta(path: Path, model: ModelSpec, gpu: GPU, tps: Sequence[int]) -> Path:
    about = {
        "profiler_version": f"pipewave {VERSION}, predicted", "gpu": gpu.name, "hardware": gpu.name.replace(" ", ""),
        "model": model.name, "variant": path.parent.name, "tp_degrees": list(tps),
        "engine_effective": {"max_num_batched_tokens": TOKENS[-1], "max_num_seqs": SEQUENCES[-1], "block_size": BLOCK},
        "attention_grid": {"max_kv": CACHES[-1], "chunk_factor": 2.0, "kv_factor": 2.0},
        "skew_profile": {"enabled": False},
        "skew_fit": {"enabled": True, "per_tp": {tp: {"method": "published", "alpha_default": UNEQUAL} for tp in tps}},
    }  # fmt: skip
    write(path, yaml.safe_dump(about, sort_keys=False).encode())
    return path


def dense(deployment: Deployment, gpu: GPU) -> Iterator[Row]:
    """Every kernel of a layer but attention and experts, and what runs once a step over all tokens."""
    steps = [{use.name: use.call for use in deployment.kernels(Batch.of([n], [n]))} for n in TOKENS]
    whole = [{use.name: use.call for use in deployment.kernels(Batch.of([1] * n, [1] * n))} for n in TOKENS]
    for layer, ours in DENSE.items():
        found = [step.get(ours) for step in (whole if layer == "final_layernorm" else steps)]
        calls = [call for call in found if call is not None]
        if calls:
            us = served_us(calls, gpu)
            yield from ({"layer": layer, "tokens": n, "time_us": t} for n, t in zip(TOKENS, us, strict=True))


def per_sequence(deployment: Deployment, gpu: GPU) -> Iterator[Row]:
    """What runs once a request."""
    steps = [{use.name: use.call for use in deployment.kernels(Batch.of([1] * n, [1] * n))} for n in SEQUENCES]
    for layer, ours in PER_SEQUENCE.items():
        calls = [step[ours] for step in steps]
        # Sampling as its profiler runs it: the greatest of each row.
        calls = [as_run(call, ARGMAX_KERNEL) if isinstance(call, Elementwise) else call for call in calls]
        us = served_us(calls, gpu)
        yield from ({"layer": layer, "sequences": n, "time_us": t} for n, t in zip(SEQUENCES, us, strict=True))


def attention(deployment: Deployment, gpu: GPU) -> Iterator[Row]:
    """A chunk of one prompt over cached tokens beside decodes of equal caches; either may be none."""
    prompts = [(chunk, cached) for chunk, cached in product(CHUNKS, CACHES) if chunk or not cached]
    decodes = [(n, cached) for n, cached in product(DECODES, CACHES) if (n == 0) == (cached == 0)]
    asked = [(*one, *other) for one, other in product(prompts, decodes) if one[0] or other[0]]
    batch = Batch.of([1], [2])
    call = next(use.call for use in deployment.kernels(batch) if use.name == "attention")
    calls = [replace(call, q_lens=(*[c] * (c > 0), *[1] * n), kv_lens=(*[c + k] * (c > 0), *[kd + 1] * n))  # type: ignore[call-arg]
             for c, k, n, kd in asked]  # fmt: skip
    us = served_us(calls, gpu)
    for (chunk, cached, n, held), t in zip(asked, us, strict=True):
        yield {"prefill_chunk": chunk, "kv_prefill": cached, "n_decode": n, "kv_decode": held, "time_us": t}


def experts(deployment: Deployment, gpu: GPU) -> Iterator[Row]:
    """Routed experts of one rank with so many of them active, which share the tokens evenly."""
    uses = deployment.kernels(Batch.of([1], [1]))
    call = next((use.call for use in uses if isinstance(use.call, FusedMoe)), None)
    if call is None:
        return
    counts = [call.topk << doubled for doubled in range(call.experts.bit_length())]  # of active experts
    asked = [(n, active) for n in EXPERT_TOKENS for active in counts if active <= min(call.experts, n * call.topk)]
    calls = [replace(call, tokens=t, routing=_shared(call, t, active)) for t, active in asked]
    us = served_us(calls, gpu)
    for (tokens, active), took in zip(asked, us, strict=True):
        yield {"tokens": tokens, "activated_experts": active, "time_us": took}


def _shared(call: FusedMoe, tokens: int, active: int) -> tuple[int, ...]:
    """Tokens of each expert when `active` of them share all evenly."""
    each, more = divmod(tokens * call.topk, active)
    return tuple(each + (at < more) if at < active else 0 for at in range(call.experts))
