"""Rows and features of attention modules: whole layers by kind and phase, and their kernels alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from corpus import operators
from pipewave.kernels import family_of
from train.net import Net, balanced_names, grouped, spread

Dims = Mapping[str, int]
GLM: Dims = {"hidden": 6144, "q_lora_rank": 2048, "nope_dim": 192, "v_dim": 256, "index_heads": 32}
PRO: Dims = {"hidden": 7168, "q_lora_rank": 1536, "topk": 1024}
MODELS: Mapping[str, Dims] = {"GLM-5": GLM, "DeepSeek-V4-Pro": PRO}  # others have the dimensions of their kind
MOST = 400  # rows of a GPU, stack, type and kernel
SHARES = {"mla": 0.5, "compressed": 3.0, "index": 3.0, "sparse": 3.0}  # of that: many versions, few series
HEADS_A_KV_HEAD = 16  # MiniMax-M3's, and its indexer's
INDEX_HEADS = 4  # MiniMax-M3's: TensorRT-LLM does not shard its indexer


@dataclass(frozen=True, slots=True)
class Source:
    """A table: kind of layer and part; `phase` None where one table holds both."""

    table: str
    kind: str
    phase: str | None
    part: str = "module"


def _both(net: str, kind: str, table: str) -> dict[str, tuple[Source, ...]]:
    names = {"context": f"{table}_context_module", "generation": f"{table}_generation_module"}
    return {f"{net}_{phase}": (Source(name, kind, phase),) for phase, name in names.items()}


_CSA, _HCA = (_both("compressed", kind, f"dsv4_{kind}") for kind in ("csa", "hca"))
SOURCES: Mapping[str, tuple[Source, ...]] = {
    **_both("dsa", "dsa", "dsa"),
    **_both("msa", "msa", "msa"),
    **{net: (*_CSA[net], *_HCA[net]) for net in _CSA},
    "mla_module_context": (Source("mla_context_module", "mla", "context"),),
    "mla_module_generation": (Source("mla_generation_module", "mla", "generation"),),
    "index_scores": (
        Source("glm5_mqa_logits_module", "dsa", None, "indexer"),
        Source("dsv4_paged_mqa_logits_module", "csa", None, "indexer"),
    ),
    "index_topk": (Source("glm5_topk_module", "dsa", None, "topk"), Source("dsv4_csa_topk_calib", "csa", None, "topk")),
    "sparse_attention": (
        Source("glm5_dsa_attn_module", "dsa", None, "attention"),
        Source("dsv4_hca_attn_module", "hca", None, "attention"),
    ),
}


def rows(net: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """All versions of the net's tables."""
    frame = pd.concat([_read(source, data_dir) for source in SOURCES[net]], ignore_index=True)
    most = round(MOST * SHARES.get(net.partition("_")[0], 1.0))
    return operators.capped(frame.assign(group=balanced_names(frame["group"])), most)


def _read(source: Source, data_dir: Path | str | None) -> pd.DataFrame:
    frame = operators.table(source.table, data_dir).rename(columns={"batch_size": "batch", "isl": "q_len"})
    frame = frame.assign(
        kind=source.kind,
        part=source.part,
        phase=source.phase or np.where(frame["q_len"] == 1, "generation", "context"),
        heads=frame["num_heads"],
    )
    # `step` tokens are cached before the new ones
    frame = frame.assign(
        kv_dtype=operators.typed(frame, "kv_cache_dtype"),
        kv_len=frame["q_len"] + frame["step"],
        **_dims(frame, source.kind),
    )
    if source.part == "module":
        frame = frame.assign(dtype=operators.typed(frame, "gemm_type"))
    if "score_mode" in frame:
        frame = frame[(frame["kv_len"] > 0)]
    shared = frame["op_name"].str.endswith("skip_indexer")
    return frame.assign(share_index=shared, group=_group(frame, source))


def _dims(frame: pd.DataFrame, kind: str) -> dict[str, pd.Series]:
    """What models say of themselves, 0 for what is their kind's."""
    names = sorted({name for dims in MODELS.values() for name in dims})
    found = {name: pd.Series(0, index=frame.index) for name in names}
    for model, dims in MODELS.items():
        named = frame["model"].str.contains(model)
        for name, value in dims.items():
            found[name] = found[name].mask(named, value)
    if kind == "msa":
        sharded = np.maximum(frame["num_heads"] // HEADS_A_KV_HEAD, 1)
        found["index_heads"] = pd.Series(sharded).where(frame["framework"] != "trtllm", INDEX_HEADS)
    return found


def _group(frame: pd.DataFrame, source: Source) -> pd.Series:
    """A model at a number of heads; one model at one number: with a number of requests, too."""
    few = source.kind in ("msa", "mla") or source.part != "module"
    return grouped(frame, "kind", "hidden", "heads", *(["batch"] if few else []))


FAMILY = family_of("attention_module")
NETS = {name: Net(rows, FAMILY, tuple(source.table for source in sources), spread) for name, sources in SOURCES.items()}
