"""`python -m train.collected_again`: intervals of collectives that hold another day, another card and cold calls.

Collectives are collected anew with each version of a framework or of NCCL. From 4 MiB on, where links decide, versions
of one library differ by what a day, a host and its cards differ by. What 90 % of pairs of collections differ by is the
least half-width of an interval. Cold rows are of one GPU; on others, a cold collective is as wide as one of the graph
protocol, which times the kernels alone too, and as what the two protocols differ by here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import pipewave as pw
from pipewave.calls.families import from_dict
from pipewave.kernels.collective.analyse import SMALL_ALL_REDUCE, regime
from pipewave.residual.card import AGAIN, BASES, Interval
from train import corpus
from train.__main__ import WEIGHTS
from train.intervals import LEVEL
from train.nets.collective import OPS, started_together

LARGE = 4 << 20  # bytes
FEWEST = 30  # of our own rows that tell what cold calls differ by
CALL = ["gpu", "world", "bytes", "dtype"]
HALVES = ("bf16", "fp16")


def collections(op: str) -> pd.DataFrame:
    """NCCL's rows of large calls of an operation under the graph protocol in 16 bits, of every collection."""
    frame = corpus.load("collectives", None, sources=("aiconfigurator",))
    large = (frame["bytes"] >= LARGE) & frame["dtype"].isin(HALVES) & (frame["op"] == op)
    return frame[large & (frame["impl"] == "nccl") & ~frame["flagged"]]


def differences(frame: pd.DataFrame) -> NDArray[np.float64]:
    """Absolute log ratios of all pairs of collections of a call, the median of a version's repeats counting once."""
    each = np.log(frame["latency_us"]).groupby([frame[name] for name in [*CALL, "stack"]], observed=True).median()
    pairs = (combinations(found, 2) for _, found in each.groupby(CALL, observed=True))
    return np.array([abs(one - two) for of_call in pairs for one, two in of_call])


def cold_apart(net: str, op: str, known: Mapping[str, Interval]) -> dict[str, Interval]:
    """Intervals of cold calls on GPUs without cold rows: those of the graph protocol there, as much wider as 90 % of
    our own cold rows need that are answered from the graph protocol's."""
    error, scale = _answered_from_graph(net, op, known[f"{BASES[0]}|graph"])
    found = {}
    for basis in BASES[1:]:
        graph = known.get(f"{basis}|graph")
        if graph is not None and len(error) >= FEWEST:
            needed = float(np.quantile(error / scale**graph.power, LEVEL))
            found[f"{basis}|cold"] = Interval(round(max(graph.multiple, needed), 4), graph.power)
    return found


def _answered_from_graph(net: str, op: str, usual: Interval) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Absolute log error and error scale of our own cold rows of a net, asked under the graph protocol."""
    frame = started_together(corpus.training_rows("collectives"))
    frame = frame[corpus.is_own(frame) & (frame["protocol"] == "cold") & (frame["op"] == op)]
    cases = frame[["bytes", "world", "nodes"]].to_dict("records")
    frame = frame[[regime(case) == net or op != "all_reduce" for case in cases]]
    rows = frame[["bytes", "world", "impl"]].to_dict("records")
    calls = [from_dict({"kernel": op, **row, "bytes": int(row["bytes"]), "world": int(row["world"])}) for row in rows]
    answers = pw.predict(calls, str(frame["gpu"].iloc[0]), protocol="graph") if calls else []
    half = np.array([np.log(one.high_us / one.latency_us) for one in answers])
    log = np.log(np.array([one.latency_us for one in answers]))
    return np.abs(log - np.log(frame["latency_us"].to_numpy())), (half / usual.multiple) ** (1.0 / usual.power)


def update(path: Path, op: str, least: float) -> str:
    """Give a card these intervals; what they are."""
    card = json.loads(path.read_text(encoding="utf-8"))
    known = {name: Interval(**one) for name, one in card["intervals"].items()}
    added = {AGAIN: Interval(round(least, 4), 0.0)} | cold_apart(path.stem, op, known)
    card["intervals"] |= {name: asdict(one) for name, one in added.items()}
    path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return f"{path.stem} {added}"


def without(folder: Path, nets: Iterable[str]) -> None:
    """The nets in this folder, as if none of these intervals had been settled."""
    for net in nets:
        card = json.loads((WEIGHTS / f"{net}.json").read_text(encoding="utf-8"))
        card["intervals"].pop(AGAIN, None)
        (folder / f"{net}.json").write_text(json.dumps(card), encoding="utf-8")
        (folder / f"{net}.safetensors").symlink_to((WEIGHTS / f"{net}.safetensors").resolve())


def main() -> int:
    with TemporaryDirectory() as name:
        without(Path(name), (*OPS, SMALL_ALL_REDUCE))
        os.environ["PIPEWAVE_WEIGHTS"] = name
        for op in OPS:
            found = differences(collections(op))
            nets = (op, SMALL_ALL_REDUCE) if op == "all_reduce" else (op,)
            for net in nets if len(found) else ():
                print(f"{len(found):,} pairs;", update(WEIGHTS / f"{net}.json", op, float(np.quantile(found, LEVEL))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
