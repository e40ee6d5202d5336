"""Plans held against wider searches and against `serve`: `python -m studies.plan_checks [FIRST LAST] [--wide]`.

Random models, GPUs, loads and limits, by seed. Of each plan: seconds of CPU of the default search; whether the winner
keeps its limits when other requests of the same kind come (another seed of arrivals and lengths); and how far the times
that `pipewave serve` prints, called by the command that the plan names, are from the plan's. With `--wide`, also the
cost of the best of a wide search, which runs all designs whose first look says at most `WIDE` times the winner's.
Results are added to `results/plan_checks.json`; without a range all `PLANS`.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from pipewave.cli import build
from pipewave.files.whole import write
from pipewave.models import load
from pipewave.planning import Demand, Plan, Question, Space, plan, prices
from pipewave.planning.run import stated
from pipewave.planning.search import Search
from pipewave.published.answers import deploy
from tests.command_line import CliRunner

PLANS, WIDE = 40, 1.5
OUT = Path(__file__).parent / "results" / "plan_checks.json"
MODELS = (
    "Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-8B", "Qwen3-32B-FP8", "Qwen3-30B-A3B", "gpt-oss-20b", "gpt-oss-120b",
    "Mistral-7B-v0.3", "Qwen3-235B-A22B-FP8", "DeepSeek-V3",
)  # fmt: skip
ENGINES = ("vllm", "sglang", "trtllm")  # of plans beyond the first `PLANS`, one each; those take any
GPUS = ("A100", "L40S", "H100", "H200", "B200", "MI355X")


def asked(seed: int) -> tuple[str, Question, Space, Demand]:
    """A random plan."""
    of = Random(seed)
    gpus = tuple(of.sample(GPUS, of.randint(1, 2)))
    ttft = of.choice((500, 1000, 2000, "p95=1500", "p99=3000"))
    tpot = of.choice((20, 30, 50, "p95=60"))
    space = Space(gpus) if seed < PLANS else Space(gpus, engines=(ENGINES[seed % len(ENGINES)],))
    question = Question(of.choice((256, 1000, 2000, 4000)), of.choice((64, 200, 500)), ttft, tpot)
    return of.choice(MODELS), question, space, Demand(rate=of.choice((2.0, 5.0, 10.0, 20.0, 40.0)))


def check(seed: int, *, wide: bool) -> dict[str, Any]:
    """One plan, checked."""
    model, question, space, demand = asked(seed)
    began = time.process_time()
    found = plan(load(model), question, space, demand=demand)
    row: dict[str, Any] = {"seed": seed, "model": model, "gpus": space.gpus, "cpu_s": time.process_time() - began}
    row |= {"limits": [str(limit) for limit in question.limits], "winner": None}
    if found.winner is None:
        return row | ({"wide_cost": wide_cost(found, demand)} if wide else {})
    row |= {"winner": found.winner.split.label, "cost": found.winner.cost, "sure": found.winner.sure}
    row |= {"keeps": keeps(found), "same": same(found)}
    return row | ({"wide_cost": wide_cost(found, demand)} if wide else {})


def keeps(found: Plan) -> bool:
    """Whether the winner keeps the limits when other requests come."""
    assert found.winner is not None
    point, split = found.winner.fleet.point, found.winner.split
    requests = found.question.traffic(point.requests, point.rate, seed=1)
    ready = deploy(stated(found.spec, split, found.question, point.replicas), requests)
    record = ready.run()
    figures = ready.figures(record, ready.window(record, steady=True))
    return all(figures[limit.figure] <= limit.ms for limit in found.question.limits)


def same(found: Plan) -> float:
    """The largest difference of a time between the plan and the command that it names, as a share."""
    assert found.winner is not None
    done = CliRunner().invoke(build(), [*shlex.split(found.serve_command(found.winner))[1:], "--json"])
    served, figures = json.loads(done.stdout), found.winner.fleet.point.figures
    names = [f"{time}_{what}_ms{end}" for time in ("ttft", "tpot") for what in ("mean", "p99") for end in ("", "_high")]
    return max(abs(float(served[name]) / figures[name] - 1) for name in names)


def wide_cost(found: Plan, demand: Demand) -> float | None:
    """The cost of the best sure design of a wide search."""
    search = Search({"": found.spec}, found.question, found.space, demand, prices(), found.meter, None, None)
    search.looked = list(found.looked)
    most = WIDE * (found.winner.cost if found.winner else math.inf)
    search.serve([i for i, one in enumerate(search.looked) if one.rate > 0 and search.seems(one, sure=True) <= most])
    costs = [design.cost for design in search.designs() if design.sure]
    return min(costs, default=None)


def main(words: list[str]) -> None:
    """Check the plans of a range and print what all results say."""
    wide = "--wide" in words
    first, last = (int(w) for w in words if w.isdigit()) if len(words) > wide else (0, PLANS)
    rows = {row["seed"]: row for row in json.loads(OUT.read_text())} if OUT.exists() else {}
    for seed in range(first, last):
        rows[seed] = {**rows.get(seed, {}), **check(seed, wide=wide)}
        write(OUT, (json.dumps([rows[s] for s in sorted(rows)], indent=1) + "\n").encode())
    _say("any engine", [row for row in rows.values() if row["seed"] < PLANS])
    _say("one engine", [row for row in rows.values() if row["seed"] >= PLANS])


def _say(name: str, rows: list[dict[str, Any]]) -> None:
    won = [row for row in rows if row["winner"]]
    if not won:
        return
    kept, apart = sum(row["keeps"] for row in won), max(row["same"] for row in won)
    cpu_s = [row["cpu_s"] for row in rows]
    print(
        f"{name}: {len(rows)} plans; {kept} of {len(won)} winners keep their limits under other requests; from serve "
        f"at most {100 * apart:.2g} %; CPU of a search {sum(cpu_s) / len(cpu_s):.0f} s, most {max(cpu_s):.0f} s"
    )
    over = [row["cost"] / row["wide_cost"] - 1 for row in won if row.get("wide_cost") and row["sure"]]
    if over:
        print(f"  {sum(o <= 0.03 for o in over)} of {len(over)} within 3 % of a wide search's cost, "
              f"worst {100 * max(over):.1f} %")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
