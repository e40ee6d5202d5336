"""`python -m train refresh --data DIR`: nets that ship, on tables that the corpus took in since.

Stages, each reading what the one before wrote under `--runs`; `--stage` runs one of them (training needs no corpus):
  frames  corpus → RUNS/<net>/frame.parquet of nets whose tables changed, and what to learn anew; the lock is renewed
  train   frame → RUNS/<net>/net, from the weights that ship (`train.relearn`); a net that has a run is passed over
  put     weights, cards, intervals of what was trained; RUNS/refresh.md says what got better or worse by net, GPU
          and version. A net that gets a version worse that its weights knew, by more than its noise, is not put.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from corpus import data_dir, lock
from corpus.frame import gpu_name
from pipewave.nets.weights_metadata import Interval, half_width
from train import relearn
from train.cards import plan_of, read, settings, write
from train.export import replace_net
from train.intervals import LEVEL, balance
from train.net import nets
from train.registry import bare_of, extra, rows_of
from train.relearn import new_rows
from train.rows import Floats, Rows
from train.run import load_predictions
from train.splits import by_name
from train.two_levels import weighted_quantile

SPLIT = "ship"
FEWEST = 60  # held-out rows of a GPU and version that say anything
NOISE = 2.0  # standard errors, of groups
JSON = "json:"  # before the name of such a column
UNUSED = ("raw_gpu", "device", "power", "power_limit", "latency", "kernel_source")
POINTS = 0.25  # % by which a version may get worse whatever its noise


def changed_software(net: str, files: Sequence[str]) -> list[str]:
    """Conditions of the rows of a net's tables that changed, of their paths in the corpus."""
    found = set()
    for parts in (file.split("/") for file in files if file.startswith("aiconfigurator/")):
        if parts[-1].removesuffix("_perf.parquet") in nets()[net].tables:
            found.add(f"stack={parts[3]}-{parts[4]},gpu={gpu_name(parts[1])}")
    return sorted(found)


