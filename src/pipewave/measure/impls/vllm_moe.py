"""vLLM's experts, fused in Triton, with its tuned file or its default configuration."""

from __future__ import annotations

import zlib
from typing import Any

from pipewave.measure.impls import Pools, Prepared, Skip
from pipewave.measure.plan import Case

BLOCK = 128


def as_served(case: Case, pools: Pools) -> Prepared:
    """The configuration vLLM picks: its file for this (experts, width) and GPU, else its default."""
    return _prepared(case, pools, *served_config(case))


def default_config(case: Case, pools: Pools) -> Prepared:
    """vLLM's default although a tuned file exists; skipped where none does, since `as_served` is that row."""
    if served_config(case)[1] == "default":
        raise Skip("no tuned file: the same as impl triton")
    return _prepared(case, pools, _default(case), "default")


def width(case: Case) -> int:
    """One expert's width on one rank."""
    return int(case["inter"]) // int(case.get("tp", 1))


def served_config(case: Case) -> tuple[dict[str, int], str]:
    """Triton block sizes and where they come from, `file` or `default`."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_moe_configs

    tuned = get_moe_configs(case["experts"], width(case), _config_dtype(case), *(_scale_block(case) or ()))
    if not tuned:
        return _default(case), "default"
    return dict(tuned[min(tuned, key=lambda tokens: abs(tokens - case["tokens"]))]), "file"


def _default(case: Case) -> dict[str, int]:
    from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config

    tokens, experts, hidden = case["tokens"], case["experts"], case["hidden"]
    dtype, block = _config_dtype(case), _scale_block(case)
    return dict(get_default_config(tokens, experts, width(case), hidden, case["topk"], dtype, block))


def _config_dtype(case: Case) -> str | None:
    """The type by which vLLM names its tuned files; None for 16-bit operands."""
    return "fp8_w8a8" if _stored(case) == "fp8" else None


def _scale_block(case: Case) -> list[int] | None:
    return [BLOCK, BLOCK] if case["dtype"] == "fp8_block" else None


def _stored(case: Case) -> str:
    """The type of the weights."""
    return "fp8" if str(case["dtype"]).startswith("fp8") else str(case["dtype"])


def routing(case: Case, device: str, dtype: str) -> tuple[Any, dict[str, Any]]:
    """`random` routing: normal logits, and a summary of how they load the experts."""
    import torch

    seed = zlib.crc32(repr((case["tokens"], case["experts"], case["topk"])).encode())
    generator = torch.Generator(device=device).manual_seed(seed)
    logits = torch.randn(case["tokens"], case["experts"], generator=generator, device=device).to(getattr(torch, dtype))
    counts = torch.bincount(logits.topk(case["topk"]).indices.flatten(), minlength=case["experts"])
    return logits, {"seed": seed, "hit": int((counts > 0).sum()), "busiest": int(counts.max())}


def _prepared(case: Case, pools: Pools, config: dict[str, int], source: str) -> Prepared:
    import torch
    from vllm.model_executor.layers.fused_moe import override_config
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    experts, hidden, inter = case["experts"], case["hidden"], width(case)
    x = pools.take("activation", "bf16", case["tokens"], hidden)
    w13 = pools.take("weight", _stored(case), experts, 2 * inter, hidden)
    w2 = pools.take("weight", _stored(case), experts, hidden, inter)
    logits, summary = routing(case, pools.device, "float32")
    weights, ids = torch.topk(torch.softmax(logits, -1), case["topk"])
    weights, ids = (weights / weights.sum(-1, keepdim=True)).float(), ids.to(torch.int32)
    scales = _scales(case, pools.device)

    def call() -> object:
        with override_config(config):
            return fused_experts(x, w13, w2, weights, ids, quant_config=scales)

    return Prepared(call, {"config": config, "config_source": source, "routing_seen": summary})


def _scales(case: Case, device: str) -> Any:
    """How vLLM runs in fp8, None for 16-bit operands. `fp8`: one scale an expert, static ones for the activations;
    `fp8_block`: one for 128 x 128 weights, and one for 128 activations of a token, found in the call.
    """
    import torch
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    if _stored(case) != "fp8":
        return None

    def drawn(*shape: int) -> Any:
        return torch.rand(shape, device=device) + 0.5

    experts, hidden, inter = case["experts"], case["hidden"], width(case)
    if case["dtype"] == "fp8":
        return fp8_w8a8_moe_quant_config(drawn(experts), drawn(experts), drawn(1), drawn(1))
    w13, w2 = drawn(experts, 2 * inter // BLOCK, hidden // BLOCK), drawn(experts, hidden // BLOCK, inter // BLOCK)
    return fp8_w8a8_moe_quant_config(w13, w2, block_shape=[BLOCK, BLOCK])
