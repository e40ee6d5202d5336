"""How answers age: `python -m train.ageing [--count] [--write]`, what a version adds to the interval of older rows.

Counted backwards (`--count`): of all cards the versions that were released after a day are taken out, and their rows
are asked under their own names, on shapes that are not held out of the weights that ship. What answers is the newest
version before that day, with the interval of `nearest_version`, which was settled on neighbours a release apart. Kept
are quantiles of the factor on its half-width that holds a row, by net and pair of versions; of calls that the two run
by other kernels, as the rule `changed_in` has it, quantiles of the error itself.

The law (`--write`): the half-width times `1 + rate * months`, at most `most` times, months from the release of the
version that answers to that of the one asked for; by other kernels a half-width of its own. Both hold nine in ten rows,
pairs of versions alike. Each version is also scored by the law that the others call for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus import data_dir, versions
from corpus.frame import Table, finish, gpu_name
from corpus.select import HELD_OUT, by_default, fold
from corpus.sources import tables
from pipewave.gpus import find
from pipewave.prediction.fallback import Query
from pipewave.software.ageing import AGEING, age
from pipewave.software.stacks import framework, version_text
from train.cards import ROOT, TABLES, WEIGHTS, altered, read, ship
from train.intervals import LEVEL
from train.nets import mla
from train.outcomes import Outcome, by_weights

RELEASES = read(ROOT / "src" / "pipewave" / "software" / "releases.json")
DAYS = ("2025-11-01", "2026-01-15", "2026-03-15", "2026-05-10", "2026-07-05")
CORPUS = ("gemm", "attention", "mla", "fused_moe")
TYPES = ("bf16", "fp8", "fp8_block")  # of experts
EACH, A_FILE = 40, 2_000  # rows of a GPU, version and type; of a file, from which they are drawn
QUANTILES = np.arange(0.5, 100.0) / 100.0
COUNTED = TABLES / "ageing.json"
MOST = 4.0  # times a half-width at most: no pair that was counted is further apart
RATES = tuple(round(0.05 * step, 2) for step in range(61))  # a month; half-widths in log time by other kernels, too
FEWEST = 20  # rows of a pair that tells
SOURCE = "python -m train.ageing --write: versions asked from those before them, train/tables/ageing.json"
Pair = Mapping[str, Any]  # a row of what was counted


def released(stack: str) -> date | None:
    """The day that a version came out; None where no table says it."""
    of_framework = RELEASES.get(framework(stack), {}).get("versions", {})
    day = of_framework.get(version_text(stack))
    return date.fromisoformat(day) if day else None


def forgotten(card: dict[str, Any], day: date) -> dict[str, Any]:
    """A card as if nothing released after a day had been measured; what has no day stays."""

    def later(stack: str) -> bool:
        known = released(stack)
        return known is not None and known > day

    software = {
        protocol: {stack: of for stack, of in stacks.items() if not later(stack)}
        for protocol, stacks in card["software"].items()
    }
    stacks = {protocol: [one for one in names if not later(one)] for protocol, names in card["stacks"].items()}
    impls = {key: impl for key, impl in card["default_impl"].items() if not later(key.partition("|")[0])}
    return card | {"software": software, "stacks": stacks, "default_impl": impls}


def asked(frames: Mapping[str, pd.DataFrame], day: date) -> Iterator[Outcome]:
    """What rows of versions after a day are answered from those before it."""
    newer = {table: frame[[(known := released(str(stack))) is not None and known > day for stack in frame["stack"]]]
             for table, frame in frames.items()}  # fmt: skip
    cards = (path for path in WEIGHTS.glob("*.json") if read(path).get("software"))
    with altered(cards, lambda card: forgotten(card, day)) as folder:
        found = by_weights(folder, {table: frame for table, frame in newer.items() if len(frame)})
    return (one for one in found if one.software == "nearest_version" and released(one.answered))


def sampled(name: str) -> pd.DataFrame:
    """Rows of a table of every version with a day, a few of each GPU, version and type; no file is kept whole."""
    folder = data_dir()
    known = [table for table in tables(name) if table.source == "aiconfigurator"]
    parts = [_of_file(table, file, folder) for table in known for file in table.files(folder)
             if file.parts[-3] in RELEASES]  # fmt: skip
    frame = pd.concat([part.astype(dict.fromkeys(part.select_dtypes("category"), "object")) for part in parts])
    frame = mla.usable(frame) if name == "mla" else frame
    if name == "fused_moe":  # kernels of 4-bit weights are their own: another framework's may not run at all
        frame = frame[frame["dtype"].isin(TYPES)]
    shown = [fold(group) != HELD_OUT for group in frame["group"].astype(str)]
    return by_default(name, frame[shown].reset_index(drop=True))


def _of_file(table: Table, file: Path, folder: Path) -> pd.DataFrame:
    raw = table.read(file, folder)
    frame = finish(raw.sample(min(len(raw), A_FILE), random_state=0), table.family, table.source)
    frame = frame.assign(gpu=[gpu_name(str(name)) for name in frame["raw_gpu"]]).drop(columns="raw_gpu")
    return versions(frame, max_rows=EACH)


def counted(names: Sequence[str]) -> list[dict[str, Any]]:
    """By net and pair of versions: rows, months between them, and quantiles of what rows need."""
    frames = {table: sampled(table) for table in names}
    needed: dict[tuple[str, str, str, float, bool], list[float]] = defaultdict(list)
    for day in DAYS:
        for one in asked(frames, date.fromisoformat(day)):
            older = age(one.answered, one.stack)
            if older:  # the law in force is taken out
                query = Query(one.stack, one.gpu, one.dtype, "graph", one.net, find(one.gpu).compute_capability)
                other = query.changed(one.answered)
                pair = (one.net, one.stack, one.answered, round(older.months, 2), other)
                needed[pair].append(abs(one.off) / (1.0 if other else one.half / older.factor(one.net)))
    return [
        {"net": net, "asked": stack, "answered": older, "months": months, "other_kernels": other,
         "rows": len(each), "needed": [round(float(one), 3) for one in np.quantile(each, QUANTILES)]}
        for (net, stack, older, months, other), each in sorted(needed.items())
    ]  # fmt: skip


def limit(pair: Pair, rate: float, half: float) -> float:
    """What the law multiplies the half-width of a pair of versions by; by other kernels, the half-width itself."""
    return half if pair["other_kernels"] else min(1.0 + rate * float(pair["months"]), MOST)


def inside(pairs: Sequence[Pair], rate: float, half: float) -> float:
    """Mean share of rows that the law holds, pairs alike."""
    return float(np.mean([np.mean(np.array(pair["needed"]) <= limit(pair, rate, half)) for pair in pairs]))


def law_of(pairs: Sequence[Pair]) -> tuple[float, float]:
    """The least rate, and half-width by other kernels, that hold nine in ten rows each; the largest tried where none
    does, and 0 where no pair tells.
    """
    parts = ([pair for pair in pairs if pair["other_kernels"] == other] for other in (False, True))
    enough = [[one for one in RATES if not part or inside(part, one, one) >= LEVEL] for part in parts]
    rate, half = (min(each, default=RATES[-1]) for each in enough)
    return rate, half


def left_out(pairs: Sequence[Pair]) -> float:
    """Mean share inside of each version asked for, by the law that the others call for."""
    shares = []
    for one in dict.fromkeys(pair["asked"] for pair in pairs):
        others = [pair for pair in pairs if pair["asked"] != one]
        shares.append(inside([pair for pair in pairs if pair["asked"] == one], *law_of(others or pairs)))
    return float(np.mean(shares))


def law(found: Sequence[Pair]) -> dict[str, Any]:
    """Rates and half-widths by net, of others the mean and the widest, and what each holds of versions left out."""
    by_net: dict[str, list[Pair]] = defaultdict(list)
    for pair in found:
        if pair["rows"] >= FEWEST:
            by_net[pair["net"]].append(pair)
    laws = {net: law_of(pairs) for net, pairs in by_net.items()}
    for net, pairs in by_net.items():
        print(f"{net:20} {len(pairs):3} pairs: rate {laws[net][0]:.2f} a month, by other kernels {laws[net][1]:.2f}; "
              f"inside {100 * inside(pairs, *laws[net]):.1f} %, left out {100 * left_out(pairs):.1f}")  # fmt: skip
    rates, halves = {net: one[0] for net, one in laws.items()}, {net: one[1] for net, one in laws.items() if one[1]}
    return {"source": SOURCE, "most": MOST, "rates": rates | {"other": round(float(np.mean([*rates.values()])), 2)},
            "other_kernels": halves | {"other": max(halves.values(), default=0.0)}}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.ageing", description=__doc__)
    parser.add_argument("--count", action="store_true", help="count anew, which needs the corpus")
    parser.add_argument("--write", action="store_true", help="put the law into the package")
    parser.add_argument("--table", action="append", choices=CORPUS)
    options = parser.parse_args(argv)
    if options.count:
        known = json.loads(COUNTED.read_text("utf-8")) if COUNTED.exists() else []
        found = counted(options.table or CORPUS)
        nets = {one["net"] for one in found}
        lines = map(json.dumps, [*(one for one in known if one["net"] not in nets), *found])
        COUNTED.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
    fitted = law(json.loads(COUNTED.read_text("utf-8")))
    if options.write:
        ship(AGEING, fitted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
