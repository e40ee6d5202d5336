"""Predictions of `serve` beside what vLLM's own client measured over HTTP (rows of `lab.vllm_http`).

    python -m studies.vllm_http_score
    python -m studies.vllm_http_score --told

Closed loops are predicted from their concurrency, and every level once more from its real arrivals. The host is the
one that vLLM's times were measured on; what a front end takes for a request and a token is fitted on the other models
of all cards (a model in bfloat16 and in FP8 is one).

Real arrivals of a closed loop replayed as they were are a loop no longer: nothing holds a server back that is a little
faster than the real one, the requests in flight run dry, and times per token fall many times as far as steps are off.

Nothing is left out. Where vLLM compiled a kernel while a level ran, all its requests waited for seconds: the means hold
it, and a second summary is of the levels without such a stop (`stood_still`).

`--told`: nothing is fitted; every model that has three closed levels without a stop is told to the others of its card.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab.vllm_engine.launch import config_of
from pipewave.models.quantization_config import ONLINE
from pipewave.physics.demand import Array
from pipewave.published.answers import answer
from pipewave.published.cases import Case, from_dict
from pipewave.software import front
from pipewave.told import answers as told

MEASURED = Path(__file__).resolve().parents[1] / "data" / "measured"
FIGURES = ("ttft_ms", "tpot_ms", "output_tokens_per_s")
GRID: dict[str, tuple[Any, ...]] = {
    "transit_us": (3_000.0, 7_000.0, 12_000.0, 20_000.0),
    "request_us": (1_000.0, 2_000.0, 5_000.0),
    "stream_us": (20.0, 50.0, 100.0),
}
STOP_MS = 500.0  # no step of these levels takes as long: 8,192 prompt tokens take 120 to 200 ms
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scored:
    """One level as measured and as answered."""

    row: Row
    way: str
    found: Row

    def error(self, figure: str) -> float:
        """Predicted over measured, less one."""
        return float(self.found[figure] / self.row[figure] - 1.0)

    def held(self, figure: str) -> bool:
        """Whether the interval of a figure holds what was measured."""
        return bool(self.found[f"{figure}_low"] <= self.row[figure] <= self.found[f"{figure}_high"])


def levels() -> list[Row]:
    """Every measured level, with the card that its folder names."""
    files = sorted(MEASURED.glob("*/http/*.jsonl"))
    return [{"gpu": path.parts[-3].upper()} | json.loads(line) for path in files for line in path.open()]


@cache
def model_of(name: str, quantization: str | None) -> str:
    """A built-in model, or a folder with its config in the weights it was served in."""
    if quantization is None:
        return name
    folder = Path(tempfile.mkdtemp(prefix="pipewave-"))
    config = config_of(name, None) | {"quantization_config": ONLINE[quantization]}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def case(row: Row, name: str, *, replayed: bool) -> Row:
    """The level as a case: its arrivals, or its concurrency and lengths."""
    model = model_of(row["model"], row.get("quantization"))
    whole = {"id": name, "model": model, "gpu": row["gpu"], "engine": "vllm", "version": row["vllm"], "tp": 1}
    if replayed:
        return whole | {"mode": "serve", "arrivals": [request[:3] for request in row["requests"]]}
    lengths = {"isl": row["isl"], "osl": row["osl"], "requests": row["completed"]}
    return whole | lengths | {"mode": "serve", "concurrency": row["concurrency"]}


def asked(row: Row) -> dict[str, Case]:
    """A level asked as a closed loop, where it is one, and from its arrivals."""
    ways = {"loop": False, "arrivals": True} if row["concurrency"] else {"arrivals": True}
    return {way: from_dict(case(row, way, replayed=replayed)) for way, replayed in ways.items()}


def stood_still(row: Row) -> bool:
    """Whether some request waited for a token, or a first one beyond the others, longer than any step takes."""
    requests = np.array(row["requests"])
    first = np.sort(requests[:, 3])
    return bool(requests[:, 5].max() > STOP_MS or np.diff(first).max() > STOP_MS)


def fronts() -> list[front.Front]:
    """The front ends that are tried, on the host that vLLM's times were measured on."""
    own = replace(front.of("vllm"), host=1.0, launch=1.0)
    return [replace(own, **dict(zip(GRID, values, strict=True))) for values in itertools.product(*GRID.values())]


def errors(rows: Sequence[Row]) -> Array:
    """What each front end is off by at each level: of TTFT and TPOT together, [levels, front ends]."""
    first = [(row, next(iter(asked(row).values()))) for row in rows]
    return np.array([[_error(row, answer(one, own)) for own in fronts()] for row, one in first])


def _error(row: Row, found: Row) -> float:
    return sum(abs(float(found[name] / row[name]) - 1.0) for name in FIGURES[:2])


