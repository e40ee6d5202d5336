"""A model for people: its layers, parameters and bytes, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipewave.models.shard import (
    ALONE,
    Parallel,
    active_parameters,
    kv_bytes_per_token,
    padded_vocab,
    parameters,
    stage_bytes,
)
from pipewave.models.spec import Gqa, Layer, Linear, ModelSpec, Moe

GIB = 2**30


def summary(model: ModelSpec, parallel: Parallel = ALONE) -> dict[str, Any]:
    """Totals: parameters, active parameters, weight GiB of the fullest rank, KV bytes a token leaves there."""
    parallel.check(model)
    weights = max(stage_bytes(model, parallel, stage) for stage in range(parallel.pp))
    return {
        "model": model.name,
        "model_type": model.model_type,
        "layers": len(model.layers),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "weights_gib_per_gpu": round(weights / GIB, 3),
        "kv_bytes_per_token_per_gpu": round(kv_bytes_per_token(model, parallel)),
        "kv_dtype": model.kv_dtype or model.dtype,
        "notes": list(model.notes),
    }


def rows(model: ModelSpec, parallel: Parallel = ALONE) -> list[dict[str, Any]]:
    """One row a part: where, how often, its shape on one rank, precision, parameters in all, GiB on one rank of all."""
    return [*_embedding(model, parallel), *_layers(model, parallel), *_end(model, parallel)]


def _row(
    where: str, part: str, count: int, shape: str, precision: str, params: int, rank_bytes: float, detail: str = ""
) -> dict[str, Any]:
    return {
        "layers": where,
        "part": part,
        "count": count,
        "shape on a rank": shape,
        "precision": precision,
        "parameters": params * count,
        "GiB on a rank": round(rank_bytes * count / GIB, 4),
        "detail": detail,
    }


def _matrix(where: str, linear: Linear, count: int, tp: int) -> dict[str, Any]:
    out, inp = linear.shape(tp)
    shape = f"{out} × {inp}" + (" + bias" if linear.bias else "")
    return _row(where, linear.name, count, shape, linear.precision.dtype, linear.params, linear.weight_bytes(tp))


def _embedding(model: ModelSpec, parallel: Parallel) -> Iterator[dict[str, Any]]:
    rank_rows, params = padded_vocab(model) // parallel.tp, model.vocab * model.hidden
    shape = f"{rank_rows} × {model.hidden}"
    yield _row("first", "embedding", 1, shape, model.dtype, params, 2 * rank_rows * model.hidden)
    if model.side_params:
        yield _row(
            "beside", "vision tower", 1, "", model.dtype, model.side_params, 2 * model.side_params, "idle for text"
        )


def _layers(model: ModelSpec, parallel: Parallel) -> Iterator[dict[str, Any]]:
    for number, (layer, count) in enumerate(model.grouped()):
        where = _span(model, layer) if number or count < len(model.layers) else "all"
        for linear in layer.attention.linears():
            yield _matrix(where, linear, count, parallel.tp)
        yield _row(
            where, "attention", count, _heads(layer), model.kv_dtype or model.dtype, layer.attention.extra_params,
            2 * layer.attention.extra_params, _attention_detail(layer),
        )  # fmt: skip
        yield from _ffn(where, layer, count, parallel)
    norm = model.hidden * (2 if model.norm_bias else 1)
    yield _row(
        "all", "norms", model.norms_per_layer * len(model.layers), str(model.hidden), model.dtype, norm, 2 * norm
    )


def _ffn(where: str, layer: Layer, count: int, parallel: Parallel) -> Iterator[dict[str, Any]]:
    ffn = layer.ffn
    for linear in ffn.linears():
        yield _matrix(where, linear, count, parallel.tp)
    if isinstance(ffn, Moe):
        shape = f"{ffn.experts // parallel.ep} × 3 × {ffn.inter // parallel.moe_tp} × {ffn.hidden}"
        yield _row(
            where, "experts", count, shape, ffn.precision.dtype, ffn.extra_params, ffn.expert_bytes(parallel.tp),
            f"{ffn.topk} of {ffn.experts} a token",
        )  # fmt: skip


def _end(model: ModelSpec, parallel: Parallel) -> Iterator[dict[str, Any]]:
    norm = model.hidden * (2 if model.norm_bias else 1)
    yield _row("last", "final_norm", 1, str(model.hidden), model.dtype, norm, 2 * norm)
    if model.tied:
        yield _row("last", "lm_head", 1, "", model.lm_head.precision.dtype, 0, 0, "shares the embedding")
    else:
        yield _matrix("last", model.lm_head, 1, parallel.tp)


def _span(model: ModelSpec, layer: Layer) -> str:
    """Which layers are this one: a range where they are consecutive, else the first few."""
    where = [index for index, other in enumerate(model.layers) if other is layer]
    if where[-1] - where[0] + 1 == len(where):
        return f"{where[0]}-{where[-1]}" if len(where) > 1 else str(where[0])
    return ",".join(map(str, where[:3])) + ("…" if len(where) > 3 else "")


def _heads(layer: Layer) -> str:
    spec = layer.attention
    if isinstance(spec, Gqa):
        return f"{spec.heads} heads, {spec.kv_heads} kv, {spec.head_dim} wide"
    return f"{spec.heads} heads, latent {spec.kv_lora_rank} + {spec.rope_dim}"


def _attention_detail(layer: Layer) -> str:
    spec = layer.attention
    facts = [f"window {spec.window}"] if spec.window else []
    if isinstance(spec, Gqa):
        facts += ["sinks"] if spec.sinks else []
        facts += [f"softcap {spec.softcap:g}"] if spec.softcap else []
        facts += [f"q/k norm over {'all' if spec.qk_norm == 'full' else 'heads'}"] if spec.qk_norm else []
        facts += [] if spec.rope else ["no RoPE"]
    return ", ".join(facts)
