"""Collectives of all sources, with `bytes` as nccl-tests counts size and `nodes` hosts.

AIConfigurator counts elements; its nccl-tests size of an all-gather is the gathered output (8 A100 reach 205 GB/s of
bus bandwidth that way, 1,640 GB/s otherwise). Vidur's and PipeWeave's first launches are slow, hence medians.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from corpus import aiconfigurator
from corpus.frame import DTYPES, Table

ELEMENT_BYTES = {"half": 2, "int8": 1, "bfloat16": 2}


def nccl(file: Path, data_dir: Path) -> pd.DataFrame:
    """nccl-tests, out of place, warm."""
    rows = aiconfigurator.raw(file, data_dir)
    return rows.assign(
        op=rows["op_name"].replace({"alltoall": "all_to_all"}),
        bytes=rows["message_size"] * rows["nccl_dtype"].map(ELEMENT_BYTES),
        world=rows["num_gpus"],
        dtype=rows["nccl_dtype"].replace(DTYPES),
        impl="nccl",
    )


def custom(file: Path, data_dir: Path) -> pd.DataFrame:
    """Frameworks' own all-reduce; eager rows hold host launch time and are flagged."""
    rows = aiconfigurator.raw(file, data_dir)
    return rows.assign(
        op="all_reduce",
        bytes=rows["message_size"] * rows["allreduce_dtype"].map(ELEMENT_BYTES),
        world=rows["num_gpus"],
        dtype=rows["allreduce_dtype"].replace(DTYPES),
        impl="custom",
        flagged=rows["flagged"] | rows["kernel_source"].str.endswith("_eager"),
    )


def profiled(file: Path, gpu: str, fabric: str, software: dict[str, str]) -> pd.DataFrame:
    """The profiler format Vidur and PipeWeave share: ms over a few launches, size in bytes."""
    rows = pd.read_parquet(file)
    time = {name: rows[f"time_stats.{file.stem}.{name}"] for name in ("mean", "median", "std")}
    fixed = {"impl": "nccl", "kernel_source": "nccl", "dtype": "fp16", "protocol": "profiler_warm", **software}
    return rows.assign(
        op=file.stem,
        bytes=rows["size"],
        world=rows["num_workers"],
        nodes=rows["num_workers"] // rows["devices_per_node"],
        fabric=fabric,
        raw_gpu=gpu,
        latency_us=time["median"] * 1e3,
        noise=time["std"] / time["mean"],
        **fixed,
    )


def vidur(file: Path, _: Path) -> pd.DataFrame:
    """Machines named `a100_dgx`, `a40_pairwise_nvlink`: GPU, then how its GPUs are linked."""
    gpu, fabric = file.parent.name.split("_", 1)
    return profiled(file, gpu, fabric, {"framework": "sarathi", "version": "2024.11"})


def pipeweave(file: Path, _: Path) -> pd.DataFrame:
    """One host of each GPU."""
    return profiled(file, file.parent.name, "node", {"framework": "torch", "version": "2.8.0"})


TABLES = (
    Table("aiconfigurator", "collectives", ("aiconfigurator/*/comm/*/*/nccl_perf.parquet",), nccl),
    Table("aiconfigurator", "collectives", ("aiconfigurator/*/comm/*/*/custom_allreduce_perf.parquet",), custom),
    Table("vidur", "collectives", ("vidur/profiling/network/*/*.parquet",), vidur),
    Table("pipeweave", "collectives", ("pipeweave/dataset/collective/*/*.parquet",), pipeweave),
)
