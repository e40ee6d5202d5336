"""Our own rows under `data/measured/h200`: one JSON object a line, a contract case with `latency_us` and its protocol.

Attention rows become uniform columns when every request of the batch is alike; ragged ones are for the replay tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from train.corpus.frame import Table

NAME = "h200"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def _uniform(case: Mapping[str, Any]) -> dict[str, Any] | None:
    q, kv = set(case["q_lens"]), set(case["kv_lens"])
    if len(q) != 1 or len(kv) != 1:
        return None
    q_len, kv_len = q.pop(), kv.pop()
    phase = case.get("phase") or ("decode" if q_len == 1 else "prefill")
    shape = {"batch": len(case["q_lens"]), "q_len": q_len, "kv_len": kv_len, "phase": phase}
    return {**case, **shape, "window": case.get("window") or 0, "kv_dtype": case.get("kv_dtype") or case["dtype"]}


def _rows(lines: Iterable[str], kernels: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for line in lines:
        case = json.loads(line)
        if case.get("kernel") in kernels and "error" not in case:
            row = _uniform(case) if "q_lens" in case else case
            if row is not None:
                framework, _, version = str(row.get("stack", "vllm-0.22.1")).rpartition("-")
                yield {**row, "framework": framework, "version": version, "raw_gpu": row.get("gpu", NAME)}


def reader(*kernels: str) -> Callable[[Path, Path], pd.DataFrame]:
    """Reader of the cases of these kernels."""

    def read(file: Path, _: Path) -> pd.DataFrame:
        with file.open(encoding="utf-8") as lines:
            rows = pd.DataFrame(list(_rows(lines, kernels)))
        rows = rows.reindex(columns=rows.columns.union(["kernel", "dtype", "impl", "protocol", "latency_us"]))
        return rows.assign(op=rows["kernel"]).fillna({"dtype": "bf16", "impl": "", "protocol": "cold"})

    return read


def _table(family: str, *kernels: str) -> Table:
    return Table(NAME, family, ("data/measured/h200/*.jsonl",), reader(*(kernels or (family,))), own=True)


TABLES = (
    *(_table(family) for family in ("gemm", "attention", "mla", "fused_moe", "rmsnorm", "silu_and_mul")),
    _table("collectives", *COLLECTIVES),
)
