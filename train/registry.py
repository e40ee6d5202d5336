"""Every net by name: which module of `train/nets` makes its rows, and the plans it is trained with."""

from __future__ import annotations

import json
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from pipewave.gpus import find
from pipewave.nets.nets import load
from pipewave.nets.weights_metadata import WeightsMetadata, metadata_of
from pipewave.physics.demand import Array
from pipewave.software.stacks import framework
from train.export import defaults, trained_software
from train.pack import balanced, pack
from train.rows import Rows
from train.small import nets as small_nets
from train.splits import DRAWS, FEW, expand, meet

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
TABLES: dict[str, tuple[str, ...]] = {
    "gemm": ("gemm",),
    "attention": ("context_attention", "generation_attention", "encoder_attention"),
    "mla": ("context_mla", "generation_mla"),
    "fused_moe": ("moe",),
    "norm": (),
    "elementwise": ("scale_matrix",),
    "collective": ("nccl", "custom_allreduce"),
    "recurrent": ("gdn", "kda", "mamba2"),
    "expert_exchange": (
        *("moe_a2a", "wideep_deepep_normal", "wideep_deepep_ll", "trtllm_alltoall", "dsv4_megamoe_module"),
    ),
    "layer_parts": ("mhc_module", "mla_bmm"),
}  # by the module of a net's rows
PLANS = Path(__file__).with_name("plans")
FEWEST = 10 * FEW  # rows of a GPU and type of which a few are drawn


def names() -> tuple[str, ...]:
    """All nets, the large ones first."""
    return (*LARGE, *small_nets())


def build(net: str, data: Path | None = None) -> Rows:
    """The rows a net learns from. KeyError for an unknown net."""
    return rows_of(net, frame_of(net, data))


def rows_of(net: str, frame: pd.DataFrame) -> Rows:
    """A frame's rows with features, base estimate and weights."""
    module, (features, base_us) = _module(net), features_of(net, frame)
    if hasattr(module, "packed"):
        found: Rows = module.packed(frame, features, base_us)
        return found
    weight = module.weight(net, frame, balanced(frame)) if hasattr(module, "weight") else None
    return pack(frame, features, base_us, weight)


def plain(net: str, frame: pd.DataFrame) -> Rows:
    """The rows a ceiling learns from: those of the net's frame that count, their features as of the default software.

    So nothing in features or base estimate tells implementations apart: what is left between them is how well they
    were made.
    """
    frame = frame[frame["counted"]].reset_index(drop=True) if "counted" in frame else frame
    card = metadata_of(defaults(bare_of(frame)))
    return pack(frame, *features_of(net, as_default(frame, card)))


def as_default(frame: pd.DataFrame, card: WeightsMetadata) -> pd.DataFrame:
    """The frame with each row's software replaced by what its GPU, type and protocol use by default."""
    keys = frame[["protocol", "gpu", "dtype"]].astype(str)
    known = {
        (protocol, gpu, dtype): card.plain(protocol, find(gpu).compute_capability, dtype)
        for protocol, gpu, dtype in keys.drop_duplicates().itertuples(index=False)
    }
    found = [known[key] for key in keys.itertuples(index=False, name=None)]
    stack, impl = (pd.Series(text, index=frame.index, dtype=object) for text in zip(*found, strict=True))
    changed = frame.assign(stack=stack, impl=impl, framework=stack.map(framework))
    return changed.assign(config=None) if "config" in changed else changed


def frame_of(net: str, data: Path | None) -> pd.DataFrame:
    """A net's rows in contract columns."""
    module = _module(net)
    frame: pd.DataFrame = module.rows(data) if net == "fused_moe" else module.rows(net, data)
    return frame


def tables_of(net: str) -> tuple[str, ...]:
    """Names of the public tables that a net's rows come from."""
    module = _module(net)
    if hasattr(module, "SOURCES"):
        return tuple(source.table for source in module.SOURCES[net])
    return TABLES[module.__name__.rpartition(".")[2]]


def features_of(net: str, frame: pd.DataFrame) -> tuple[dict[str, Array], Array]:
    """Features by name and the base estimate in µs of such a frame."""
    module = _module(net)
    named = LARGE.get(net) in ("gemm", "fused_moe")
    found: tuple[dict[str, Array], Array] = module.features(frame) if named else module.features(net, frame)
    return found


def _module(net: str) -> ModuleType:
    small = small_nets()
    return import_module(small[net].module if net in small else f"train.nets.{LARGE[net]}")


def bare_of(frame: pd.DataFrame) -> Rows:
    """A frame's rows without features: what software they ran, and which of them are held out."""
    return pack(frame, {"none": np.zeros(len(frame))}, np.ones(len(frame)))


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


def further(net: str, rows: Rows, card: Path) -> dict[str, Any]:
    """The plan by which shipped weights are trained further: that of the net, but for `plans/versions.json` and
    `plans/<net>.versions.json`.
    """
    own: dict[str, Any] = {}
    for file in (PLANS / "versions.json", PLANS / f"{net}.versions.json"):
        own |= json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    members = len(load(card).net.weights[0])
    return plan(net, "net", rows) | own | {"seeds": members, "splits": expand(own["splits"], rows)}


def unseen(net: str, rows: Rows, card: Path) -> dict[str, Any]:
    """The plan of members that see what the weights of a card see, but not a GPU or an architecture at a time, or but a
    few rows of one.
    """
    whole = plan(net, "net", rows)
    without = [name for name in whole["splits"] if name.startswith(("logo:", "lofo:", "few:"))]
    return whole | {"splits": without, "features": list(load(card).net.features)}


def extra(net: str, rows: Rows) -> dict[str, Any]:
    """What a net's card says beyond what its rows show."""
    module = import_module(small_nets()[net].module if net in small_nets() else f"train.nets.{LARGE[net]}")
    if not hasattr(module, "card"):
        return {}
    usual = rows.take(module.usual(rows)) if hasattr(module, "usual") else rows
    found: dict[str, Any] = module.card(net, trained_software(usual))
    return found


def splits(patterns: list[str], rows: Rows) -> list[str]:
    """Names of the splits among `patterns` that hold out any of these rows."""
    folds = {f"fold:{number}" for number in np.unique(rows.fold)}
    names = [name for pattern in patterns for name in _names(pattern, rows)]
    return [name for name in names if not name.startswith("fold:") or name in folds]


def _names(pattern: str, rows: Rows) -> list[str]:
    """Splits of a pattern.

    `few:graph` means each GPU and type with enough rows under that protocol, drawn from these alone; what follows a
    plus are conditions that the drawn rows meet besides.
    """
    whole, _, conditions = pattern.partition("+")
    return _few(rows, conditions) if whole == "few:graph" else expand([pattern], rows)


def _few(rows: Rows, conditions: str) -> list[str]:
    wanted = ",".join(filter(None, ["protocol=graph", conditions]))
    rows = rows.take(meet(rows, wanted.split(",")))
    pairs = Counter(zip(*(rows.columns[name].text().tolist() for name in ("gpu", "dtype")), strict=True))
    enough = sorted(pair for pair, count in pairs.items() if count >= FEWEST)
    return [f"few:{gpu}:{draw}+dtype={dtype},{wanted}" for gpu, dtype in enough for draw in range(DRAWS)]
