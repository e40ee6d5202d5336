"""Sessions inside a real vLLM: turns that wait for answers, prompts that begin with what was said before.

    python -m lab.vllm_engine.sessions --model Llama-3.1-8B --out rows/        (needs a GPU and vLLM)

One engine serves each load of `LOADS` in turn, its prefix cache emptied in between, and with fewer blocks where the
load says so, so that prefixes are evicted. One JSON file a load: of each request its session, turn, times, tokens and
cached tokens; of each step its end, tokens and requests; joules of the GPU. Times in seconds from the load's begin.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab.vllm_engine import gpu, launch
from lab.vllm_engine.drive import Driver

REQUEST = ("session", "turn", "think_s", "sent_s", "added_s", "first_s", "done_s", "prompt", "output", "cached")
STEP = ("ended_s", "tokens", "requests")
LONGEST_PAUSE_S = 0.001  # between two looks at the clock while the engine is idle
Tokens = tuple[int, int]  # least and most, all as likely
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions of one kind. `kv_tokens`: of the cache; None is all that the GPU holds."""

    name: str
    sessions: int
    rate: float  # sessions that begin a second, at random
    turns: Tokens
    prefix: int  # tokens at the start of every prompt that all sessions have in common
    first: Tokens  # tokens of a first prompt behind them
    later: Tokens  # tokens that each later turn adds
    answer: Tokens
    think_s: float  # mean pause after an answer, exponential
    kv_tokens: int | None = None


