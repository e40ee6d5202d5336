"""Operand types: bytes per element, scales included, and what frameworks call them."""

from __future__ import annotations

from functools import cache

ACTIVATION_BYTES = 2.0  # activations enter and leave in bf16 or fp16

OPERAND_BYTES = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4.0 / 128**2,  # one fp32 scale per 128 × 128 weights
    "nvfp4": 0.5 + 1.0 / 16,  # one fp8 scale per 16
    "mxfp4": 0.5 + 1.0 / 32,  # one e8m0 scale per 32
    "int8": 1.0,
    "int4": 0.5 + 2.0 / 128,  # one bf16 scale per 128
}

SIXTEEN_BIT = {"bf16": ("fp16",), "fp16": ("bf16",)}  # types that the same kernels take
FOUR_BIT = ("nvfp4", "mxfp4", "int4")
# What frameworks call operand types. `float8_e4m3fn` is torch's name, `fp8_e4m3` the engines'.
SPELLINGS = {"bfloat16": "bf16"} | dict.fromkeys(("float16", "half"), "fp16")
SPELLINGS |= dict.fromkeys(("float8_e4m3fn", "float8_e4m3", "fp8_e4m3"), "fp8")
# What engines call the types of a KV cache; `auto` is the model's own.
CACHE_TYPES = {"auto": None, "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "float16": "fp16"}


@cache
def kv_bytes(kv_dtype: str | None, dtype: str) -> float:
    """Bytes per element of the KV cache; without a type of its own it has that of the activations."""
    return OPERAND_BYTES["fp8"] if (kv_dtype or dtype).startswith("fp8") else ACTIVATION_BYTES


def cache_type(word: str | None) -> str | None:
    """The type of a KV cache by an engine's word for it; None is the model's own."""
    return CACHE_TYPES.get(word, word) if word else None
