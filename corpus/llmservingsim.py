"""LLMServingSim: layers of small vLLM 0.19 models by Kineto (us), and older HF-eager fp16 profiles (`v0`).

Model dimensions come from `model_configs`; a folder `tp<k>` holds one rank's share.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus.frame import Table, stacked

NAME = "llmservingsim"
NEW = f"{NAME}/perf/*/*/*/bf16/*"
OLD = f"{NAME}/v0/perf_models/*/*/*/*"
SOFTWARE: dict[str, str] = {"framework": "vllm", "version": "0.19.0", "protocol": "profiler_warm", "dtype": "bf16"}
OLD_SOFTWARE = {"framework": "llmservingsim", "version": "0", "protocol": "profiler_warm", "dtype": "fp16"}


def _place(file: Path, data_dir: Path) -> tuple[str, dict[str, Any], int]:
    """GPU folder, model configuration and tensor-parallel degree of a file."""
    parts = file.relative_to(data_dir / NAME).parts
    gpu, organisation, model = parts[1:4] if parts[0] == "perf" else parts[2:5]
    config = data_dir / NAME / "model_configs" / organisation / f"{model}.json"
    return gpu, json.loads(config.read_text(encoding="utf-8")), int(file.parent.name.removeprefix("tp"))


def _heads(config: dict[str, Any]) -> tuple[int, int, int]:
    heads = int(config["num_attention_heads"])
    return heads, int(config["num_key_value_heads"]), int(config.get("head_dim") or config["hidden_size"] // heads)


def _weights(config: dict[str, Any], tp: int) -> dict[str, tuple[int, int]]:
    """(n, k) of each projection on one rank."""
    heads, kv_heads, head_dim = _heads(config)
    hidden, inter, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = heads * head_dim // tp, kv_heads * head_dim // tp
    attention = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
    attention |= {"qkv_proj": (q + 2 * kv, hidden), "lm_head": (vocab // tp, hidden)}
    if "num_local_experts" in config or "num_experts" in config:
        return attention
    wide = inter // tp
    mlp = {"gate_proj": (wide, hidden), "up_proj": (wide, hidden), "down_proj": (hidden, wide)}
    return attention | mlp | {"gate_up_proj": (2 * wide, hidden)}


def _projections(rows: pd.DataFrame, layer: str, size: str, weights: dict[str, tuple[int, int]]) -> pd.DataFrame:
    rows = rows[rows[layer].isin(weights)]
    shape = np.array([weights[name] for name in rows[layer]]).reshape(-1, 2)
    return rows.assign(m=rows[size], n=shape[:, 0], k=shape[:, 1], impl="cublas")


def gemm(file: Path, data_dir: Path) -> pd.DataFrame:
    """Projections of `dense` (by tokens) and `per_sequence` (the language-model head, by sequences)."""
    gpu, config, tp = _place(file, data_dir)
    rows = pd.read_parquet(file).rename(columns={"sequences": "tokens"})
    rows = _projections(rows, "layer", "tokens", _weights(config, tp))
    return rows.assign(raw_gpu=gpu, **SOFTWARE, latency_us=rows["time_us"])


def old_gemm(file: Path, data_dir: Path) -> pd.DataFrame:
    """Single samples of HF-eager fp16 projections."""
    gpu, config, tp = _place(file, data_dir)
    rows = _projections(pd.read_parquet(file), "layer_name", "input", _weights(config, tp))
    return rows.assign(raw_gpu=gpu, **OLD_SOFTWARE, latency_us=rows["latency(ns)"] * 1e-3)


def rmsnorm(file: Path, data_dir: Path) -> pd.DataFrame:
    """`final_layernorm` is add-fused; `layernorm` pools a plain and an add-fused one, hence flagged."""
    gpu, config, _ = _place(file, data_dir)
    rows = pd.read_parquet(file)
    rows = rows[rows["layer"].isin(["layernorm", "final_layernorm"])]
    return rows.assign(
        **SOFTWARE,
        raw_gpu=gpu,
        impl="vllm_rms_norm",
        rows=rows["tokens"],
        dim=config["hidden_size"],
        fused_add=True,
        flagged=rows["layer"] == "layernorm",
        latency_us=rows["time_us"],
    )


def silu_and_mul(file: Path, data_dir: Path) -> pd.DataFrame:
    """`act_fn` of dense models."""
    gpu, config, tp = _place(file, data_dir)
    rows = pd.read_parquet(file)
    rows = rows[rows["layer"] == "act_fn"]
    shape = {"rows": rows["tokens"], "dim": config["intermediate_size"] // tp}
    return rows.assign(raw_gpu=gpu, impl="vllm_silu_and_mul", **SOFTWARE, **shape, latency_us=rows["time_us"])


def _layout(config: dict[str, Any], tp: int, dtype: str) -> dict[str, Any]:
    heads, kv_heads, head_dim = _heads(config)
    return {"heads": heads // tp, "kv_heads": kv_heads // tp, "head_dim": head_dim, "kv_dtype": dtype}


def attention(file: Path, data_dir: Path) -> pd.DataFrame:
    """Iterations of one prefill chunk alone (its history is `kv_prefill`) or of decodes alone."""
    gpu, config, tp = _place(file, data_dir)
    rows = pd.read_parquet(file)
    rows = rows.assign(raw_gpu=gpu, impl="vllm_flash_attn", **SOFTWARE, **_layout(config, tp, "bf16"))
    rows = rows.assign(latency_us=rows["time_us"])
    chunk = rows[rows["n_decode"] == 0]
    decode = rows[rows["prefill_chunk"] == 0]
    chunk = chunk.assign(batch=1, q_len=chunk["prefill_chunk"], phase="prefill")
    chunk = chunk.assign(kv_len=chunk["kv_prefill"] + chunk["prefill_chunk"])
    decode = decode.assign(batch=decode["n_decode"], q_len=1, kv_len=decode["kv_decode"] + 1, phase="decode")
    return stacked([chunk, decode])


def old_attention(file: Path, data_dir: Path) -> pd.DataFrame:
    """FlashAttention fp16 with its run-to-run spread; prefill chunks follow `kv_cache_size` cached keys."""
    gpu, config, tp = _place(file, data_dir)
    rows = pd.read_parquet(file)
    prefill = rows["is_prefill"].astype(bool)
    time = {
        name: rows[f"time_stats.attn_prefill.{name}"].where(prefill, rows[f"time_stats.attn_decode.{name}"])
        for name in ("mean", "median", "std")
    }
    new = rows["prefill_chunk_size"].where(prefill, 1)
    shape = {"batch": rows["batch_size"], "q_len": new, "kv_len": rows["kv_cache_size"] + new}
    return rows.assign(raw_gpu=gpu, impl="fa2", **OLD_SOFTWARE, **shape, **_layout(config, tp, "fp16")).assign(
        phase=np.where(prefill, "prefill", "decode"), latency_us=time["median"] * 1e3, noise=time["std"] / time["mean"]
    )


TABLES = (
    Table(NAME, "gemm", (f"{NEW}/dense.parquet", f"{NEW}/per_sequence.parquet"), gemm),
    Table(NAME, "gemm", (f"{OLD}/layers.parquet",), old_gemm),
    Table(NAME, "rmsnorm", (f"{NEW}/dense.parquet",), rmsnorm),
    Table(NAME, "silu_and_mul", (f"{NEW}/dense.parquet",), silu_and_mul),
    Table(NAME, "attention", (f"{NEW}/attention.parquet",), attention),
    Table(NAME, "attention", (f"{OLD}/attention.parquet",), old_attention),
)
