"""Constants of published servers, fitted on groups other than those they score: `python -m train.published_fit`.

What no source states of a server (`software/front.json`): how fast its host is beside the one that engine times were
measured on, for whole graphs (`host`) and for what it launches kernel by kernel (`launch`); how long a request is on
its way (`transit_us`), and what its front end takes for a request and a token. Of SGLang, what a token takes is
measured (`lab.stream_cost`), and what its scheduler takes for a message it hands out (`message_us`) is fitted. Sets
of these answer a few rows of each group, changed one at a time from where they are; a group's constants are the set
tried with the least error on all other groups of its engine, error being the mean over groups of that of TTFT and TPOT;
of sets no worse than that by one standard error, nor for any group by over five points, the one whose front end is the
fastest (one too slow by a little saturates, and what waits for it has no bound; one too fast costs little). The same is
done with every group of a model, of a GPU, and of an engine's version left out (`PARTS` of `studies.published_rows`).
`--write` puts the set chosen so on all groups into `software/front.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import PipewaveError
from pipewave.files import manifest
from pipewave.physics.demand import Array
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.software import front
from studies.published_rows import OLD, PARTS, Row, corpus, read

GRID: dict[str, tuple[float, ...]] = {
    "launch": (0.3, 0.5, 0.7, 1.0, 2.0, 3.0, 5.0, 7.0),
    "host": (0.5, 1.0, 1.5),
    "transit_us": (7_000.0, 12_000.0, 20_000.0, 35_000.0, 50_000.0),
    "stream_us": (20.0, 35.0, 50.0, 65.0, 80.0, 95.0),
    "request_us": (1_000.0, 2_000.0, 5_000.0),
}
GRIDS = {
    "sglang": {name: values for name, values in GRID.items() if name != "stream_us"}
    | {"message_us": (0.0, 4.0, 8.0, 12.0, 16.0, 24.0)}
}
SATURATED = 0.05  # more error of one group: its rows wait for a front end, however many others never do
MOST = 1.0  # of an error that counts: rows that something else makes many times slower decide nothing
LEAST = 3  # rows of a group that is scored
SCORED = ("ttft_ms", "tpot_ms")
Mask = NDArray[np.bool_]
Constants = tuple[float, ...]  # in the order of an engine's grid
RESULTS = Path(__file__).parents[1] / "studies" / "results" / "published_fit.json"


def chosen_rows(rows: Sequence[Row], most: int) -> list[Row]:
    """Served rows of today's engines, at most so many of each group, spread over it. Cards made here teach nothing:
    a host's constant would take over what their kernels are off.
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        plain = row.answerable and row.ranks == 1 and not row.made
        if row.case["mode"] == "serve" and plain and row.group.source != OLD and not row.apart:
            groups.setdefault(row.group, []).append(row)
    large = [group for group in groups.values() if len(group) >= LEAST]
    spread = [np.unique(np.linspace(0, len(group) - 1, most).astype(int)) for group in large]
    return [group[i] for group, picks in zip(large, spread, strict=True) for i in picks]


def grid(engine: str) -> dict[str, tuple[float, ...]]:
    """The constants of an engine that are fitted, and what is tried of each."""
    return GRIDS.get(engine, GRID)


def with_constants(engine: str, constants: Constants) -> front.Front:
    """The front end of an engine with other fitted constants."""
    changed: dict[str, Any] = dict(zip(grid(engine), constants, strict=True))
    return replace(front.of(engine), **changed)


def _errors(task: tuple[Row, Constants]) -> list[float]:
    """Errors of a row's TTFT and TPOT; nan where it cannot be answered or does not state one."""
    row, constants = task
    try:
        found = answer(from_dict(row.case), with_constants(row.group.engine, constants))
    except PipewaveError:
        return [math.nan] * len(SCORED)
    known = {name: min(abs(found[name] / row.measured[name] - 1.0), MOST) for name in SCORED if name in row.measured}
    return [known.get(name, math.nan) for name in SCORED]


