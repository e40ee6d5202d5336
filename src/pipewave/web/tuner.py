"""Which Triton configuration the tuner would choose along a sweep, where a table of the GPU exists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

from pipewave.calls.families import Attention, Call, FusedMoe, Gemm
from pipewave.errors import BadFile
from pipewave.gpus import find
from pipewave.tune import load_table
from pipewave.tune.tables import runs as merged

Shape = dict[str, int]
GEMMS = {"bf16": "gemm", "fp16": "gemm", "fp8": "gemm_fp8"}
HEAD_DIMS = (64, 128)


@lru_cache(maxsize=64)
def table(kernel: str, gpu: str) -> Any:
    """A table ready to choose from, or None where the GPU has none."""
    try:
        return load_table(kernel, gpu=gpu)
    except BadFile:
        return None


def runs(calls: Sequence[Call], x: Sequence[int], gpu: str) -> Iterator[dict[str, Any]]:
    """For each tuned kernel of the calls: ranges of x with one configuration, and its waves at both ends."""
    name = find(gpu).name
    for kernel in _kernels(calls):
        found = table(kernel, name)
        shapes = {value: _shape(kernel, call) for value, call in zip(x, calls, strict=True)}
        if found is not None and all(shapes.values()):
            chosen = merged(partial(_chosen, found, shapes), list(x))
            stretches = [{"from": first, "to": last, "config": dict(config),
                          "waves": [round(_waves(found, shapes[value], config), 4) for value in (first, last)]}
                         for first, last, config in chosen]  # fmt: skip
            yield {"gpu": name, "kernel": kernel, "runs": stretches}


def _chosen(table: Any, shapes: dict[int, Shape], value: int) -> Any:
    return table.select(**shapes[value])


def _kernels(calls: Sequence[Call]) -> list[str]:
    """Names of the tuned kernels that run every one of the calls."""
    first = calls[0]
    if isinstance(first, Gemm):
        return [GEMMS[first.dtype]] if first.dtype in GEMMS else []
    if isinstance(first, FusedMoe):
        return {"all": ["moe_w13", "moe_w2"]}.get(first.part, [f"moe_{first.part}"]) if first.dtype == "bf16" else []
    return _attention(first, calls) if isinstance(first, Attention) else []


def _attention(first: Attention, calls: Sequence[Call]) -> list[str]:
    plain = first.dtype in ("bf16", "fp16") and first.kv_dtype in (None, first.dtype) and not first.window
    if not plain or any(getattr(call, "head_dim", 0) not in HEAD_DIMS for call in calls):
        return []
    decoding = {max(call.q_lens) == 1 for call in calls if isinstance(call, Attention)}
    dims = {call.head_dim for call in calls if isinstance(call, Attention)}
    if len(decoding) > 1 or len(dims) > 1:
        return []
    prompt = f"prefill_{'causal' if first.causal else 'full'}"
    return [f"{'decode' if decoding == {True} else prompt}_{first.head_dim}"]


def _shape(kernel: str, call: Call) -> Shape:
    """The tuned kernel's fields of a call; lists of lengths as their mean. Empty where they make no such launch."""
    if isinstance(call, Gemm):
        return {"m": call.m, "n": call.n, "k": call.k}
    if isinstance(call, FusedMoe):
        return {"m": call.tokens, "e": max(call.experts // call.ep, 1), "top_k": call.topk, "hidden": call.hidden,
                "inter": max(call.inter // call.tp, 1)}  # fmt: skip
    if not isinstance(call, Attention):
        return {}
    size = len(call.q_lens)
    q_len, kv_len = round(sum(call.q_lens) / size), round(sum(call.kv_lens) / size)
    shape = {"batch": size, "kv_len": kv_len, "heads": call.heads, "kv_heads": call.kv_heads}
    if kernel.startswith("decode"):
        return shape
    return shape | {"q_len": q_len} if kv_len >= q_len else {}


def _waves(found: Any, shape: Shape, config: Any) -> float:
    """Thread blocks of a launch over the places its residency gives."""
    chooser, key = found.key(shape)
    index = found.configs.index(config)
    return float(chooser.blocks(key, index)) / float(chooser.model.peaks.sms * chooser.model.resident[index])
