"""Our own rows under `data/measured/<card>`, as `pipewave measure` packs them: one file a kernel, one folder a card.

Attention and MLA rows become uniform columns where every request of the batch is alike; ragged batches, and the plans
of one family in folders of their own, stay out of these tables (`files` names all files).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from corpus.frame import DEFAULTS, SHAPES, Table, gpu_name, repository
from pipewave.measure.row_files import clock_mhz
from pipewave.measure.row_files import rows as measured

FOLDER = repository() / "data" / "measured"
REPLAYS = "replays"  # calls of other rows of the card, under `graph`
# Plans of one family, in folders of their own. Not `kind_kernels`: physics alone answers its attention kernel, and its
# MXFP4 experts, two layers of one model, would stand for every layer of other frameworks (`docs/train.md`).
MORE = {"attention": ("ragged", "mixed", REPLAYS), "fused_moe": ("experts",)}
CARDS = tuple(sorted({file.parent.name for file in FOLDER.glob("*/*.json.gz")}))  # each a source by its own name
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def _uniform(case: Mapping[str, Any]) -> dict[str, Any] | None:
    """A batch of equal requests as columns; None for a ragged one."""
    q_lens, kv_lens = set(case["q_lens"]), set(case["kv_lens"])
    if len(q_lens) != 1 or len(kv_lens) != 1:
        return None
    q_len, kv_len = q_lens.pop(), kv_lens.pop()
    shape = {"batch": len(case["q_lens"]), "q_len": q_len, "kv_len": kv_len}
    return {"phase": "decode" if q_len == 1 else "prefill", "kv_dtype": case.get("dtype", "bf16"), **case, **shape}


def _flat(file: Path) -> Iterator[dict[str, Any]]:
    for row in measured(file):
        case = _uniform(row["case"]) if "q_lens" in row["case"] else dict(row["case"])
        if case is not None:
            framework, _, version = str(row["stack"]).partition("-")
            routing = case.get("routing", "random")
            software = {"framework": framework, "version": version, "impl": row["impl"], "protocol": row["protocol"]}
            row_wide = {"op": case["kernel"], "kernel_source": row["impl"], "latency_us": row["latency_us"]}
            row_wide["routing"] = routing if isinstance(routing, str) else json.dumps(routing)
            row_wide["noise"] = (row["max_us"] - row["min_us"]) / row["latency_us"] / 2
            row_wide["sm_clock_mhz"] = clock_mhz(row) or 0.0
            row_wide["flagged"] = row.get("flush", "write") != "write"
            yield {"dtype": "bf16"} | case | software | row_wide


def reader(family: str, card: str) -> Callable[[Path, Path], pd.DataFrame]:
    """Reader of packed files of a card; rows flushed another way are flagged.

    `throttled` rows stay: nine in ten carry the mark (the power cap moves the clock under any load), and they spread
    no more than the others.
    """

    def read(file: Path, _: Path) -> pd.DataFrame:
        rows = pd.DataFrame(list(_flat(file)))
        defaults = {name: DEFAULTS[name] for name in SHAPES[family] if name in rows and name in DEFAULTS}
        filled = {name: rows[name].where(rows[name].notna(), value) for name, value in defaults.items()}
        return rows.assign(**filled, raw_gpu=card)

    return read


def files(kernel: str) -> Iterator[tuple[str, str, Path]]:
    """Our files of a kernel: source, name of the GPU, path."""
    for card in CARDS:
        for plan in ("", *MORE.get(kernel, ())):
            file = FOLDER / card / plan / f"{kernel}.json.gz"
            if file.exists():
                yield card, gpu_name(card), file


def _table(card: str, family: str, *kernels: str) -> Table:
    places = (f"data/measured/{card}", f"data/measured/{card}/{REPLAYS}")
    patterns = tuple(f"{place}/{kernel}.json.gz" for place in places for kernel in kernels or (family,))
    return Table(card, family, patterns, reader(family, card), own=True)


FAMILIES = ("gemm", "attention", "mla", "fused_moe", "rmsnorm", "silu_and_mul")
TABLES = tuple(
    table
    for card in CARDS
    for table in (*(_table(card, family) for family in FAMILIES), _table(card, "collectives", *COLLECTIVES))
)