WARM = Load("warm", 24, 8.0, (2, 3), 512, (64, 6000), (16, 2000), (8, 64), 0.1)
LOADS = (
    Load("documents-tight", 70, 1.4, (3, 6), 256, (3000, 11000), (32, 300), (32, 160), 2.5, kv_tokens=150_000),
    Load("chat", 90, 1.8, (3, 8), 1024, (64, 512), (32, 400), (64, 256), 3.0),
    Load("agents-tight", 110, 4.0, (5, 12), 2048, (200, 1500), (200, 1500), (30, 150), 0.6, kv_tokens=200_000),
    Load("documents", 70, 1.4, (3, 6), 256, (3000, 11000), (32, 300), (32, 160), 2.5),
    Load("agents", 110, 4.0, (5, 12), 2048, (200, 1500), (200, 1500), (30, 150), 0.6),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn adds to its session's prompt, how long its answer is, and the pause before it."""

    added: int
    answer: int
    think_s: float


def drawn(load: Load, seed: int = 0) -> list[tuple[float, list[Turn]]]:
    """Begin and turns of each session of a load; two loads that differ in their cache alone are alike."""
    rng = np.random.default_rng([seed, load.sessions, load.prefix])
    begins = np.cumsum(rng.exponential(1 / load.rate, load.sessions))
    sessions = []
    for begin in begins - begins[0]:
        count = int(rng.integers(load.turns[0], load.turns[1] + 1))
        added = [load.first, *[load.later] * (count - 1)]
        turns = [Turn(_within(rng, one), _within(rng, load.answer), float(rng.exponential(load.think_s)))
                 for one in added]  # fmt: skip
        sessions.append((float(begin), turns))
    return sessions


def _within(rng: np.random.Generator, tokens: Tokens) -> int:
    return int(rng.integers(tokens[0], tokens[1] + 1))


@dataclass(slots=True)
class Live:
    """A request that the engine works on."""

    session: int
    turn: int
    sent_s: float
    added_s: float
    first_s: float = 0.0
    cached: int = 0
    answer: list[int] = field(default_factory=list)


class Sessions:
    """Runs the sessions of a load on an engine; `clock` and `sleep` as of the time module."""

    def __init__(self, driver: Driver, sampling: Callable[[int], Any], load: Load, seed: int = 0) -> None:
        self._driver, self._sampling, self._load = driver, sampling, load
        self._plan = drawn(load, seed)
        self._rng = np.random.default_rng([seed, 1])
        shared = self._tokens(load.prefix)
        self._texts = [list(shared) for _ in self._plan]
        self._due = [(begin, session, 0) for session, (begin, _) in enumerate(self._plan)]
        self._live: dict[str, Live] = {}
        self.requests: list[tuple[Any, ...]] = []
        self.steps: list[tuple[Any, ...]] = []
        heapq.heapify(self._due)

    def run(self, deadline_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Until every turn is answered; turns due after `deadline_s` seconds are left out."""
        engine, begin = self._driver.limits.engine, self._driver.clock()
        while self._due or engine.has_unfinished_requests():
            now = self._driver.clock() - begin
            while self._due and self._due[0][0] <= now:
                sent, session, turn = heapq.heappop(self._due)
                if sent <= deadline_s:
                    self._send(sent, now, session, turn)
            if engine.has_unfinished_requests():
                step = self._driver.step()
                self._take(step.outputs, step.ended_s - begin)
                if step.tokens:
                    self.steps.append((round(step.ended_s - begin, 6), step.tokens, step.requests))
            elif self._due:
                sleep(min(max(self._due[0][0] - now, 0.0), LONGEST_PAUSE_S))

    def _send(self, sent: float, now: float, session: int, turn: int) -> None:
        planned = self._plan[session][1][turn]
        self._texts[session] += self._tokens(planned.added)
        name = f"{self._load.name}.{session}.{turn}"
        prompt = {"type": "token", "prompt_token_ids": list(self._texts[session])}
        self._driver.limits.engine.add_request(name, prompt, self._sampling(planned.answer))
        self._live[name] = Live(session, turn, sent, now)

    def _take(self, outputs: Sequence[Any], now: float) -> None:
        for output in outputs:
            live = self._live[output.request_id]
            new = output.outputs[0].token_ids
            if not live.answer and new:
                live.first_s, live.cached = now, output.num_cached_tokens or 0
            live.answer += new
            if output.finished:
                del self._live[output.request_id]
                self._finish(live, now)

    def _finish(self, live: Live, now: float) -> None:
        text, turns = self._texts[live.session], self._plan[live.session][1]
        think = turns[live.turn].think_s if live.turn else 0.0
        times = [round(one, 6) for one in (think, live.sent_s, live.added_s, live.first_s, now)]
        self.requests.append((live.session, live.turn, *times, len(text), len(live.answer), live.cached))
        text += live.answer
        if live.turn + 1 < len(turns):
            heapq.heappush(self._due, (now + turns[live.turn + 1].think_s, live.session, live.turn + 1))

    def _tokens(self, count: int) -> list[int]:
        found: list[int] = self._rng.integers(0, self._driver.limits.vocab, count).tolist()
        return found


class Blocks:
    """Holds blocks of the engine's pool back, as though its cache were smaller."""

    def __init__(self, pool: Any, block_size: int) -> None:
        self._pool, self._size, self._held = pool, block_size, list[Any]()

    def leave(self, kv_tokens: int | None) -> int:
        """Hold back what is beyond so many tokens (None: nothing); tokens that are left."""
        free = self._pool.get_num_free_blocks()
        if kv_tokens is not None:
            self._held = self._pool.get_new_blocks(max(free - kv_tokens // self._size, 0))
        return int(self._pool.get_num_free_blocks()) * self._size

    def give_back(self) -> None:
        """Let go of what is held."""
        self._pool.free_blocks(self._held)
        self._held = []


def joules() -> float | None:
    """Joules that the first GPU has drawn since its driver was loaded; None where NVML does not say."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0))) / 1e3
    except (pynvml.NVMLError, AttributeError):
        return None


def answered(driver: Driver, sampling: Callable[[int], Any], load: Load, deadline_s: float) -> Row:
    """The row of one load: what was asked and what came of it."""
    sessions, before, began = Sessions(driver, sampling, load), joules(), driver.clock()
    sessions.run(deadline_s)
    after, seconds = joules(), driver.clock() - began
    return {
        "load": asdict(load),
        "seconds": round(seconds, 4),
        "joules": None if before is None or after is None else round(after - before, 3),
        "request": REQUEST,
        "requests": sorted(sessions.requests, key=lambda one: one[3]),
        "step": STEP,
        "steps": sessions.steps,
    }


def brief(row: Row) -> str:
    """One line of a load."""
    table = np.array([request[2:] for request in row["requests"]], float)
    _, sent, _, first, done, prompt, output, cached = table.T
    later = output > 1
    tpot, hit = ((done - first)[later] / (output[later] - 1)).mean(), cached.sum() / prompt.sum()
    return (
        f"{row['load']['name']}: {len(table)} turns in {row['seconds']:.1f} s, {len(row['steps'])} steps, TTFT "
        f"{1e3 * (first - sent).mean():.1f} ms, TPOT {1e3 * tpot:.2f} ms, cached {100 * hit:.2f} %, "
        f"{output.sum() / row['seconds']:.0f} tokens/s, {row['joules']} J"
    )


def sampling_of(new_tokens: int) -> Any:
    """So many tokens, each told when it is made."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False,
                          output_kind=RequestOutputKind.DELTA)  # fmt: skip


def measure(driver: Driver, blocks: Blocks, given: argparse.Namespace, common: Row) -> None:
    """Every load while time is left, each to a file of its own; the first one only warms up."""
    until = given.began + given.budget_s
    reset, chosen = driver.limits.engine.reset_prefix_cache, set(given.loads.split(",") if given.loads else ())
    answered(driver, given.sampling, WARM, 30.0)
    for load in LOADS:
        left = until - time.monotonic()
        if (chosen and load.name not in chosen) or left < given.least_s:
            continue
        blocks.give_back()
        if not reset():
            raise RuntimeError("the prefix cache is in use")
        kv_tokens = blocks.leave(load.kv_tokens)
        idle = joules(), time.monotonic()
        time.sleep(given.idle_s)
        idle_w = None if idle[0] is None else ((joules() or 0.0) - idle[0]) / (time.monotonic() - idle[1])
        row = common | {"kv_tokens": kv_tokens, "idle_w": idle_w}
        row |= answered(driver, given.sampling, load, left - 15.0)
        row |= {"gpu": gpu.sampler()()}
        (given.out / f"sessions-{load.name}.json").write_text(json.dumps(row))
        sys.stderr.write(brief(row) + "\n")


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command was given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Llama-3.1-8B", help="a built-in model, a config.json or a directory")
    parser.add_argument("--out", required=True, type=Path, help="directory of the files")
    parser.add_argument("--loads", help="names of loads, with commas; default: all")
    parser.add_argument("--budget-s", type=float, default=540.0, help="seconds in all, starting the engine included")
    parser.add_argument("--least-s", type=float, default=30.0, help="a load begins only with so many seconds left")
    parser.add_argument("--idle-s", type=float, default=2.0, help="pause before each load, for the power of idling")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Start, measure, stop; returns the exit status."""
    given = options(argv)
    given.began, given.sampling = time.monotonic(), sampling_of
    given.out.mkdir(parents=True, exist_ok=True)
    launch.prepare_environment()
    setup = launch.Setup(given.model, max_batched_tokens=None, more={"enable_prefix_caching": True})
    llm, log_lines = launch.start(setup)
    common = {"model": setup.name, "tp": 1, "start_s": round(time.monotonic() - given.began, 1)}
    common |= {"engine": launch.facts(llm, log_lines)}
    driver = Driver(launch.engine_of(llm))
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    try:
        measure(driver, Blocks(pool, common["engine"]["block_size"]), given, common)
    finally:
        llm.llm_engine.engine_core.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
