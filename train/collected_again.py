"""`python -m train.collected_again`: intervals of collectives that hold another day, another card and cold calls.

Collectives are collected anew with each version of a framework or of NCCL. From 4 MiB on, where links decide, versions
of one library differ by what a day, a host and its cards differ by. What 90 % of pairs of collections differ by is the
least half-width of an interval. Cold rows are of one GPU; on others, a cold collective is as wide as one of the graph
protocol, which times the kernels alone too, and as what the two protocols differ by here.

Small messages take other times in each start of a program: calls through NCCL differ by 13 % between two starts minutes
apart on the same two GPUs (`bench.card_noise`).
Our own calls on another day say how much wider cold intervals of the GPU are than its one start says.
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
from pipewave.measure.pack import rows as measured
from pipewave.residual.card import AGAIN, BASES, Interval
from train import corpus
from train.__main__ import ROOT, WEIGHTS
from train.intervals import LEVEL
from train.nets.collective import OPS, started_together

LARGE = 4 << 20  # bytes
FEWEST = 30  # of our own rows that tell what cold calls differ by
CALL = ["gpu", "world", "bytes", "dtype"]
HALVES = ("bf16", "fp16")
ANOTHER_DAY, OWN_GPU = ROOT / "data" / "measured" / "h200" / "repeats" / "another_day", "H200"
COLD = f"{BASES[0]}|cold"


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


def cold_again(net: str, op: str, usual: Interval) -> dict[str, Interval]:
    """The interval of cold calls on our own GPU that holds 90 % of them on another day, in another start."""
    again = [row for row in measured(ANOTHER_DAY / f"{op}.json.gz") if _of(net, op, row["case"])]
    calls = [from_dict(row["case"] | {"stack": row["stack"], "impl": row["impl"]}) for row in again]
    answers = pw.predict(calls, OWN_GPU, protocol="cold")
    error = np.abs(np.log(answers.latency_us / [row["latency_us"] for row in again]))
    scale = (np.log(answers.high_us / answers.latency_us) / usual.multiple) ** (1.0 / usual.power)
    needed = float(np.quantile(error / scale**usual.power, LEVEL))
    return {COLD: Interval(round(max(usual.multiple, needed), 4), usual.power)}


def _of(net: str, op: str, case: Mapping[str, object]) -> bool:
    """Whether a net answers a call."""
    return op != "all_reduce" or regime(case) == net


def _answered_from_graph(net: str, op: str, usual: Interval) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Absolute log error and error scale of our own cold rows of a net, asked under the graph protocol."""
    frame = started_together(corpus.training_rows("collectives"))
    frame = frame[corpus.is_own(frame) & (frame["protocol"] == "cold") & (frame["op"] == op)]
    cases = frame[["bytes", "world", "nodes"]].to_dict("records")
    frame = frame[[_of(net, op, case) for case in cases]]
    rows = frame[["bytes", "world", "impl"]].to_dict("records")
    calls = [from_dict({"kernel": op, **row, "bytes": int(row["bytes"]), "world": int(row["world"])}) for row in rows]
    answers = pw.predict(calls, str(frame["gpu"].iloc[0]), protocol="graph") if calls else []
    half = np.array([np.log(one.high_us / one.latency_us) for one in answers])
    log = np.log(np.array([one.latency_us for one in answers]))
    return np.abs(log - np.log(frame["latency_us"].to_numpy())), (half / usual.multiple) ** (1.0 / usual.power)


def update(path: Path, op: str, least: float | None) -> str:
    """Give a card these intervals; what they are. `least` None: no two collections tell."""
    card = json.loads(path.read_text(encoding="utf-8"))
    known = {name: Interval(**one) for name, one in card["intervals"].items()}
    apart = {} if least is None else cold_apart(path.stem, op, known)
    added = apart | cold_again(path.stem, op, known[BASES[0]])
    added |= {} if least is None else {AGAIN: Interval(round(least, 4), 0.0)}
    card["intervals"] |= {name: asdict(one) for name, one in added.items()}
    path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return f"{path.stem} {added}"


def without(folder: Path, nets: Iterable[str]) -> None:
    """The nets in this folder, as if none of these intervals had been settled."""
    for net in nets:
        card = json.loads((WEIGHTS / f"{net}.json").read_text(encoding="utf-8"))
        for interval in (AGAIN, COLD):
            card["intervals"].pop(interval, None)
        (folder / f"{net}.json").write_text(json.dumps(card), encoding="utf-8")
        (folder / f"{net}.safetensors").symlink_to((WEIGHTS / f"{net}.safetensors").resolve())


def main() -> int:
    with TemporaryDirectory() as name:
        without(Path(name), (*OPS, SMALL_ALL_REDUCE))
        os.environ["PIPEWAVE_WEIGHTS"] = name
        for op in OPS:
            found = differences(collections(op))
            nets = (op, SMALL_ALL_REDUCE) if op == "all_reduce" else (op,)
            least = float(np.quantile(found, LEVEL)) if len(found) else None
            for net in nets:
                print(f"{len(found):,} pairs;", update(WEIGHTS / f"{net}.json", op, least))
    return 0


if __name__ == "__main__":
    sys.exit(main())
