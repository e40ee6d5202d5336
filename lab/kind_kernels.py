"""Cases of kernels of today's kinds: `python -m lab.kind_kernels FILE`, for `pipewave measure --plan FILE`.

`studies.kind_kernels` says which kernels they are, and how far predictions are from the rows of an H100.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LARGEST_CACHE = 3_000_000_000  # elements of keys and values
# heads, KV heads, head size, window (0: none), sinks; Gemma 4's are the first two
LAYOUTS = (
    (16, 8, 256, 1024, False), (16, 2, 512, 0, False), (8, 4, 256, 0, False), (8, 1, 256, 512, False),
    (16, 16, 256, 0, False), (8, 1, 512, 0, False), (32, 4, 512, 1024, False), (32, 8, 128, 0, False),
    (28, 4, 128, 4096, False), (64, 8, 64, 128, True),
)  # fmt: skip
PROMPTS = ((1, 256), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (4, 2048), (16, 256))
CHUNKS = ((1, 1024, 8192), (4, 512, 2048))
DECODES = tuple((batch, kv) for batch in (1, 8, 32, 128) for kv in (1024, 8192))
# tokens of gpt-oss's experts; experts and top-k of its two sizes
MXFP4_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
MXFP4_EXPERTS = (32, 128)
# experts, top-k, hidden and inner width of layers without a tuned file on an H100
UNTUNED = ((128, 8, 2816, 704), (16, 1, 5120, 8192), (256, 8, 3072, 1536))
UNTUNED_TOKENS = (1, 16, 64, 128, 512, 2048, 8192)
Case = dict[str, Any]


def cases() -> Iterator[Case]:
    """All cases, each with its implementation."""
    for layout in LAYOUTS:
        yield from _attention(*layout)
    shape = {"topk": 4, "hidden": 2880, "inter": 2880}
    for experts in MXFP4_EXPERTS:
        for tokens in MXFP4_TOKENS:
            yield _experts(tokens, "mxfp4", "triton_kernels", experts=experts, **shape)
    for experts, topk, hidden, inter in UNTUNED:
        for tokens in UNTUNED_TOKENS:
            yield _experts(tokens, "bf16", "triton", experts=experts, topk=topk, hidden=hidden, inter=inter)


def _attention(heads: int, kv_heads: int, head_dim: int, window: int, sinks: bool) -> Iterator[Case]:
    layout: Case = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    layout |= ({"window": window} if window else {}) | ({"sinks": True} if sinks else {})
    prompts = [([length] * batch, [length] * batch) for batch, length in PROMPTS]
    chunks = [([new] * batch, [kv] * batch) for batch, new, kv in CHUNKS]
    for q_lens, kv_lens in (*prompts, *chunks, *(([1] * batch, [kv] * batch) for batch, kv in DECODES)):
        if 2 * sum(kv_lens) * kv_heads * head_dim <= LARGEST_CACHE:
            common = {"kernel": "attention", "dtype": "bf16", "page_size": 16, "impl": "vllm_triton_attn"}
            yield common | layout | {"q_lens": q_lens, "kv_lens": kv_lens}


def _experts(tokens: int, dtype: str, impl: str, **shape: int) -> Case:
    return {"kernel": "fused_moe", "dtype": dtype, "impl": impl, "tokens": tokens, "tp": 1, **shape}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("".join(json.dumps(case) + "\n" for case in cases()))
