"""Held-out rows of the public corpus as cases. The reader is the training code's: it needs a checkout and [train]."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile, MissingExtra, PipewaveError
from pipewave.evaluate.folds import HELD_OUT, fold
from pipewave.gpus import find

Row = dict[str, Any]
FAMILIES = ("gemm", "attention", "mla", "fused_moe", "rmsnorm", "silu_and_mul", "collectives")
ACTIVATIONS = {"mxfp4_mxfp8": ("mxfp4", ":mxfp8"), "int4_fp8": ("int4", ":w4afp8")}
CHECKOUT = Path(__file__).resolve().parents[3]


def rows(data: Path, families: tuple[str, ...] = FAMILIES) -> Iterator[Row]:
    """Rows of fold 0: newest version of each framework on each GPU, unflagged, capped, none of our own.

    MissingExtra without pandas or a checkout, BadFile where no corpus lies at `data`.
    """
    if not data.is_dir():
        raise BadFile(f"no corpus at {data}", field="data")
    corpus = _reader()
    for family in families:
        frame = corpus.newest(corpus.load(family, data))
        groups = frame["group"].astype(str)
        held = groups.map({name: fold(name) for name in groups.unique()}) == HELD_OUT
        for given in frame[held & (frame["source"] != "h200")].to_dict("records"):
            row = _row(family, given)
            if row is not None:
                yield row


def _reader() -> Any:
    try:
        if (CHECKOUT / "train" / "corpus").is_dir() and str(CHECKOUT) not in sys.path:
            sys.path.append(str(CHECKOUT))  # an editable install knows the package only
        return import_module("train.corpus")
    except ImportError as error:
        needs = "a checkout of the repository and pip install 'pipewave[train]'"
        raise MissingExtra(f"the public corpus is read with the training code: {needs} ({error})") from error


def _row(family: str, given: Mapping[str, Any]) -> Row | None:
    """The contract's case of one row; None for what the contract does not name (a type, a GPU)."""
    dtype, impl = str(given["dtype"]), str(given["impl"])
    dtype, suffix = ACTIVATIONS.get(dtype, (dtype, ""))
    try:
        gpu = find(str(given["gpu"]))
        gpu.peak_flops(dtype)
    except PipewaveError:
        return None
    impl += suffix
    case = SHAPES[family](given) | {"dtype": dtype, "stack": str(given["stack"]), "impl": impl}
    latency = float(given["latency_us"])
    return {"case": case, "gpu": gpu.name, "protocol": str(given["protocol"]), "impl": impl, "latency_us": latency}


def _plain(kernel: str, *names: str, flags: tuple[str, ...] = ()) -> Callable[[Mapping[str, Any]], Row]:
    def shape(row: Mapping[str, Any]) -> Row:
        sizes = {name: int(row[name]) for name in names}
        return {"kernel": kernel} | sizes | {name: bool(row[name]) for name in flags}

    return shape


def _attention(row: Mapping[str, Any]) -> Row:
    case = _plain("attention", "heads", "kv_heads", "head_dim", flags=("causal", "sinks"))(row) | _lens(row)
    return case | {"window": int(row["window"]) or None, "kv_dtype": str(row["kv_dtype"])}


def _mla(row: Mapping[str, Any]) -> Row:
    return _plain("mla", "heads")(row) | _lens(row) | {"phase": str(row["phase"])}


def _lens(row: Mapping[str, Any]) -> Row:
    batch = int(row["batch"])
    return {"q_lens": [int(row["q_len"])] * batch, "kv_lens": [int(row["kv_len"])] * batch}


def _fused_moe(row: Mapping[str, Any]) -> Row:
    sizes = ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep")
    case = _plain("fused_moe", *sizes, flags=("gated",))(row)
    return case | {"routing": str(row["routing"]), "part": str(row["part"])}


def _collective(row: Mapping[str, Any]) -> Row:
    return _plain(str(row["op"]), "bytes", "world", "nodes")(row)


SHAPES: Mapping[str, Callable[[Mapping[str, Any]], Row]] = {
    "gemm": _plain("gemm", "m", "n", "k", flags=("quantize",)),
    "attention": _attention,
    "mla": _mla,
    "fused_moe": _fused_moe,
    "rmsnorm": _plain("rmsnorm", "rows", "dim", flags=("fused_add",)),
    "silu_and_mul": _plain("silu_and_mul", "rows", "dim"),
    "collectives": _collective,
}
