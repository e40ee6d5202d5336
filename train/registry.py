"""Every net by name: which module of `train/nets` makes its rows, and the plans it is trained with."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from train.pack import pack
from train.rows import Rows
from train.small import nets as small_nets
from train.small import packed

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


def plan(net: str, kind: str = "net") -> dict[str, Any]:
    """The plan of a net, `kind` being `net` or `ceiling`: its own file, else its module's, over the common one."""
    plans = [PLANS / f"{kind}.json", PLANS / f"{LARGE.get(net, net)}.{kind}.json", PLANS / f"{net}.{kind}.json"]
    merged: dict[str, Any] = {}
    for file in dict.fromkeys(plans):
        if file.exists():
            merged |= json.loads(file.read_text(encoding="utf-8"))
    return merged
