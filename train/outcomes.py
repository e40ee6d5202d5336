"""Rows of every version of the public corpus, asked as a user does: by stack, without the implementation's name."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

import corpus
from corpus.cases import case_row
from corpus.select import fold
from pipewave.software.stacks import framework, version

TABLES = ("gemm", "attention", "mla", "fused_moe", "collectives")
KNOWN = "measured"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a row: the net and evaluation it belongs to, its type, where it was measured, whose rows answered
    (`software`, `basis`), the log of predicted over measured and the half-width of the interval in log time, and the
    stack whose rows answered.
    """

    net: str
    evaluation: str
    dtype: str
    gpu: str
    stack: str
    software: str
    basis: str
    off: float
    half: float
    answered: str = ""


def rows(table: str, data: Path | None, folds: Collection[int], each: int) -> pd.DataFrame:
    """Rows of shapes of these folds, of every version that the rules leave, `each` of a GPU, version and type."""
    frame = _usable(table, corpus.load(table, data, sources=("aiconfigurator",)))
    groups = {name: fold(name) in folds for name in frame["group"].astype(str).unique()}
    return corpus.versions(frame[frame["group"].astype(str).map(groups)], max_rows=each)


def _usable(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table that its nets are trained on, in the groups by which they hold rows out."""
    from train.nets import fused_moe, mla

    if table == "mla":
        return mla.usable(frame)
    return frame[~fused_moe.untuned(frame)] if table == "fused_moe" else frame


def outcomes(table: str, frame: pd.DataFrame, away: int = 0, *, with_impl: bool = False) -> Iterator[Outcome]:
    """Predictions beside measurements, by the weights that PIPEWAVE_WEIGHTS names or those that ship.

    `away` asks for the version so many places before, or behind where there is none, as if it were the row's.
    `with_impl` names the implementation too: some versions were measured with several, and run one by default.
    """
    import numpy as np

    import pipewave as pw
    from pipewave.calls.families import from_dict

    grouped: dict[str, list[tuple[tuple[str, str], dict[str, Any], float]]] = defaultdict(list)
    there: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for given, row in _cases(table, frame):
        case = {name: value for name, value in row["case"].items() if with_impl or name != "impl"}
        named = _named(table, given, case)
        grouped[row["gpu"]].append((named, case, row["latency_us"]))
        there[(row["gpu"], *named)].add(str(case["stack"]))
    for gpu, every in grouped.items():
        members = [(*one, other) for one in every if (other := _moved(there[(gpu, *one[0])], one[1]["stack"], away))]
        calls = [from_dict(case | {"stack": other}) for _, case, _, other in members]
        found = pw.predict(calls, gpu, protocol="graph")
        for (named, case, latency_us, _), one in zip(members, found, strict=True):
            off, half = np.log(one.latency_us / latency_us), np.log(one.high_us / one.latency_us)
            asked = (str(case["dtype"]), gpu, str(case["stack"]))
            yield Outcome(*named, *asked, one.software, one.basis, float(off), float(half), str(one.stack))


def _moved(there: Collection[str], stack: str, away: int) -> str | None:
    """The version so many places from one, among those of its framework."""
    same = sorted((name for name in there if framework(name) == framework(stack)), key=version)
    at = same.index(stack)
    places = [place for place in (at - away, at + away) if 0 <= place < len(same)]
    return same[places[0]] if places else None


def _cases(table: str, frame: pd.DataFrame) -> Iterator[tuple[Mapping[Any, Any], dict[str, Any]]]:
    for given in frame.to_dict("records"):
        row = case_row(table, given)
        if row is not None:
            yield given, row


def _named(table: str, given: Mapping[Any, Any], case: Mapping[str, Any]) -> tuple[str, str]:
    """Net and evaluation of a row."""
    from pipewave.kernels.collective.family import regime
    from pipewave.kernels.gemm.family import NET_OF

    if table == "gemm":
        return NET_OF[case["dtype"]], f"gemm {case['dtype']}"
    if table == "attention":
        return f"attention_{'decode' if given['phase'] == 'decode' else 'prefill'}", f"attention {given['phase']}"
    if table == "mla":
        return f"mla_{given['phase']}", f"mla {given['phase']}"
    if table == "collectives":
        net = regime(case) if given["op"] == "all_reduce" else str(given["op"])
        return net, net.replace("_", " ")
    return table, f"{table} {case['dtype']}"


def by_weights(
    folder: Path | None, frames: Mapping[str, pd.DataFrame], away: int = 0, *, with_impl: bool = False
) -> list[Outcome]:
    """Outcomes of rows by table with the weights of a folder, in a process of their own: weights are read once."""
    with ProcessPoolExecutor(1, get_context("spawn"), _choose, (str(folder or ""),)) as one:
        return one.submit(_every, frames, away, with_impl).result()


def _choose(folder: str) -> None:
    if folder:
        os.environ["PIPEWAVE_WEIGHTS"] = folder


def _every(frames: Mapping[str, pd.DataFrame], away: int, with_impl: bool) -> list[Outcome]:
    return [one for table, frame in frames.items() for one in outcomes(table, frame, away, with_impl=with_impl)]
