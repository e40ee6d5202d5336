"""What the sweep asks: calls of well-known models, of every GPU, type, stack and protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pipewave as pw
from pipewave.calls.families import from_dict
from pipewave.errors import PipewaveError
from pipewave.prediction.answers import Prediction

PROTOCOLS = ("cold", "graph", "profiler_warm", "serving")
VERSIONS = {
    "vllm": ("0.10.2", "0.14.0", "0.15.0", "0.16.0", "0.17.0", "0.18.0", "0.19.0", "0.20.0", "0.21.0", "0.22.0",
             "0.22.1", "0.23.0", "0.24.0", "0.25.0"),
    "sglang": ("0.5.6.post2", "0.5.7", "0.5.8", "0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.14", "0.5.15"),
    "trtllm": ("1.0.0", "1.1.0", "1.2.0rc5", "1.2.0", "1.3.0rc1", "1.3.0rc10", "1.3.0rc15", "1.3.0rc20", "1.3.0"),
}  # fmt: skip
LAYERS = ((4096, 4096), (28672, 4096), (4096, 14336), (1280, 8192), (7168, 8192), (2112, 7168), (24576, 1536))
ROWS = (1, 8, 64, 512, 4096, 16384)
HEADS: tuple[dict[str, Any], ...] = (
    {"heads": 32, "kv_heads": 8, "head_dim": 128},
    {"heads": 8, "kv_heads": 1, "head_dim": 128},
    {"heads": 32, "kv_heads": 32, "head_dim": 128},
    {"heads": 64, "kv_heads": 8, "head_dim": 64, "window": 128, "sinks": True},
    {"heads": 16, "kv_heads": 8, "head_dim": 256, "softcap": 50.0},
)
DECODES = ((1, 1024), (1, 32768), (32, 1024), (32, 8192), (256, 2048))  # requests, cached tokens of each
PREFILLS = ((1, 512), (4, 2048), (1, 16384))  # requests, tokens of each
EXPERTS: tuple[dict[str, Any], ...] = (
    {"experts": 128, "topk": 8, "hidden": 2048, "inter": 768},
    {"experts": 128, "topk": 8, "hidden": 4096, "inter": 1536, "tp": 4},
    {"experts": 8, "topk": 2, "hidden": 4096, "inter": 14336, "tp": 2},
    {"experts": 256, "topk": 8, "hidden": 7168, "inter": 2048, "ep": 8},
    {"experts": 128, "topk": 4, "hidden": 2880, "inter": 2880},
)
TOKENS = (1, 16, 256, 4096)


def lengths(requests: int, new: int, cached: int) -> dict[str, list[int]]:
    """Equal requests: `new` tokens each, `cached` of the context with them."""
    return {"q_lens": [new] * requests, "kv_lens": [cached] * requests}


def attention() -> list[dict[str, Any]]:
    """Decodes and prompts of the head layouts."""
    decodes = [lengths(n, 1, kv) | heads for heads in HEADS for n, kv in DECODES]
    return decodes + [lengths(n, new, new) | heads for heads in HEADS for n, new in PREFILLS]


def latent() -> list[dict[str, Any]]:
    """The same of latent attention, of one rank and of eight."""
    decodes = [lengths(n, 1, kv) | {"heads": h, "phase": "generation"} for h in (16, 128) for n, kv in DECODES]
    return decodes + [lengths(n, new, new) | {"heads": h, "phase": "context"} for h in (16, 128) for n, new in PREFILLS]


def experts() -> list[dict[str, Any]]:
    """Routed experts of the models, with few and with many tokens."""
    return [{"tokens": tokens, **layer} for layer in EXPERTS for tokens in TOKENS]


KERNELS: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
    "gemm": (
        [{"m": m, "n": n, "k": k} for n, k in LAYERS for m in ROWS],
        ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4"),
    ),
    "attention": (attention(), ("bf16", "fp16", "fp8")),
    "mla": (latent(), ("bf16", "fp8")),
    "fused_moe": (experts(), ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4")),
    "rmsnorm": ([{"rows": m, "dim": d} for d in (2048, 4096, 8192) for m in ROWS], ("bf16", "fp16")),
    "silu_and_mul": ([{"rows": m, "dim": d} for d in (1536, 14336) for m in ROWS], ("bf16", "fp16")),
    "all_reduce": ([{"bytes": 1 << b, "world": w} for w in (2, 4, 8) for b in (13, 17, 20, 23, 26)], ("bf16",)),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Where a call was asked. `stack`: of the sweep; None asks for the default."""

    kernel: str
    shape: int  # number in `KERNELS`
    gpu: str
    dtype: str
    stack: str | None
    protocol: str


def shape(asked: Asked) -> str:
    """The sizes of a call, lists of equal requests as their number times one."""
    call = KERNELS[asked.kernel][0][asked.shape]
    sizes = {name: f"{len(value)}x{value[0]}" if isinstance(value, list) else value for name, value in call.items()}
    return " ".join((asked.kernel, *(f"{name}={value}" for name, value in sizes.items())))


def stacks() -> tuple[str | None, ...]:
    """Every stack of the sweep, and none."""
    return (None, *(f"{name}-{version}" for name, versions in VERSIONS.items() for version in versions))


def answer(
    kernel: str, gpu: str, protocols: Sequence[str], named: Sequence[str | None]
) -> Iterator[tuple[Asked, Prediction]]:
    """Answers of a kernel on a GPU; nothing of a type, a call or a stack that it refuses."""
    shapes, types = KERNELS[kernel]
    for dtype in types:
        calls = [from_dict({"kernel": kernel, "dtype": dtype, **shape}) for shape in shapes]
        for stack, protocol in ((stack, protocol) for stack in named for protocol in protocols):
            try:
                found = pw.predict(calls, gpu, protocol=protocol, stack=stack)
            except PipewaveError:
                continue
            for number, one in enumerate(found):
                yield Asked(kernel, number, gpu, dtype, stack, protocol), one