def _row_means(errors: Array) -> Array:
    """Means over the last axis of what is known, nan where nothing is."""
    known = np.isfinite(errors)
    count = known.sum(axis=-1)
    return np.where(count > 0, np.where(known, errors, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)


class Search:
    """Errors of one engine's rows under every set of constants tried, by descent along one constant at a time."""

    def __init__(self, rows: Sequence[Row], pool: Executor) -> None:
        self.rows, self.pool, self.grid = rows, pool, grid(rows[0].group.engine)
        self.groups = list(dict.fromkeys(row.group for row in rows))
        self.owner = np.array([self.groups.index(row.group) for row in rows])
        self.tried: dict[Constants, Array] = {}  # errors of TTFT and TPOT, [rows, 2]; nan where there is none

    def run(self, start: Constants) -> Constants:
        """Go from `start` to the best value of each constant in turn."""
        best = start
        for place, values in enumerate(self.grid.values()):
            line = [(*best[:place], value, *best[place + 1 :]) for value in values]
            self._try([best, *line])
            best = min([best, *line], key=lambda one: float(self.by_group(one).mean()))
        return best

    def _try(self, many: Sequence[Constants]) -> None:
        fresh = [one for one in dict.fromkeys(many) if one not in self.tried]
        tasks = [(row, one) for row in self.rows for one in fresh]
        table = np.array(list(self.pool.map(_errors, tasks, chunksize=8 * max(len(fresh), 1))))
        self.tried |= {one: table[i :: len(fresh)] for i, one in enumerate(fresh)}

    def by_group(self, constants: Constants, kept: Mask | None = None) -> Array:
        """Mean error of each group that has rows among those kept; one that no row of can be answered has none."""
        return np.nan_to_num(self._means(_row_means(self.tried[constants]), kept))

    def scored(self, apart: Mapping[str, Constants], part: Callable[[Row], str]) -> list[float]:
        """Errors of TTFT and TPOT, means over groups, with what was chosen without the part that a row belongs to."""
        errors = np.array([self.tried[apart[part(row)]][i] for i, row in enumerate(self.rows)])
        return [round(float(np.nanmean(self._means(column))), 4) for column in errors.T]

    def _means(self, errors: Array, kept: Mask | None = None) -> Array:
        """Of each group that has rows among those kept; nan where it has no error."""
        errors, owner = (part if kept is None else part[kept] for part in (errors, self.owner))
        return np.array([_row_means(errors[owner == i][None])[0] for i in np.unique(owner)])

    def left_out(self, part: Callable[[Row], str]) -> dict[str, Constants]:
        """For each part that rows belong to, the set chosen by all others; by all where there are no others."""
        labels = np.array([part(row) for row in self.rows])
        return {
            one: self.chosen(labels != one if (labels != one).any() else None) for one in dict.fromkeys(labels.tolist())
        }

    def chosen(self, kept: Mask | None = None) -> Constants:
        """The set of the fastest front end among those within one standard error of the best on the rows kept."""
        sets = list(self.tried)
        table = np.array([self.by_group(one, kept) for one in sets])
        worse = table - table[table.mean(axis=1).argmin()]
        alike = worse.mean(axis=1) <= worse.std(axis=1) / math.sqrt(table.shape[1])
        inside = np.flatnonzero(alike & (worse.max(axis=1) <= SATURATED)).tolist()
        return sets[min(inside, key=lambda i: (*self._busy(sets[i]), table[i].mean()))]

    def _busy(self, constants: Constants) -> tuple[float, float]:
        """What a front end is busy with a token and a request."""
        named = dict(zip(self.grid, constants, strict=True))
        return named.get("stream_us", 0.0), named["request_us"]


def fit(engine: str, rows: Sequence[Row], pool: Executor) -> dict[str, Any]:
    """The best constants of an engine on all groups, for each group the best on the others, and what all groups are off
    by with constants fitted without the group, version, GPU or model that a row is of.
    """
    now = front.of(engine)
    search = Search(rows, pool)
    search.run(tuple(getattr(now, name) for name in search.grid))
    best, own = search.chosen(), search.left_out(PARTS["group"])
    scored = {name: search.scored(search.left_out(part), part) for name, part in PARTS.items()}
    groups = [
        asdict(group) | {"constants": own[str(group)], "error": round(float(search.by_group(own[str(group)])[i]), 4)}
        for i, group in enumerate(search.groups)
    ]
    return {
        "names": list(search.grid),
        "constants": best,
        "error": round(float(search.by_group(best).mean()), 4),
        "left_out": round(float(np.mean([group["error"] for group in groups])), 4),
        "tried": len(search.tried),
        "groups": groups,
        "scored": scored | {"shipped": search.scored({engine: best}, lambda row: row.group.engine)},
    }


def write(engine: str, found: dict[str, Any]) -> None:
    """Put the constants into an engine's front end, and what they rest on beside the other results."""
    table = json.loads(front.FILE.read_text("utf-8"))
    table[engine] |= dict(zip(grid(engine), found["constants"], strict=True))
    front.FILE.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", "utf-8")
    manifest.write()
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(kept | {engine: found}, indent=1) + "\n", "utf-8")


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--rows", type=int, default=12, help="of each group, at most; SGLang's were fitted on all, 999")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--engines", nargs="+", default=["vllm", "sglang", "trtllm"])
    parser.add_argument("--write", action="store_true", help="write the constants that ship")
    options = parser.parse_args()
    rows = sorted(chosen_rows(read(options.data or corpus()), options.rows), key=lambda row: str(row.group))
    with ProcessPoolExecutor(options.workers) as pool:
        for engine in options.engines:
            found = fit(engine, [row for row in rows if row.group.engine == engine], pool)
            chosen = dict(zip(grid(engine), found["constants"], strict=True))
            print(f"{engine}: {chosen}: error {found['error']}, left out {found['left_out']}", flush=True)
            print(f"TTFT, TPOT with each left out: {found['scored']}", flush=True)
            if options.write:
                write(engine, found)


if __name__ == "__main__":
    main()
