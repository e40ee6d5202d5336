"""Every net by name: which module of `train/nets` makes its rows, and the plans it is trained with."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from train.export import software
from train.pack import pack
from train.rows import Rows
from train.small import nets as small_nets
from train.small import packed
from train.splits import DRAWS, by_name, expand

LARGE = {
    "gemm": "gemm",
    "gemm_fp8": "gemm",
    "gemm_block": "gemm",
    "gemm_fp4": "gemm",
    "attention_prefill": "attention",
    "attention_decode": "attention",
    "mla_context": "mla",
    "mla_generation": "mla",
    "fused_moe": "fused_moe",
}
PLANS = Path(__file__).with_name("plans")


def names() -> tuple[str, ...]:
    """All nets, the large ones first."""
    return (*LARGE, *small_nets())


def build(net: str, data: Path | None = None) -> Rows:
    """The rows a net learns from. KeyError for an unknown net."""
    if net in small_nets():
        return packed(net, small_nets()[net], data)[1]
    module = import_module(f"train.nets.{LARGE[net]}")
    if hasattr(module, "build"):
        built: Rows = module.build(net, data) if LARGE[net] == "gemm" else module.build(data)
        return built
    frame = module.rows(net, data)
    return pack(frame, *module.features(net, frame))


def plan(net: str, kind: str, rows: Rows) -> dict[str, Any]:
    """The plan of a net, `kind` being `net` or `ceiling`: its own file over its module's over the common one.

    Splits that these rows do not allow are left out; `few:graph` stands for the GPUs with rows under that protocol.
    """
    plans = [PLANS / f"{kind}.json", PLANS / f"{LARGE.get(net, net)}.{kind}.json", PLANS / f"{net}.{kind}.json"]
    merged: dict[str, Any] = {}
    for file in dict.fromkeys(plans):
        if file.exists():
            merged |= json.loads(file.read_text(encoding="utf-8"))
    return merged | {"splits": splits(merged["splits"], rows)}


def extra(net: str, rows: Rows) -> dict[str, Any]:
    """What a net's card says beyond what its rows show."""
    if net not in small_nets():
        return {}
    known = software(rows.take(by_name("ship", rows).train))
    found: dict[str, Any] = import_module(small_nets()[net].module).card(net, dict(known))
    return found


def splits(patterns: list[str], rows: Rows) -> list[str]:
    """Names of the splits among `patterns` that hold out any of these rows."""
    graph = rows.columns["protocol"].text() == "graph"
    gpus = sorted(set(rows.columns["gpu"].text()[graph].tolist()))
    few = [f"few:{gpu}:{draw}" for gpu in gpus for draw in range(DRAWS)]
    wanted = [name for pattern in patterns for name in (few if pattern == "few:graph" else [pattern])]
    folds = {f"fold:{number}" for number in np.unique(rows.fold)}
    return [name for name in expand(wanted, rows) if not name.startswith("fold:") or name in folds]
