"""`python -m train.collected_again`: intervals of collectives that hold another day, another card and cold calls.

Collectives are collected anew with each version of a framework or of NCCL. From 4 MiB on, where links decide, versions
of one library differ by what a day, a host and its cards differ by. What 90 % of pairs of collections differ by is the
least half-width of an interval. Cold rows are of one GPU; on others, a cold collective is as wide as one of the graph
protocol, which times the kernels alone too, and as what the two protocols differ by here.

Small messages take other times in each start of a program: calls through NCCL differ by 13 % between two starts minutes
apart on the same two GPUs (`docs.tools.card_noise`). Hosts differ, too: by 1 % from 4 MiB on and by 4 to 16 % below,
among the four that we had. Our own calls on other days and hosts settle cold intervals of the GPU: a multiple and a
power of the net's error scale that are expected to hold 90 % of the next host's messages, below and from 4 MiB alike.
What each host has inside the interval of the others is printed. The public collections are of more hosts than ours, so
what they differ by is the least half-width of cold calls, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

import corpus
import pipewave as pw
from pipewave.calls.families import from_dict
from pipewave.calls.fields import Call
from pipewave.kernels.collective.family import SMALL_ALL_REDUCE, regime
from pipewave.measure.row_files import rows as measured
from pipewave.nets.weights_metadata import AGAIN, BASES, Interval
from train.cards import ROOT, WEIGHTS, altered, put, read
from train.intervals import LEVEL
from train.nets.collective import OPS, started_together
from train.two_levels import for_next_unit

LARGE = 4 << 20  # bytes
FEWEST = 30  # of our own rows that tell what cold calls differ by
CALL = ["gpu", "world", "bytes", "dtype"]
HALVES = ("bf16", "fp16")
MEASURED, OWN_GPU = ROOT / "data" / "measured" / "h200", "H200"
# Folders of rows by host; the first host is the one that nets learned from.
HOSTS = (
    ("repeats/another_day", "repeats/another_start"),
    ("another_day",),
    ("another_day/second",),
    ("another_day/fourth", "repeats/other_host"),
)
# Small messages differ more between starts than the net's scale says, large ones less.
POWERS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
COLD = f"{BASES[0]}|cold"
Floats = NDArray[np.float64]


def collections(op: str) -> pd.DataFrame:
    """NCCL's rows of large calls of an operation under the graph protocol in 16 bits, of every collection."""
    frame = corpus.load("collectives", None, sources=("aiconfigurator",))
    large = (frame["bytes"] >= LARGE) & frame["dtype"].isin(HALVES) & (frame["op"] == op)
    return frame[large & (frame["impl"] == "nccl") & ~frame["flagged"]]


def differences(frame: pd.DataFrame) -> Floats:
    """Absolute log ratios of all pairs of collections of a call, the median of a version's repeats counting once."""
    each = np.log(frame["latency_us"]).groupby([frame[name] for name in [*CALL, "stack"]], observed=True).median()
    pairs = (combinations(found, 2) for _, found in each.groupby(CALL, observed=True))
    return np.array([abs(one - two) for of_call in pairs for one, two in of_call])


def cold_apart(net: str, op: str, known: Mapping[str, Interval]) -> dict[str, Interval]:
    """Intervals of cold calls on GPUs without cold rows: those of the graph protocol there, as much wider as 90 % of
    our own cold rows need that are answered from the graph protocol's.
    """
    error, scale = _answered_from_graph(net, op, known[f"{BASES[0]}|graph"])
    found = {}
    for basis in BASES[1:]:
        graph = known.get(f"{basis}|graph")
        if graph is not None and len(error) >= FEWEST:
            needed = float(np.quantile(error / scale**graph.power, LEVEL))
            multiple = max(graph.multiple, needed)
            most = round(graph.most / graph.multiple * multiple, 4) if graph.most and graph.multiple else None
            found[f"{basis}|cold"] = Interval(round(multiple, 4), graph.power, most)
    return found


class Again(NamedTuple):
    """Calls on other days: absolute log errors, error scales of the net, whether from 4 MiB on, hosts; [call] each."""

    error: Floats
    scale: Floats
    large: NDArray[np.bool_]
    host: NDArray[np.int64]

    def of(self, at: NDArray[np.bool_]) -> Again:
        """Some of the calls."""
        return Again(self.error[at], self.scale[at], self.large[at], self.host[at])

    def inside(self, interval: Interval) -> dict[str, float]:
        """Share inside an interval, %, of small and of large messages, where there are any."""
        within = self.error <= interval(self.scale)
        sides = (("small", ~self.large), ("large", self.large))
        return {name: round(100.0 * float(within[at].mean()), 1) for name, at in sides if at.any()}


