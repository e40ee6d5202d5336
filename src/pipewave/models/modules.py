"""Attention that is predicted as one module, projections and choice of keys included: sparse and compressed kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pipewave.calls.operators import AttentionModule
from pipewave.models.mixers import Compressed, Gqa, Indexer, Mixer, Mla
from pipewave.models.precision import Linear
from pipewave.models.stage import Stage, Use


def is_module(part: Mixer) -> bool:
    """Whether engines' rows measure this kind of attention as a whole: it chooses its keys, or compresses them."""
    return isinstance(part, Compressed) or getattr(part, "indexer", None) is not None


def modules(stage: Stage, part: Mixer) -> Iterator[Use]:
    """One call for the prompts of a batch and one for its decodes."""
    options, query = _OPTIONS[type(part)](stage, part)
    for pairs, phase in zip(stage.phases(), ("context", "generation"), strict=True):
        if pairs:
            q_lens, kv_lens = zip(*pairs, strict=True)
            call = AttentionModule(
                q_lens=q_lens, kv_lens=kv_lens, phase=phase, hidden=stage.model.hidden, dtype=query.precision.dtype,
                kv_dtype=stage.kv_dtype, **options,
            )  # fmt: skip
            yield Use(f"{options['kind']}_{phase}", call)


def _choice(indexer: Indexer) -> dict[str, Any]:
    return {"index_heads": indexer.heads, "index_dim": indexer.dim, "topk": indexer.topk}


def _latent(stage: Stage, spec: Mla) -> tuple[dict[str, Any], Linear]:
    """DeepSeek sparse attention."""
    assert spec.indexer is not None
    options = {
        "kind": "dsa", "heads": spec.heads // stage.tp, "q_lora_rank": spec.q_lora_rank,
        "kv_lora_rank": spec.kv_lora_rank, "nope_dim": spec.nope_dim, "rope_dim": max(spec.rope_dim, 1),
        "v_dim": spec.v_dim, "share_index": spec.indexer.reused,
    }  # fmt: skip
    return options | _choice(spec.indexer), spec.query


def _blocks(stage: Stage, spec: Gqa) -> tuple[dict[str, Any], Linear]:
    """MiniMax sparse attention: blocks of keys."""
    assert spec.indexer is not None
    options = {
        "kind": "msa", "heads": spec.heads // stage.tp, "kv_heads": max(spec.kv_heads // stage.tp, 1),
        "head_dim": spec.head_dim, "block_size": spec.indexer.block,
    }  # fmt: skip
    return options | _choice(spec.indexer), spec.qkv


def _compressed(stage: Stage, spec: Compressed) -> tuple[dict[str, Any], Linear]:
    """DeepSeek-V4: entries that an indexer picks among (csa), or all of them (hca)."""
    options = {
        "kind": "csa" if spec.indexer else "hca", "heads": spec.heads // stage.tp, "head_dim": spec.head_dim,
        "q_lora_rank": spec.q_lora_rank, "o_groups": max(spec.groups // stage.tp, 1), "o_lora_rank": spec.group_rank,
        "compress_ratio": spec.ratio, "window": spec.window,
    }  # fmt: skip
    return options | (_choice(spec.indexer) if spec.indexer else {}), spec.query


_OPTIONS: dict[type[Mixer], Callable[[Stage, Any], tuple[dict[str, Any], Linear]]] = {
    Mla: _latent,
    Gqa: _blocks,
    Compressed: _compressed,
}