def chosen(rows: Sequence[Row], off: Array, model: str) -> front.Front:
    """The front end that is least off at the other models' levels, each model counting alike."""
    others = {row["model"] for row in rows} - {model}
    means = [off[[row["model"] == other for row in rows]].mean(axis=0) for other in sorted(others)]
    return fronts()[int(np.mean(means, axis=0).argmin())]


def scored(rows: Sequence[Row]) -> Iterator[Scored]:
    """Every level and way of asking, answered with a front end of the other models."""
    off = errors(rows)
    own = {model: chosen(rows, off, model) for model in {row["model"] for row in rows}}
    for row in rows:
        for way, one in asked(row).items():
            yield Scored(row, way, answer(one, own[row["model"]]))


def line(one: Scored) -> str:
    """A level's figures and errors."""
    row = one.row
    level = f"{row['concurrency']} clients" if row["concurrency"] else f"{row['rate']} a second"
    cells = [f"{row[key]:.1f} | {100 * one.error(key):+.1f}" for key in FIGURES]
    name = " ".join(filter(None, [row["gpu"], row["model"], row.get("quantization")]))
    return f"| {name} | {level}{', stood still' * stood_still(row)} | {one.way} | {' | '.join(cells)} |"


def summary(found: Sequence[Scored], label: str) -> str:
    """Means over servers of each one's mean absolute error, and the share of levels that intervals hold."""
    first = [one for one in found if one.way == "loop" or one.row["concurrency"] is None]
    servers = sorted({server_of(one.row) for one in first})
    cells = []
    for figure in FIGURES:
        each = [
            np.mean([abs(one.error(figure)) for one in first if server_of(one.row) == server]) for server in servers
        ]
        cells.append(f"{100 * float(np.mean(each)):.1f}")
    cells += [f"{100 * float(np.mean([one.held(figure) for one in first])):.0f}" for figure in FIGURES[:2]]
    return f"| {label} | {len(servers)} | {len(first)} | {' | '.join(cells)} |"


def told_off(rows: Sequence[Row], mine: Sequence[Row]) -> Array:
    """Mean % off of TTFT and TPOT of closed levels, told others of their machine."""
    own = ("id", "mode", "engine", "version", "gpu", "tp")
    cases = [case(row, "told", replayed=False) | {figure: row[figure] for figure in FIGURES} for row in mine]
    runs = [{name: value for name, value in run.items() if name not in own} for run in cases]
    asked = [case(row, "level", replayed=False) | ({"told": runs} if runs else {}) for row in rows]
    found = [told.answer(from_dict(one)) for one in asked]
    off = [[abs(one[name] / row[name] - 1.0) for name in FIGURES[:2]] for row, one in zip(rows, found, strict=True)]
    return np.asarray(100 * np.mean(off, axis=0))


def print_told(rows: Sequence[Row]) -> None:
    """A line a server that is told to the others of its card."""
    print("| card | told | levels of others | TTFT off by, untold and told % | TPOT % |\n|---|---|---|---|---|")
    fine = [row for row in rows if row["concurrency"] and not stood_still(row)]
    for server, count in Counter(map(server_of, fine)).items():
        if count >= 3:
            mine = [row for row in fine if server_of(row) == server][-3:]
            others = [row for row in fine if row["gpu"] == server[0] and server_of(row) != server]
            cells = zip(told_off(others, ()), told_off(others, mine), strict=True)
            card, *name = server
            said = " | ".join(f"{before:.1f}, {after:.1f}" for before, after in cells)
            print(f"| {card} | {' '.join(name).strip()} | {len(others)} | {said} |", flush=True)


def server_of(row: Row) -> tuple[str, str, str]:
    """Card, model and quantisation of a level."""
    return row["gpu"], row["model"], row.get("quantization") or ""


def main() -> None:
    """Print measured figures and errors, a line a level and way of asking, then what they come to."""
    if "--told" in sys.argv:
        print_told(levels())
        return
    print("| server | level | predicted from | TTFT ms | error % | TPOT ms | error % | tokens/s | error % |")
    print("|---" * 9 + "|")
    found = []
    for one in scored(levels()):
        found.append(one)
        print(line(one), flush=True)
    print("\n| levels | servers | levels | TTFT % | TPOT % | tokens/s % | TTFT held % | TPOT held % |")
    print("|---" * 8 + "|")
    print(summary(found, "all"))
    print(summary([one for one in found if not stood_still(one.row)], "without a stop"))
    for card in ("H100", "H200"):
        print(summary([one for one in found if one.row["gpu"] == card and not stood_still(one.row)], f"{card}, same"))


if __name__ == "__main__":
    main()
