"""Sessions inside vLLM 0.22.1 on an H200 against `serve` of the same loads: `python -m studies.sessions`.

`lab.vllm_engine.sessions` measured them: turns that wait for answers, prompts that begin with what was said before, the
cache whole or cut so that prefixes are evicted. Each load is served as an arrival file with the columns `session`,
`turn`, `think_s` and `shared_prefix`, inside the engine (no front end), with its cache and its tokens a step.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.files import whole
from pipewave.models import load
from pipewave.published.answers import Deployed, deploy
from pipewave.published.unstated import Stated
from pipewave.simulate.arrival_files import read_trace
from pipewave.simulate.report import found_share
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import Traffic
from pipewave.software.front import INSIDE

MEASURED = Path(__file__).resolve().parents[1] / "data" / "measured" / "h200" / "sessions"
RESULTS = Path(__file__).parent / "results" / "sessions.json"
NEAR = (0.995, 0.996, 0.997, 0.998, 0.999, 1.001, 1.002, 1.003, 1.004, 1.005)  # factors of all steps
COLUMNS = ("session", "turn", "arrival_time", "think_s", "prompt_tokens", "output_tokens", "shared_prefix")
Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a load came to: means over turns, ms; tokens a second from the first turn to the last answer."""

    ttft_ms: float
    tpot_ms: float
    output_tokens_per_s: float
    hit_share: float  # of the prompts' tokens, found in the cache
    joules_per_output_token: float  # of the board


def measured(run: Run) -> Figures:
    """Figures of a measured load."""
    at = {name: np.array([one[i] for one in run["requests"]], float) for i, name in enumerate(run["request"])}
    hits, joules = at["cached"].sum() / at["prompt"].sum(), run["joules"] / at["output"].sum()
    return _figures(at["sent_s"], at["first_s"], at["done_s"], at["output"], hits, joules)


def _figures(sent: Any, first: Any, done: Any, output: Any, hits: float, joules: float) -> Figures:
    later = output > 1
    tpot = ((done - first)[later] / (output[later] - 1)).mean()
    rate = output.sum() / (done.max() - sent.min())
    return Figures(1e3 * (first - sent).mean(), 1e3 * tpot, rate, float(hits), float(joules))


def traffic(run: Run) -> Traffic:
    """The load as an arrival file, read as `serve --trace` reads one."""
    place = {name: i for i, name in enumerate(run["request"])}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "arrivals.csv")
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(COLUMNS)
            for one in run["requests"]:
                session, turn, sent, think = (one[place[name]] for name in ("session", "turn", "sent_s", "think_s"))
                times = ("", think) if turn else (sent, "")
                lengths = (one[place["prompt"]], one[place["output"]], run["load"]["prefix"])
                rows.writerow((session, turn, *times, *lengths))
        return read_trace(path)


def served(run: Run) -> tuple[Deployed, Traffic]:
    """The engine that was measured, and what came to it."""
    requests = traffic(run)
    setup = Setup(max_num_batched_tokens=run["engine"]["max_batched_tokens"], front=INSIDE)
    ready = deploy(Stated(load(run["model"]), "H200", setup, f"vllm:{run['engine']['versions']['vllm']}"), requests)
    engine = ready.engines.decode
    kv = replace(engine.kv, pages=run["kv_tokens"] // run["engine"]["block_size"])
    return replace(ready, engines=replace(ready.engines, servers=(replace(engine, kv=kv),))), requests


def predicted(run: Run) -> Figures:
    """Figures of the same load, served."""
    ready, requests = served(run)
    record = ready.run(keep_steps=True)
    times = record.arrival_s, record.first_s, record.done_s
    joules = ready.energy(record, ready.figures(record))["energy_j_per_output_token"]
    return _figures(*times, requests.output_len, found_share(record, requests), joules)


def hits_near(run: Run) -> tuple[float, float]:
    """Least and most of the hit share where all steps take up to half a percent less or more: a cliff shows."""
    ready, requests = served(run)
    hits = [found_share(ready.run(scale=one), requests) for one in NEAR]
    return round(min(hits), 4), round(max(hits), 4)


def main(argv: Sequence[str] | None = None) -> int:
    """Print measured and predicted figures of each load; write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    found: Run = {}
    for path in sorted(MEASURED.glob("*.json.gz")):
        run = json.loads(gzip.decompress(path.read_bytes()))
        ours, theirs = predicted(run), measured(run)
        name = f"{run['model']} {run['load']['name']}"
        found[name] = {}
        for field in Figures.__slots__:
            a, b = getattr(ours, field), getattr(theirs, field)
            off = a - b if field == "hit_share" else a / b - 1
            found[name][field] = {"measured": round(b, 4), "predicted": round(a, 4), "off": round(off, 4)}
            print(
                f"{name:30} {field:24} {b:10.3f} {a:10.3f} {100 * off:+7.2f} {'points' if a is ours.hit_share else '%'}"
            )
        least, most = found[name]["hit_share"]["near"] = hits_near(run)
        print(f"{name:30} {'hits of steps ± 0.5 %':24} {least:10.3f} {most:10.3f}")
    whole.write(given.out, (json.dumps(found, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
