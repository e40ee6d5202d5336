"""Frames, rows and plans of every net by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipewave.gpus import find
from pipewave.nets.nets import load
from pipewave.nets.weights_metadata import WeightsMetadata, metadata_of
from pipewave.software.stacks import framework
from train.cards import settings
from train.export import defaults, trained_software
from train.net import balanced, nets, pack
from train.rows import Rows
from train.splits import DRAWS, FEW, expand, meet

FEWEST = 10 * FEW  # rows of a GPU and type of which a few are drawn


def rows_of(net: str, frame: pd.DataFrame) -> Rows:
    """A frame's rows with features, base estimate and weights."""
    made = nets()[net]
    features, base_us = made.features(net, frame)
    if made.packed:
        return made.packed(frame, features, base_us)
    return pack(frame, features, base_us, made.weight(frame, balanced(frame)))


def plain(net: str, frame: pd.DataFrame) -> Rows:
    """The rows a ceiling learns from: those of the net's frame that count, their features as of the default software.

    So nothing in features or base estimate tells implementations apart: what is left between them is how well they
    were made.
    """
    frame = frame[frame["counted"]].reset_index(drop=True) if "counted" in frame else frame
    card = metadata_of(defaults(bare_of(frame)))
    return pack(frame, *nets()[net].features(net, as_default(frame, card)))


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


def bare_of(frame: pd.DataFrame) -> Rows:
    """A frame's rows without features: what software they ran, and which of them are held out."""
    return pack(frame, {"none": np.zeros(len(frame))}, np.ones(len(frame)))


def extra(net: str, rows: Rows) -> dict[str, Any]:
    """What a net's card says beyond what its rows show."""
    made = nets()[net]
    usual = rows.take(made.usual(rows)) if made.usual else rows
    return made.card(net, trained_software(usual))


def plan(net: str, kind: str, rows: Rows) -> dict[str, Any]:
    """The plan of a net, `kind` being `net` or `ceiling`: its own file over its module's over the common one.

    Splits that these rows do not allow are left out; `few:graph` stands for the GPUs with rows under that protocol.
    """
    merged = settings(kind, f"{nets()[net].plans or net}.{kind}", f"{net}.{kind}")
    return merged | {"splits": splits(merged["splits"], rows)}


def further(net: str, rows: Rows, card: Path) -> dict[str, Any]:
    """The plan by which shipped weights are trained further: that of the net, but for `plans/versions.json` and
    `plans/<net>.versions.json`.
    """
    own = settings("versions", f"{net}.versions")
    members = len(load(card).net.weights[0])
    return plan(net, "net", rows) | own | {"seeds": members, "splits": expand(own["splits"], rows)}


def unseen(net: str, rows: Rows, card: Path) -> dict[str, Any]:
    """The plan of members that see what the weights of a card see, but not a GPU or an architecture at a time, or but a
    few rows of one.
    """
    whole = plan(net, "net", rows)
    without = [name for name in whole["splits"] if name.startswith(("logo:", "lofo:", "few:"))]
    return whole | {"splits": without, "features": list(load(card).net.features)}


def splits(patterns: list[str], rows: Rows) -> list[str]:
    """Names of the splits among `patterns` that hold out any of these rows.

    `few:graph` means each GPU and type with enough rows under that protocol, drawn from these alone; what follows a
    plus are conditions that the drawn rows meet besides.
    """
    names: list[str] = []
    for pattern in patterns:
        whole, _, conditions = pattern.partition("+")
        names += _few(rows, conditions) if whole == "few:graph" else expand([pattern], rows)
    folds = {f"fold:{number}" for number in np.unique(rows.fold)}
    return [name for name in names if not name.startswith("fold:") or name in folds]


def _few(rows: Rows, conditions: str) -> list[str]:
    wanted = ",".join(filter(None, ["protocol=graph", conditions]))
    rows = rows.take(meet(rows, wanted.split(",")))
    pairs = Counter(zip(*(rows.columns[name].text().tolist() for name in ("gpu", "dtype")), strict=True))
    enough = sorted(pair for pair, count in pairs.items() if count >= FEWEST)
    return [f"few:{gpu}:{draw}+dtype={dtype},{wanted}" for gpu, dtype in enough for draw in range(DRAWS)]
