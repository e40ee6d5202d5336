"""Shapes of published models, from their `config.json` files: the dimensions, never the weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dense:
    """A dense decoder layer."""

    name: str
    hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


@dataclass(frozen=True, slots=True)
class Moe:
    """The routed experts of a sparse layer; `tps` are the tensor-parallel splits worth measuring."""

    name: str
    experts: int
    topk: int
    hidden: int
    inter: int
    tps: tuple[int, ...]


DENSE = (
    Dense("llama-3.2-1b", 2048, 8192, 32, 8, 64, 128256),
    Dense("llama-3.2-3b", 3072, 8192, 24, 8, 128, 128256),
    Dense("llama-3.1-8b", 4096, 14336, 32, 8, 128, 128256),
    Dense("llama-2-13b", 5120, 13824, 40, 40, 128, 32000),
    Dense("llama-3.1-70b", 8192, 28672, 64, 8, 128, 128256),
    Dense("llama-3.1-405b", 16384, 53248, 128, 8, 128, 128256),
    Dense("qwen2.5-0.5b", 896, 4864, 14, 2, 64, 151936),
    Dense("qwen2.5-1.5b", 1536, 8960, 12, 2, 128, 151936),
    Dense("qwen2.5-3b", 2048, 11008, 16, 2, 128, 151936),
    Dense("qwen2.5-7b", 3584, 18944, 28, 4, 128, 152064),
    Dense("qwen2.5-14b", 5120, 13824, 40, 8, 128, 152064),
    Dense("qwen2.5-32b", 5120, 27648, 40, 8, 128, 152064),
    Dense("qwen2.5-72b", 8192, 29568, 64, 8, 128, 152064),
    Dense("qwen3-0.6b", 1024, 3072, 16, 8, 128, 151936),
    Dense("qwen3-4b", 2560, 9728, 32, 8, 128, 151936),
    Dense("qwen3-8b", 4096, 12288, 32, 8, 128, 151936),
    Dense("qwen3-14b", 5120, 17408, 40, 8, 128, 151936),
    Dense("qwen3-32b", 5120, 25600, 64, 8, 128, 151936),
    Dense("mistral-nemo-12b", 5120, 14336, 32, 8, 128, 131072),
    Dense("mistral-small-24b", 5120, 32768, 32, 8, 128, 131072),
    Dense("mistral-large-123b", 12288, 28672, 96, 8, 128, 32768),
    Dense("gemma-2-9b", 3584, 14336, 16, 8, 256, 256000),
    Dense("gemma-3-27b", 5376, 21504, 32, 16, 128, 262144),
    Dense("phi-3-mini", 3072, 8192, 32, 32, 96, 32064),
    Dense("phi-4", 5120, 17920, 40, 10, 128, 100352),
    Dense("yi-34b", 7168, 20480, 56, 8, 128, 64000),
    Dense("command-r-35b", 8192, 22528, 64, 64, 128, 256000),
    Dense("gpt-oss-attention", 2880, 2880, 64, 8, 64, 201088),
    Dense("qwen3-235b-attention", 4096, 1536, 64, 4, 128, 151936),
    Dense("glm-4-9b", 4096, 13696, 32, 2, 128, 151552),
)

# Projections that no dense layer has: (n, k) of DeepSeek's latent attention and shared experts, before sharding by n.
LATENT = (
    (2112, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (36864, 7168),
    (7168, 18432),
    (4096, 7168),
    (7168, 2048),
    (3072, 2048),
    (576, 2048),
    (4096, 512),
    (21888, 2048),
    (2048, 10944),
    (256, 7168),
    (128, 4096),
)

MOE = (
    Moe("mixtral-8x7b", 8, 2, 4096, 14336, (1, 2, 4, 8)),
    Moe("mixtral-8x22b", 8, 2, 6144, 16384, (2, 4, 8)),
    Moe("qwen3-30b-a3b", 128, 8, 2048, 768, (1, 2, 4, 8)),
    Moe("qwen3-235b-a22b", 128, 8, 4096, 1536, (1, 2, 4, 8)),
    Moe("qwen1.5-moe-a2.7b", 60, 4, 2048, 1408, (1, 2, 4)),
    Moe("qwen2-57b-a14b", 64, 8, 3584, 2560, (1, 2, 4, 8)),
    Moe("qwen3-next-80b", 512, 10, 2048, 512, (1, 2, 4)),
    Moe("deepseek-v2-lite", 64, 6, 2048, 1408, (1, 2, 4)),
    Moe("deepseek-v2", 160, 6, 5120, 1536, (4, 8)),
    Moe("deepseek-v3", 256, 8, 7168, 2048, (8, 16)),
    Moe("gpt-oss-20b", 32, 4, 2880, 2880, (1, 2)),
    Moe("gpt-oss-120b", 128, 4, 2880, 2880, (2, 4)),
    Moe("llama-4-scout", 16, 1, 5120, 8192, (2, 4, 8)),
    Moe("llama-4-maverick", 128, 1, 5120, 8192, (8,)),
    Moe("phi-3.5-moe", 16, 2, 4096, 6400, (1, 2, 4)),
    Moe("glm-4.5-air", 128, 8, 4096, 1408, (1, 2, 4)),
    Moe("glm-4.5", 160, 8, 5120, 1536, (4, 8)),
    Moe("olmoe-1b-7b", 64, 8, 2048, 1024, (1, 2, 4)),
    Moe("jamba-mini", 16, 2, 4096, 14336, (4, 8)),
    Moe("dbrx", 16, 4, 6144, 10752, (2, 4, 8)),
    Moe("granite-3-3b-a800m", 40, 8, 1536, 512, (1,)),
    Moe("kimi-k2", 384, 8, 7168, 2048, (16,)),
    Moe("minimax-m1", 32, 2, 6144, 9216, (4, 8)),
)

TENSOR_PARALLEL = (1, 2, 4, 8)


def projections(layer: Dense, tp: int) -> list[tuple[int, int]]:
    """(n, k) of the five matrix products of a layer on one of `tp` ranks: qkv, out, gate-up, down, head."""
    if layer.heads % tp or layer.inter % tp:
        return []
    heads, kv_heads, inter = layer.heads // tp, max(1, layer.kv_heads // tp), layer.inter // tp
    return [
        ((heads + 2 * kv_heads) * layer.head_dim, layer.hidden),
        (layer.hidden, heads * layer.head_dim),
        (2 * inter, layer.hidden),
        (layer.hidden, inter),
        (-(-layer.vocab // tp // 64) * 64, layer.hidden),
    ]