def save_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a net's cleaned rows, times in single precision: all that training needs of the corpus, a few bytes a row.

    Columns of lists (lengths of ragged batches) or of settings (Triton configurations) are kept as JSON.
    """
    kept = frame.drop(columns=[name for name in UNUSED if name in frame and name != "op"]).reset_index(drop=True)
    for name in kept:
        if kept[name].dtype == object and kept[name].map(lambda value: isinstance(value, list | tuple)).any():
            text = kept[name].map(lambda value: json.dumps(value) if isinstance(value, list | tuple) else None)
            kept = kept.drop(columns=name).assign(**{JSON + name: text})
        elif kept[name].dtype == np.float64:
            kept[name] = kept[name].astype(np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.to_parquet(path, compression="zstd", index=False)


def load_frame(path: Path) -> pd.DataFrame:
    """What `save_frame` wrote."""
    frame = pd.read_parquet(path)
    for name in [name for name in frame if str(name).startswith(JSON)]:
        values = [_tuples(json.loads(text)) if isinstance(text, str) else None for text in frame[name]]
        found = pd.Series(values, index=frame.index, dtype=object)
        frame = frame.drop(columns=name).assign(**{str(name).removeprefix(JSON): found})
    for name in frame.select_dtypes(np.float32):
        frame[name] = frame[name].astype(np.float64)
    return frame


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def write_frames(net: str, options: argparse.Namespace, changed: Sequence[str]) -> bool:
    """Keep the rows of a net that is concerned, and whether it is."""
    learn = changed_software(net, changed)
    frame = nets()[net].rows(net, options.data)
    rows = bare_of(frame)
    card = read(options.weights / f"{net}.json")
    new = int(new_rows(rows, card, learn).sum())
    if not new and not options.net:
        return False
    folder = options.runs / net
    save_frame(frame, folder / "frame.parquet")
    write(folder / "learn.json", {"learn": learn})
    print(f"{net}: {len(frame):,} rows, {new:,} to learn", flush=True)
    return True


def train(net: str, options: argparse.Namespace) -> None:
    """Train a net on, of its frame alone; one that is trained already stays."""
    folder = options.runs / net
    if (folder / "net" / "log.json").exists():
        return
    end = time.perf_counter() + options.seconds
    rows = rows_of(net, load_frame(folder / "frame.parquet"))
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    learn = read(folder / "learn.json")["learn"]
    wanted = plan_of(relearn.Plan, settings("relearn", f"{net}.relearn"))
    wanted = replace(wanted, learn=(*wanted.learn, *learn), steps=options.steps or wanted.steps)
    relearn.relearn(net, rows, options.weights / f"{net}.json", folder / "net", wanted, device, end)


@dataclass(frozen=True, slots=True)
class Cell:
    """Held-out rows of a GPU and version: how many, % off before and after (NaN: unknown), % inside the interval
    after, noise of the difference in points, and whether the weights before knew the version there.
    """

    net: str
    gpu: str
    stack: str
    rows: int
    before: float
    after: float
    inside: float
    noise: float
    known: bool

    @property
    def worse(self) -> bool:
        """By more than its noise, of what was known."""
        return self.known and self.rows >= FEWEST and self.after - self.before > max(self.noise, POINTS)

    def line(self) -> str:
        """As the report holds it."""
        mark = "worse" if self.worse else ""
        numbers = f"{self.before:.2f} | {self.after:.2f} | {self.noise:.2f} | {self.inside:.0f}"
        return f"| {self.net} | {self.gpu} | {self.stack} | {self.rows:,} | {numbers} | {mark} |"


def cells(
    net: str, rows: Rows, index: NDArray[np.int64], before: Floats, after: Floats, half: Floats, new: NDArray[np.bool_]
) -> Iterator[Cell]:
    """The cells of the rows at `index`, given log residuals, half-widths and which rows are new to the old weights."""
    off = [np.abs(np.expm1(found - rows.residual[index])) for found in (before, after)]
    inside = np.abs(after - rows.residual[index]) <= half
    gpu, stack = (rows.columns[name].text()[index] for name in ("gpu", "stack"))
    keys = np.char.add(np.char.add(gpu, "|"), stack)
    for key in np.unique(keys):
        at = np.flatnonzero((keys == key) & (rows.weight[index] > 0))
        if not len(at):
            continue
        differ = 100 * (off[1] - off[0])[at]
        where, two = str(key).split("|")
        yield Cell(net, where, two, len(at), 100 * off[0][at].mean(), 100 * off[1][at].mean(), 100 * inside[at].mean(),
                   NOISE * _error(differ, rows.group[index][at]), not new[at].all())  # fmt: skip


def _error(differ: Floats, group: NDArray[np.int64]) -> float:
    """Standard error of a mean whose rows come in groups."""
    _, at = np.unique(group, return_inverse=True)
    sums, counts = np.bincount(at, differ), np.bincount(at)
    if len(sums) < 2:
        return float("inf")
    off = sums - counts * differ.mean()
    return float(np.sqrt((off**2).sum() * len(sums) / (len(sums) - 1)) / len(differ))


def recounted(card: dict[str, Any], rows: Rows, index: NDArray[np.int64], off: Floats, scale: Floats) -> dict[str, Any]:
    """Intervals of measured GPUs, widened or narrowed by one factor a protocol so that they hold what they say of
    held-out rows; GPUs and versions count alike.
    """
    known, protocol = card["intervals"], rows.columns["protocol"].text()[index]
    of = {name: name.partition("|")[2] for name in known if name.partition("|")[0] == "measured_gpu"}
    found = dict(known)
    for name, own in of.items():  # its protocol, or "": all protocols without an interval of their own
        mine = protocol == own if own else ~np.isin(protocol, list(of.values()))
        mine &= rows.weight[index] > 0
        if mine.sum() < 10 * FEWEST:
            continue
        cell = np.unique(rows.columns["gpu"].codes[index][mine] * 1000 + rows.columns["stack"].codes[index][mine],
                         return_inverse=True)[1]  # fmt: skip
        half = half_width([Interval(**known[name])], scale[mine])
        by = weighted_quantile(np.abs(off[mine]) / half, balance(cell), LEVEL)
        found[name] = known[name] | {"multiple": round(known[name]["multiple"] * by, 4)}
    return found


def put(net: str, options: argparse.Namespace) -> list[Cell]:
    """Put what was trained into the weights that ship, unless it makes a known version worse; cells of the report."""
    folder, card = options.runs / net, options.weights / f"{net}.json"
    frame = load_frame(folder / "frame.parquet")
    rows, document = rows_of(net, frame), read(card)
    learn = read(folder / "learn.json")["learn"]
    index, found = by_name(SPLIT, rows).score, load_predictions(folder / "net")
    (mean, scale), before = found[SPLIT], found["before"][0]
    new = new_rows(rows, document, learn)[index]  # measured again: what was known of such is no measure
    intervals = recounted(document, rows, index, mean - rows.residual[index], scale)
    half = halves(intervals, rows, index, scale)
    report = list(cells(net, rows, index, before, mean, half, new))
    if not any(version.worse for version in by_version(report)) or options.anyway:
        told = extra(net, bare_of(frame)) | {"intervals": intervals}
        if "default_impl" in told:  # kernels of older versions are known by rows that newer ones took the place of
            told["default_impl"] = document["default_impl"] | told["default_impl"]
        print(replace_net(card, rows, folder / "net", options.weights, **told))
    return report


def halves(intervals: dict[str, Any], rows: Rows, index: NDArray[np.int64], scale: Floats) -> Floats:
    """Half-widths of held-out rows of measured GPUs, each by its protocol."""
    protocol, found = rows.columns["protocol"].text()[index], np.empty(len(index))
    for name in np.unique(protocol):
        one = intervals.get(f"measured_gpu|{name}", intervals["measured_gpu"])
        found[protocol == name] = half_width([Interval(**one)], scale[protocol == name])
    return found


def by_version(found: Sequence[Cell]) -> list[Cell]:
    """Cells of all GPUs that knew a version together, their rows counting alike."""
    known: dict[tuple[str, str], list[Cell]] = {}
    for cell in found:
        if cell.known:
            known.setdefault((cell.net, cell.stack), []).append(cell)
    return [_together(some) for some in known.values()]


def _together(some: Sequence[Cell]) -> Cell:
    counts = np.array([cell.rows for cell in some], float)
    before, after, inside = (
        float(np.average([getattr(cell, name) for cell in some], weights=counts))
        for name in ("before", "after", "inside")
    )
    noise = float(np.sqrt(((counts * [cell.noise for cell in some]) ** 2).sum()) / counts.sum())
    return replace(some[0], gpu=f"{len(some)} GPUs", rows=int(counts.sum()), before=before, after=after,
                   inside=inside, noise=noise)  # fmt: skip


def report(found: Sequence[Cell]) -> str:
    """One page: what is new, what got better or worse by more than its noise, and how many stayed."""
    told = [cell for cell in found if cell.rows >= FEWEST]
    moved = [cell for cell in told if cell.known and abs(cell.after - cell.before) > max(cell.noise, POINTS)]
    new = [replace(cell, known=True) for cell in told if not cell.known]
    head = "| net | GPU | version | held-out rows | % off before | after | noise | inside 90 % | |"
    head += "\n|---|---|---|---:|---:|---:|---:|---:|---|"
    lines = ["# Nets on new tables", "", f"Known versions within their noise: {len(told) - len(moved) - len(new)}.", ""]
    for title, some in (("New, all GPUs", by_version(new)), ("Known, better or worse", moved), ("New", new)):
        rows = [cell.line() for cell in sorted(some, key=lambda cell: (cell.net, cell.stack, cell.gpu))]
        lines += [f"## {title}", "", head, *rows, ""]
    return "\n".join(lines)


def main(options: argparse.Namespace) -> int:
    """Run the stages asked for; 1 where a net was not put."""
    concerned = options.net
    if options.stage_of in (None, "frames"):
        data = data_dir(options.data)
        changed = lock.differences(data)
        concerned = [net for net in options.net or nets() if write_frames(net, options, changed)]
        lock.write(data)
    concerned = concerned or sorted(path.parent.name for path in options.runs.glob("*/frame.parquet"))
    if options.stage_of in (None, "train"):
        for net in concerned:
            train(net, options)
    if options.stage_of not in (None, "put"):
        return 0
    found = [cell for net in concerned for cell in put(net, options)]
    page = report(found)
    (options.runs / "refresh.md").write_text(page, encoding="utf-8")
    print(page)
    return int(any(cell.worse for cell in found))
