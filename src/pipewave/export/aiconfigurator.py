"""Tables of a GPU and a model as AIConfigurator 0.12 (now AISimulate) reads them from a folder of `--systems-paths`.

    <folder>/<system>.yaml                                    rates and memory of the GPU
    <folder>/data/<system>/gemm/<backend>/<version>/gemm_perf.parquet
                          /attention/.../context_attention_perf.parquet, generation_attention_perf.parquet
                          /comm/.../custom_allreduce_perf.parquet

Columns are those of the tables that it publishes, latencies in ms. Only the shapes of the model are written, over
grids of tokens, requests and caches; between them AIConfigurator interpolates. Parquet needs pyarrow. Its own program
reads them: `python lab/aiconfigurator_run.py`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from pipewave.calls.collective import AllReduce
from pipewave.calls.families import Gemm, attention
from pipewave.errors import extra
from pipewave.export.tables import Row, check_equal_layers, served_us
from pipewave.files.whole import write as replace
from pipewave.gpus import GPU
from pipewave.models import ModelSpec
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel

BACKEND, VERSION, SOURCE = "vllm", "0.24.0", "pipewave"
TYPES = {"bf16": "bfloat16", "fp8": "fp8"}
TOKENS = tuple(sorted({*(1 << i for i in range(16)), *range(16, 257, 16), *range(384, 8193, 384)}))
REQUESTS = tuple(1 << i for i in range(9))
LENGTHS = tuple(16 << i for i in range(11))
CACHES = tuple(1 << i for i in range(18))
SIZES = tuple(128 << i for i in range(21))
MOST_PROMPT, HELD = 1 << 17, 1 << 24  # tokens of a batch at most: of prompts, of caches
MEMORY_SHARE, MEMORY_START_S, LINK_START_S = 0.8, 3e-6, 1e-5  # as in its own files of GPUs
OTHER_BYTES = 3_758_096_384  # what a runtime takes beside weights and cache, as there


def export(model: ModelSpec, gpu: GPU, folder: Path, *, tps: Sequence[int] = (1,)) -> tuple[Path, ...]:
    """Write the GPU's file and its tables. BadInput for layers that differ and without pyarrow, CannotShard."""
    check_equal_layers(model, "this export")
    for tp in tps:
        Parallel(tp).check(model)
    name = gpu.name.lower().replace(" ", "_")
    tables = {
        ("gemm", "gemm_perf"): products(model, gpu, tps),
        ("attention", "context_attention_perf"): attended(model, gpu, tps, prompts=True),
        ("attention", "generation_attention_perf"): attended(model, gpu, tps, prompts=False),
        ("comm", "custom_allreduce_perf"): reductions(gpu, [tp for tp in tps if tp > 1] or [2]),
    }
    root = folder / "data" / name
    written = [
        _parquet(root / kind / BACKEND / VERSION / f"{table}.parquet", rows) for (kind, table), rows in tables.items()
    ]
    return (_about(folder / f"{name}.yaml", name, gpu), *written)


def _about(path: Path, name: str, gpu: GPU) -> Path:
    """The GPU as its files of systems describe one."""
    tera = 1e12
    about = {
        "data_dir": f"data/{name}",
        "gpu": {
            "mem_bw": 1e9 * gpu.dram_gbps, "mem_bw_empirical_scaling_factor": MEMORY_SHARE,
            "mem_empirical_constant_latency": MEMORY_START_S, "mem_capacity": int(gpu.dram_gb * (1 << 30)),
            "bfloat16_tc_flops": tera * (gpu.bf16_tflops or 0.0), "int8_tc_flops": tera * (gpu.int8_tops or 0.0),
            "fp8_tc_flops": tera * (gpu.fp8_tflops or 0.0), "power": gpu.tdp_w, "sm_version": gpu.compute_capability,
        },
        "node": {
            "num_gpus_per_node": gpu.gpus_per_node, "inter_node_bw": 5e10,
            "intra_node_bw": 1e9 * (gpu.link_gbps or gpu.pcie_gbps or 32.0),
            "pcie_bw": 1e9 * (gpu.pcie_gbps or 32.0), "p2p_latency": LINK_START_S,
        },
        "misc": {"nccl_mem": {1: 0, 2: 358612992, 4: 411041792, 8: 411041792}, "other_mem": OTHER_BYTES,
                 "nccl_version": "2.26.2"},
    }  # fmt: skip
    replace(path, yaml.safe_dump(about, sort_keys=False).encode())
    return path


