"""Predictions of `serve` beside what vLLM's own client measured over HTTP on an H100 (rows of `bench.vllm_http`).

    python -m bench.vllm_http_score

Closed loops are predicted from their concurrency, and every level once more from its real arrivals. The host is the
one that vLLM's times were measured on; what a front end takes for a request and a token is fitted on the other models.

Real arrivals of a closed loop replayed as they were are a loop no longer: nothing holds a server back that is a little
faster than the real one, the requests in flight run dry, and at a rate it can only just bear times per token fall many
times as far as steps are off. `steps` is the factor of all steps' times at which a replay has as many requests in
flight as were measured: how far off steps really are.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.physics.demand import Array
from pipewave.serving.answers import answer, setup_of
from pipewave.serving.cases import Case, from_dict
from pipewave.serving.run import Server
from pipewave.software import front

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured" / "h100" / "http"
FIGURES = ("ttft_ms", "tpot_ms", "output_tokens_per_s")
GRID = {
    "transit_us": (3_000.0, 7_000.0, 12_000.0, 20_000.0),
    "request_us": (1_000.0, 2_000.0, 5_000.0),
    "stream_us": (20.0, 50.0, 100.0),
}
FACTORS = tuple(round(0.9 + 0.01 * i, 2) for i in range(21))
Row = dict[str, Any]


def levels(folder: Path = FOLDER) -> list[Row]:
    """Every measured level."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def case(row: Row, name: str, *, replayed: bool) -> Row:
    """The level as a case: its arrivals, or its concurrency and lengths."""
    whole = {"id": name, "model": row["model"], "gpu": "H100", "engine": "vllm", "version": row["vllm"], "tp": 1}
    if replayed:
        return whole | {"mode": "serve", "arrivals": [request[:3] for request in row["requests"]]}
    lengths = {"isl": row["isl"], "osl": row["osl"], "requests": row["completed"]}
    return whole | lengths | {"mode": "serve", "concurrency": row["concurrency"]}


def asked(row: Row) -> dict[str, Case]:
    """A level asked as a closed loop, where it is one, and from its arrivals."""
    ways = {"loop": False, "arrivals": True} if row["concurrency"] else {"arrivals": True}
    return {way: from_dict(case(row, way, replayed=replayed)) for way, replayed in ways.items()}


def fitted(rows: Sequence[Row]) -> front.Front:
    """The front end, on the host that vLLM's times were measured on, that is least off on some levels."""
    own = replace(front.of("vllm"), host=1.0, launch=1.0)
    many = [replace(own, **dict(zip(GRID, values, strict=True))) for values in itertools.product(*GRID.values())]
    first = [(row, next(iter(asked(row).values()))) for row in rows]
    return min(many, key=lambda one: sum(_error(row, answer(case, one)) for row, case in first))


def _error(row: Row, found: Row) -> float:
    return sum(abs(found[name] / row[name] - 1.0) for name in FIGURES[:2])


def in_flight(arrived_s: Array, done_s: Array) -> float:
    """Requests under way on average until the last one comes."""
    end = float(arrived_s.max())
    return float((np.minimum(done_s, end) - arrived_s).sum()) / end if end else 0.0


def steps_factor(row: Row, own: front.Front) -> float:
    """The factor of all steps' times at which the level's arrivals keep as many requests in flight as were measured."""
    requests = np.array(row["requests"])
    measured = in_flight(
        requests[:, 0], requests[:, 0] + 1e-3 * (requests[:, 3] + requests[:, 4] * (requests[:, 2] - 1))
    )
    one = asked(row)["arrivals"]
    traffic = one.traffic()
    server = Server.of(one.model, one.gpu, setup_of(one, traffic, own)[0], traffic.longest)
    records = {factor: server.record(traffic, scale=factor) for factor in FACTORS}
    return min(FACTORS, key=lambda f: abs(in_flight(records[f].arrival_s, records[f].done_s) - measured))


def main() -> None:
    """Print measured figures and errors, a line a level and way of asking."""
    rows = levels()
    print("| model | level | predicted from | TTFT ms | error % | TPOT ms | error % | tokens/s | error % | steps × |")
    print("|---" * 10 + "|")
    for model in dict.fromkeys(row["model"] for row in rows):
        own = fitted([row for row in rows if row["model"] != model])
        for row in (row for row in rows if row["model"] == model):
            level = f"{row['concurrency']} clients" if row["concurrency"] else f"{row['rate']} a second"
            for way, one in asked(row).items():
                found = answer(one, own)
                cells = [f"{row[key]:.1f} | {100 * (found[key] / row[key] - 1):+.1f}" for key in FIGURES]
                steps = f"{steps_factor(row, own):.2f}" if way == "arrivals" else ""
                print(f"| {model} | {level} | {way} | " + " | ".join(cells) + f" | {steps} |")


if __name__ == "__main__":
    main()
