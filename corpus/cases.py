"""Rows of the corpus as cases of the public contract, and which of them shipped weights never saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corpus.cache import load
from corpus.select import HELD_OUT, fold, is_own, newest
from pipewave.errors import BadFile, PipewaveError
from pipewave.gpus import find
from pipewave.kernels import group_of

Row = dict[str, Any]
# Columns of each corpus table that are fields of a case under the same name: numbers, flags and words.
NUMBERS = {
    "gemm": ("m", "n", "k"),
    "attention": ("heads", "kv_heads", "head_dim"),
    "mla": ("heads",),
    "fused_moe": ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep"),
    "rmsnorm": ("rows", "dim"),
    "silu_and_mul": ("rows", "dim"),
    "collectives": ("bytes", "world", "nodes"),
}
FLAGS = {
    "gemm": ("quantize",), "attention": ("causal", "sinks"), "fused_moe": ("gated",), "rmsnorm": ("fused_add",),
}  # fmt: skip
WORDS = {"attention": ("kv_dtype",), "mla": ("phase", "kv_dtype"), "fused_moe": ("routing", "part")}
ACTIVATIONS = {"mxfp4_mxfp8": ("mxfp4", ":mxfp8"), "int4_fp8": ("int4", ":w4afp8")}


def held_out(case: Mapping[str, Any]) -> bool:
    """Whether shipped weights never saw any row of the case's group."""
    return fold(group_of(case)) == HELD_OUT


def held_out_rows(data: Path, tables: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of fold 0: newest version of each framework on each GPU, unflagged, capped, none of our own.

    `tables`: corpus tables, by default all whose rows are cases. BadFile where no corpus lies at `data`.
    """
    if not data.is_dir():
        raise BadFile(f"no corpus at {data}", field="data")
    for table in tables or NUMBERS:
        frame = newest(load(table, data))
        groups = frame["group"].astype(str)
        held = groups.map({name: fold(name) for name in groups.unique()}) == HELD_OUT
        for given in frame[held & ~is_own(frame)].to_dict("records"):
            row = case_row(table, given)
            if row is not None:
                yield row


def case_row(table: str, given: Mapping[str, Any]) -> Row | None:
    """The contract's case of a row of a corpus table; None for what the contract does not name."""
    dtype, suffix = ACTIVATIONS.get(str(given["dtype"]), (str(given["dtype"]), ""))
    try:
        gpu = find(str(given["gpu"]))
        gpu.peak_flops(dtype)
    except PipewaveError:  # a type or a GPU that the contract does not know
        return None
    impl = str(given["impl"]) + suffix
    case = _sizes(table, given) | {"dtype": dtype, "stack": str(given["stack"]), "impl": impl}
    latency = float(given["latency_us"])
    return {"case": case, "gpu": gpu.name, "protocol": str(given["protocol"]), "impl": impl, "latency_us": latency}


def _sizes(table: str, given: Mapping[str, Any]) -> Row:
    """The kernel and what it is asked for; requests of a table's row are all alike."""
    case: Row = {"kernel": str(given["op"]) if table == "collectives" else table}
    for kind, names in ((int, NUMBERS), (bool, FLAGS), (str, WORDS)):
        case |= {name: kind(given[name]) for name in names.get(table, ())}
    if table in ("attention", "mla"):
        batch = int(given["batch"])
        case |= {"q_lens": [int(given["q_len"])] * batch, "kv_lens": [int(given["kv_len"])] * batch}
    if table == "attention":
        case["window"] = int(given["window"]) or None
    return case