def _row(gpu: GPU, op: str) -> Row:
    return {"framework": "VLLM", "version": VERSION, "device": f"NVIDIA {gpu.name}", "op_name": op,
            "kernel_source": SOURCE}  # fmt: skip


def products(model: ModelSpec, gpu: GPU, tps: Sequence[int]) -> Iterator[Row]:
    """Every product of the model at each degree, over tokens."""
    steps = [Deployment(model, Parallel(tp)).kernels(Batch.of([1], [1])) for tp in tps]
    shapes = {(use.call.n, use.call.k, use.call.dtype) for uses in steps for use in uses if isinstance(use.call, Gemm)}
    asked = [Gemm(m, n, k, dtype=dtype) for n, k, dtype in sorted(shapes) for m in TOKENS]
    for call, took in zip(asked, served_us(asked, gpu), strict=True):
        sizes = {"gemm_dtype": TYPES[call.dtype], "m": call.m, "n": call.n, "k": call.k}
        yield _row(gpu, "gemm") | sizes | {"latency": took / 1e3}


def attended(model: ModelSpec, gpu: GPU, tps: Sequence[int], *, prompts: bool) -> Iterator[Row]:
    """Attention of whole prompts, or of decodes over caches of `step` tokens and the new one."""
    mixer = check_equal_layers(model, "this export")
    lengths, most = (LENGTHS, MOST_PROMPT) if prompts else (CACHES, HELD)
    heads = [(mixer.heads // tp, max(mixer.kv_heads // tp, 1)) for tp in tps]
    asked = [(h, b, n) for h in heads for b in REQUESTS for n in lengths if b * n <= most]
    new, more = (None, 0) if prompts else (1, 1)
    calls = [attention([new or n] * b, [n + more] * b, *h, head_dim=mixer.head_dim) for h, b, n in asked]
    for ((all_heads, kv_heads), requests, length), us in zip(asked, served_us(calls, gpu), strict=True):
        yield _row(gpu, "context_attention" if prompts else "generation_attention") | {
            "batch_size": requests, "isl": length if prompts else 1, "num_heads": all_heads,
            "num_key_value_heads": kv_heads, "head_dim": mixer.head_dim, "beam_width": 1, "attn_dtype": "bfloat16",
            "kv_cache_dtype": "bfloat16", "step": 0 if prompts else length, "window_size": 0, "latency": us / 1e3,
        }  # fmt: skip


def reductions(gpu: GPU, tps: Sequence[int]) -> Iterator[Row]:
    """All-reduces over ranks of one host; sizes count elements of 16 bits."""
    asked = [(tp, size) for tp in tps for size in SIZES]
    us = served_us([AllReduce(2 * size, tp) for tp, size in asked], gpu)
    for (tp, size), took in zip(asked, us, strict=True):
        yield _row(gpu, "all_reduce") | {
            "allreduce_dtype": "bfloat16", "num_gpus": tp, "message_size": size, "latency": took / 1e3,
            "backend": "vllm_graph",
        }  # fmt: skip


def _parquet(path: Path, rows: Iterator[Row]) -> Path:
    pa, pq = (extra(name, "a table for AIConfigurator", "pyarrow") for name in ("pyarrow", "pyarrow.parquet"))
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), out)
    replace(path, out.getvalue())
    return path
