"""Rows and features of the collectives' nets, one an operation; all-reduces below 8 MiB have a net of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import corpus
from pipewave.kernels.base import family_of
from pipewave.kernels.collective.family import CUSTOM_STACKS, SMALL_ALL_REDUCE, regime
from pipewave.measure.row_files import SPREAD_US, WAITED
from pipewave.measure.row_files import rows as measured
from pipewave.software.stacks import framework, version
from train.net import Net, as_variant, both_halves

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
KEY = ["op", "impl", "bytes", "world", "source"]
ON_TIME = (0.85, 0.92, 0.97)  # fastest over slowest rank where all start on time: below 1 MiB, below 8 MiB, above
PROFILED = 60  # the profiler's grid steps by kilobytes: sizes a factor of two, of thousands
BEYOND = 64 << 20  # bytes that the net of small all-reduces still looks at
EACH = 500  # rows of a version on a GPU: all of them
# Pairs of PCIe cards under an SXM part's name; the A100's copies of send_recv are faster than its links.
OTHER_CARDS = ("pairwise_nvlink",)


def rows(net: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """Calls of one operation of every version; of a small all-reduce, those that a custom kernel could serve.

    `counted` marks those that held-out tables score: of the newest version of each framework or of NCCL.
    """
    frame = started_together(corpus.load("collectives", data_dir))
    frame = corpus.of_every_version(frame, frame[frame["source"] == "aiconfigurator"], max_rows=EACH)
    op = "all_reduce" if net == SMALL_ALL_REDUCE else net
    frame = frame[(frame["op"] == op) & ~(frame["fabric"].isin(OTHER_CARDS) & (frame["gpu"] != "A40"))]
    if net == SMALL_ALL_REDUCE:
        frame = _small(frame)
    return both_halves(_thinned(frame).reset_index(drop=True))


def _small(frame: pd.DataFrame) -> pd.DataFrame:
    """Messages that the net answers, and the next larger ones for the shape beyond, which no table counts."""
    cases: list[Any] = frame[["bytes", "world", "nodes"]].to_dict("records")
    own = np.array([regime(case) == SMALL_ALL_REDUCE for case in cases])
    custom = np.array([regime({**case, "bytes": 1}) == SMALL_ALL_REDUCE for case in cases])
    beyond = custom & ~own & (frame["protocol"] == "graph") & (frame["bytes"] <= BEYOND)
    return frame.assign(counted=frame["counted"] & own)[own | beyond]


def started_together(frame: pd.DataFrame) -> pd.DataFrame:
    """Our rows with the wait for ranks that started late taken out.

    Where the host was slow to launch, the slowest rank's time is mostly waiting for the last to arrive; the fastest
    rank's, then, is the last one's: the collective itself. The two differ by less where all were on time.
    """
    fastest = _fastest(tuple(frame["op"].unique()))
    own = corpus.is_own(frame).to_numpy()
    keys = frame.loc[own, KEY].itertuples(index=False, name=None)
    least = np.array([fastest[key] for key in keys])
    latency, size = frame.loc[own, "latency_us"].to_numpy(), frame.loc[own, "bytes"].to_numpy()
    on_time = np.select([size < 1 << 20, size < 8 << 20], ON_TIME[:2], ON_TIME[2])
    alone = least / on_time
    late = (least / latency < WAITED) & (latency - least >= SPREAD_US)
    corrected = frame["latency_us"].to_numpy().copy()
    corrected[own] = np.where(late, np.minimum(alone, latency), latency)
    return frame.assign(latency_us=corrected)


def _fastest(ops: Sequence[str]) -> dict[tuple[Any, ...], float]:
    """The fastest rank's time of our rows by KEY."""
    found = {}
    for source, _, file in (each for op in ops for each in corpus.own_files(op)):
        for row in measured(file):
            case = row["case"]
            found[(case["kernel"], row["impl"], case["bytes"], case["world"], source)] = row["fastest_rank_us"]
    return found


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """At most PROFILED rows of each factor of two in the profiler's dense series."""
    dense = frame["protocol"] == "profiler_warm"
    shuffled = frame[dense].sample(frac=1.0, random_state=0)
    series = [shuffled[name] for name in ("gpu", "stack", "fabric", "world", "nodes")]
    kept = shuffled.groupby([*series, np.log2(shuffled["bytes"]).round()], observed=True).head(PROFILED)
    return pd.concat([frame[~dense], kept])


def card(net: str, card: dict[str, Any]) -> dict[str, Any]:
    """Frameworks reduce small messages by their own kernels and leave the rest to NCCL.

    Who names no software gets the newest, though an older one has more rows.
    """
    impl = "custom" if net == SMALL_ALL_REDUCE else "nccl"
    stacks = {stack for known in card["stacks"].values() for stack in known}
    own = [stack for stack in stacks if stack.startswith(CUSTOM_STACKS)]
    torch = [stack for stack in card["stacks"].get("profiler_warm", ()) if stack.startswith("torch")]
    stack = {
        protocol: max((one for one in card["stacks"][protocol] if framework(one) == framework(usual)), key=version)
        for protocol, usual in card["default_stack"].items()
    }
    stack |= dict.fromkeys(["profiler_warm"] if torch else [], max(torch, default=""))
    return {
        "default_stack": stack,
        "default_impl": dict.fromkeys(sorted(stacks), "nccl") | dict.fromkeys(sorted(own), impl),
    }


def _alike(net: str) -> str:
    """Whose software changes as one: what sums is known by rule, what else a version of NCCL changes is not."""
    return "sums" if net in ("all_reduce", SMALL_ALL_REDUCE) else "moves"


# A version of NCCL changes all its operations, by what the scale of one net does not foretell.
NETS = {
    name: Net(rows, family_of(op), ("nccl", "custom_allreduce"), card=card, one_width=_alike(name), prepared=as_variant)
    for name, op in [*zip(OPS, OPS, strict=True), (SMALL_ALL_REDUCE, "all_reduce")]
}
