"""The closed form behind `pipewave plan` beside the simulator behind `pipewave serve`: `python -m studies.plan_steady`.

Each set-up keeps a number of requests in flight, as `studies.steady_load` does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pipewave.planning.served import stated
from pipewave.planning.steady import evaluate

from pipewave.models import load as model_of
from pipewave.planning import Question, Split
from pipewave.published.answers import deploy
from pipewave.simulate.run_window import steady_ms
from studies.steady_load import TIMES, held_in_flight, percent_off, print_means

ROUNDS = 6  # requests of each lane


@dataclass(frozen=True, slots=True)
class Load:
    """A deployment, its token budget, and the requests it holds."""

    model: str
    split: Split
    budget: int
    batch: int
    isl: int
    osl: int


@dataclass(frozen=True, slots=True)
class Compared:
    """Times of a load in ms by both, and how far the closed form is above the simulator, in percent."""

    load: Load
    plan: dict[str, float]
    serve: dict[str, float]
    percent: dict[str, float]


def _loads() -> Iterable[Load]:
    small, large, moe, latent = "Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3"
    h200, sglang, l40s = Split("H200"), Split("H200", engine="sglang"), Split("L40S")
    for split in (h200, sglang, l40s):
        yield Load(small, split, 8192, 8, 1024, 128)
        yield Load(small, split, 8192, 32, 500, 100)  # a step with a prompt has a little over 512 tokens
    yield Load(small, h200, 2048, 64, 128, 512)
    yield Load(small, h200, 8192, 256, 512, 128)
    yield Load(small, h200, 1024, 256, 512, 128)
    yield Load(small, h200, 8192, 128, 400, 400)
    yield Load(small, sglang, 4096, 64, 256, 256)
    yield Load(small, l40s, 2048, 16, 2000, 200)
    yield Load(moe, h200, 8192, 64, 512, 256)
    yield Load(moe, Split("H100", tp=2, ep=2), 4096, 128, 600, 300)
    yield Load(large, Split("H100", tp=4), 8192, 32, 480, 200)
    yield Load(large, Split("H200", tp=4, engine="sglang"), 8192, 64, 1000, 300)
    yield Load(large, Split("B200", tp=2), 8192, 100, 2000, 400)
    yield Load(large, Split("H100", tp=2, pp=2), 4096, 32, 2000, 200)
    mtp = "method=mtp,tokens=3,acceptance=0.62"
    for engine in ("vllm", "sglang", "trtllm"):
        yield Load(latent, Split("B200", tp=8, engine=engine, speculative=mtp), 8192, 16, 1024, 512)
    yield Load(latent, Split("B200", tp=8, engine="trtllm", speculative=mtp), 8192, 64, 1024, 512)
    yield Load(large, Split("H100", tp=4, speculative="eagle3,tokens=3,acceptance=0.75"), 8192, 16, 1024, 512)
    for engine in ("vllm", "sglang", "trtllm"):
        yield Load(latent, Split("H200", ep=8, dp=8, engine=engine), 8192, 16, 2000, 500)


LOADS = tuple(_loads())


def simulated(load: Load) -> dict[str, float]:
    """Mean times in ms of the requests of the middle."""
    held = load.batch * load.split.pp * load.split.dp  # a plan's batch is that of one pipeline lane and rank
    traffic = held_in_flight(max(ROUNDS * held, 300), held, load.isl, load.osl)
    ready = deploy(stated(model_of(load.model), load.split, held, load.budget), traffic)
    return steady_ms(ready.run(), traffic)


def compare(load: Load) -> Compared:
    """One set-up by both."""
    found = evaluate(model_of(load.model), load.split, Question(load.isl, load.osl), [load.budget], [load.batch])
    plan, serve = {name: float(found.columns[name][0]) for name in TIMES}, simulated(load)
    return Compared(load, plan, serve, percent_off(plan, serve))


def main() -> None:
    """Print every set-up, and the mean of what lies between both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args().json
    results = [compare(load) for load in LOADS]
    print(f"{'':60} " + " ".join(f"{name + ' plan/serve':>26}" for name in TIMES))
    for one in results:
        print(_line(one))
    print_means(one.percent for one in results)
    if chosen:
        chosen.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n", encoding="utf-8")


def _line(one: Compared) -> str:
    load, split = one.load, one.load.split
    what = f"{load.model} {split.gpu} {split.engine} tp{split.tp} pp{split.pp}"
    what += f" dp{split.dp}" * (split.dp > 1) + " drafts" * bool(split.speculative)
    what += f" b{load.batch} t{load.budget} {load.isl}+{load.osl}"
    return f"{what:60} " + " ".join(f"{one.plan[n]:9.1f} {one.serve[n]:9.1f} {one.percent[n]:+5.0f}%" for n in TIMES)


if __name__ == "__main__":
    main()
