"""NVIDIA AIConfigurator: CUDA-graph replays of GEMM, attention, MLA, fused MoE and fp8 quantisation.

Layout `<gpu>/<op>/<framework>/<version>/<table>_perf.parquet`, latency in ms. The path says framework and version
(the rules of cleaning go by it), the `device` column says the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from corpus import rules
from corpus.as_run import as_run
from corpus.frame import DTYPES, Table

NAME = "aiconfigurator"
WITH_QUANTIZE = ("fp8", "fp8_block", "nvfp4")


def raw(file: Path, data_dir: Path) -> pd.DataFrame:
    """One cleaned file with the common columns; its own columns keep their names."""
    return cleaned(pd.read_parquet(file), file, data_dir)


def cleaned(rows: pd.DataFrame, file: Path, data_dir: Path) -> pd.DataFrame:
    """The same of rows that were read from that file."""
    gpu, _, framework, version = file.parts[-5:-1]
    table = file.name.removesuffix("_perf.parquet")
    rows = rules.apply(rows, data_dir, table=table, gpu=gpu, framework=framework, version=version)
    rows = rows.reset_index(drop=True)
    device = rows["device"].fillna(gpu) if "device" in rows else gpu
    return rows.assign(
        raw_gpu=device,
        framework=framework,
        version=version,
        impl=rows["kernel_source"],
        protocol="graph",
        latency_us=rows["latency"] * 1e3,
    )


def gemm(file: Path, data_dir: Path) -> pd.DataFrame:
    """y[m,n] = x[m,k] Wᵀ; the fp8, fp8_block and nvfp4 rows quantise x inside the timed region.

    TensorRT-LLM's `fp8_static` rows have the 12 us floor of its dynamic `fp8` rows (both run amax), unlike SGLang's:
    they are not static, hence flagged.
    """
    rows = raw(file, data_dir)
    mislabelled = (rows["gemm_dtype"] == "fp8_static") & (rows["framework"] == "trtllm")
    return rows.assign(
        dtype=rows["gemm_dtype"].replace(DTYPES),
        quantize=rows["gemm_dtype"].isin(WITH_QUANTIZE),
        flagged=rows["flagged"] | mislabelled,
    )


def _attention(rows: pd.DataFrame, phase: str) -> pd.DataFrame:
    window = rows["window_size"].fillna(0).astype(np.int64) if "window_size" in rows else 0
    kv_heads = rows["num_key_value_heads"] if "num_key_value_heads" in rows else rows["num_heads"]
    kv_dtype = rows["kv_cache_dtype"] if "kv_cache_dtype" in rows else rows["attn_dtype"]
    return rows.assign(
        batch=rows["batch_size"],
        q_len=rows["isl"],
        kv_len=rows["isl"] if phase != "decode" else rows["step"] + 1,
        heads=rows["num_heads"],
        kv_heads=kv_heads,
        window=window,
        dtype=rows["attn_dtype"].replace(DTYPES),
        kv_dtype=kv_dtype.replace(DTYPES),
        causal=phase != "encoder",
        sinks=(rows["framework"] == "trtllm") & (rows["head_dim"] == 64) & (phase != "encoder"),
        phase=phase,
    )


def attention(phase: str) -> Callable[[Path, Path], pd.DataFrame]:
    """Reader of `context_attention` (prefill without prefix), `generation_attention` (decode) or `encoder_attention`.

    A decode row's `step` is the KV history before its token, so the kernel reads `step + 1` keys.
    """
    return lambda file, data_dir: _attention(raw(file, data_dir), phase)


def mla(phase: str) -> Callable[[Path, Path], pd.DataFrame]:
    """Reader of the attention kernel alone (`num_heads` are local heads, DeepSeek dimensions)."""

    def read(file: Path, data_dir: Path) -> pd.DataFrame:
        rows = raw(file, data_dir)
        return rows.assign(
            batch=rows["batch_size"],
            q_len=rows["isl"],
            kv_len=rows["isl"] if phase == "context" else rows["step"] + 1,
            heads=rows["num_heads"],
            dtype=rows["mla_dtype"].replace(DTYPES),
            kv_dtype=rows["kv_cache_dtype"].replace(DTYPES),
            phase=phase,
        )

    return read


def moe(file: Path, data_dir: Path) -> pd.DataFrame:
    """Whole fused MoE of one rank without communication, as it ran; equal keys in a file are repeats and stay."""
    rows = raw(file, data_dir).rename(
        columns={"num_tokens": "tokens", "hidden_size": "hidden", "inter_size": "inter", "num_experts": "experts"}
    )
    nongated = pd.MultiIndex.from_frame(rows[["hidden", "inter", "topk", "experts"]]).isin(
        list(rules.nongated_shapes(data_dir))
    )
    said = rows.assign(
        tp=rows["moe_tp_size"],
        ep=rows["moe_ep_size"],
        routing=rows["distribution"],
        gated=~nongated & (rows["impl"] != "moe_torch_flow_nongated").to_numpy(),
        dtype=rows["moe_dtype"].replace(DTYPES),
    )
    return as_run(said)


def quantize(file: Path, data_dir: Path) -> pd.DataFrame:
    """Static fp8 quantisation of [rows, dim] bf16; SGLang's chain of PyTorch operations is another kernel: flagged."""
    rows = raw(file, data_dir).rename(columns={"m": "rows", "k": "dim"})
    chain = (rows["framework"] == "sglang") | (rows["impl"] == "sglang")
    return rows.assign(dtype=rows["quant_dtype"].replace(DTYPES), flagged=rows["flagged"] | chain)


def _table(family: str, table: str, read: Callable[[Path, Path], pd.DataFrame]) -> Table:
    return Table(NAME, family, (f"{NAME}/*/*/*/*/{table}_perf.parquet",), read)


TABLES = (
    _table("gemm", "gemm", gemm),
    _table("attention", "context_attention", attention("prefill")),
    _table("attention", "generation_attention", attention("decode")),
    _table("attention", "encoder_attention", attention("encoder")),
    _table("mla", "context_mla", mla("context")),
    _table("mla", "generation_mla", mla("generation")),
    _table("fused_moe", "moe", moe),
    _table("quantize", "scale_matrix", quantize),
)