def cold_again(net: str, op: str, usual: Interval) -> dict[str, Interval]:
    """The interval of cold calls on our own GPU that is expected to hold 90 % of them on the next host."""
    parts = [_again(MEASURED / folder / f"{op}.json.gz", net, op, usual, host)
             for host, folders in enumerate(HOSTS) for folder in folders]  # fmt: skip
    every = Again(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    for host in np.unique(every.host):
        others = settled(every.of(every.host != host))
        own = every.of(every.host == host).inside(others)
        print(f"{net}: host {host} is inside the interval of the others {own} %")
    return {COLD: settled(every)}


def settled(found: Again) -> Interval:
    """The interval of the best interval score, small and large messages counting alike, that holds 90 % of both."""
    sides = [found.large == side for side in np.unique(found.large)]
    tried = [_holding(found, sides, power) for power in POWERS]
    return min(tried, key=lambda interval: _score(found, sides, interval))


def _holding(found: Again, sides: Sequence[NDArray[np.bool_]], power: float) -> Interval:
    """The least multiple of a power of the scale that is expected to hold 90 % of each side of the next host."""
    ratio = found.error / found.scale**power
    multiple = max(for_next_unit(ratio[at], found.host[at], np.ones(at.sum()), LEVEL) for at in sides)
    return Interval(round(multiple, 4), power, round(multiple * float(found.scale.max()) ** power, 4))


def _score(found: Again, sides: Sequence[NDArray[np.bool_]], interval: Interval) -> float:
    """Mean interval score of the sides (Gneiting & Raftery 2007, eq. 43)."""
    half = interval(found.scale)
    each = half + np.maximum(found.error - half, 0.0) / (1.0 - LEVEL)
    return float(np.mean([each[at].mean() for at in sides]))


def _again(file: Path, net: str, op: str, usual: Interval, host: int) -> Again:
    """What a file's calls of a net err by, and the net's error scales, from its half-widths at the interval `usual`."""
    again = [row for row in measured(file) if _of(net, op, row["case"])]
    calls = [from_dict(row["case"] | {"stack": row["stack"], "impl": row["impl"]}) for row in again]
    error, scale = _errors(calls, "cold", [row["latency_us"] for row in again], usual)
    large = np.array([row["case"]["bytes"] >= LARGE for row in again])
    return Again(error, scale, large, np.full(len(again), host))


def _of(net: str, op: str, case: Mapping[str, object]) -> bool:
    """Whether a net answers a call."""
    return op != "all_reduce" or regime(case) == net


def _answered_from_graph(net: str, op: str, usual: Interval) -> tuple[Floats, Floats]:
    """Absolute log error and error scale of our own cold rows of a net, asked under the graph protocol."""
    frame = started_together(corpus.training_rows("collectives"))
    frame = frame[corpus.is_own(frame) & (frame["protocol"] == "cold") & (frame["op"] == op)]
    cases = frame[["bytes", "world", "nodes"]].to_dict("records")
    frame = frame[[_of(net, op, case) for case in cases]]
    rows = frame[["bytes", "world", "impl"]].to_dict("records")
    calls = [from_dict({"kernel": op, **row, "bytes": int(row["bytes"]), "world": int(row["world"])}) for row in rows]
    return _errors(calls, "graph", frame["latency_us"].to_numpy(), usual) if calls else (np.zeros(0), np.zeros(0))


def _errors(calls: Sequence[Call], protocol: str, took_us: ArrayLike, usual: Interval) -> tuple[Floats, Floats]:
    """Absolute log errors, and error scales of the net from half-widths at the interval `usual`."""
    answers = pw.predict(calls, OWN_GPU, protocol=protocol)
    scale = (np.log(answers.high_us / answers.latency_us) / usual.multiple) ** (1.0 / usual.power)
    return np.abs(np.log(answers.latency_us / np.asarray(took_us))), scale


def update(path: Path, op: str, least: float | None) -> str:
    """Give a card these intervals; what they are. `least` None: no two collections tell."""
    known = {name: Interval(**one) for name, one in read(path)["intervals"].items()}
    apart = {} if least is None else cold_apart(path.stem, op, known)
    again = {} if least is None else {AGAIN: Interval(round(least, 4), 0.0)}
    return put(path, apart | cold_again(path.stem, op, known[BASES[0]]) | again)


def without(card: dict[str, Any]) -> dict[str, Any]:
    """A card as if none of these intervals had been settled."""
    return card | {"intervals": {name: one for name, one in card["intervals"].items() if name not in (AGAIN, COLD)}}


def main() -> int:
    """Run the command; the exit status."""
    with altered((WEIGHTS / f"{net}.json" for net in (*OPS, SMALL_ALL_REDUCE)), without) as folder:
        os.environ["PIPEWAVE_WEIGHTS"] = str(folder)
        for op in OPS:
            found = differences(collections(op))
            nets = (op, SMALL_ALL_REDUCE) if op == "all_reduce" else (op,)
            least = float(np.quantile(found, LEVEL)) if len(found) else None
            for net in nets:
                print(f"{len(found):,} pairs;", update(WEIGHTS / f"{net}.json", op, least))
    return 0


if __name__ == "__main__":
    sys.exit(main())
