"""Deployments made ready and answered: one path for `serve`, its cases, `pw.serve` and what `plan` serves to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.gpus import find as find_gpu
from pipewave.published.cases import Case
from pipewave.published.infer_pools import matched
from pipewave.published.published_pools import launched
from pipewave.published.unstated import Stated, fill
from pipewave.simulate.estimate import STEP_TOKENS, static_estimate
from pipewave.simulate.interval import FOUND, METRICS, interval_ends
from pipewave.simulate.kv_budget import traffic_notes
from pipewave.simulate.pools import Pools
from pipewave.simulate.power import energy_figures, watts_over_time
from pipewave.simulate.report import Limit, Mask, as_seen, grown, middle, steadiness, summary
from pipewave.simulate.server import Server
from pipewave.simulate.setup import AS_PREDICTED, Pace
from pipewave.simulate.simulation import MOST_KEPT, MOST_STEPS, Record
from pipewave.simulate.static_batch import StaticBatch
from pipewave.simulate.traffic import Traffic
from pipewave.software.front import Front

DIGITS = 4
ENERGY = ("power_w", "energy_j")  # figures with six digits of their own
MOST_ROUNDS = 1_000_000  # steps that a closed loop of engines side by side is simulated for
MOST_TRIED = 20_000  # requests of a run with steps at an end of their interval
AFFORDED = 0.7  # of the most steps of a run, for those in which engines decode; prompts and requests take others


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployment ready to serve some requests."""

    engines: Pools
    traffic: Traffic  # as many of the requests as a run can simulate
    notes: tuple[str, ...]  # on what was assumed
    runs: dict[float, Record] = field(default_factory=dict, init=False, repr=False, compare=False)  # by scale

    def run(self, *, scale: float = 1.0, keep_steps: bool = False, most_steps: int = MOST_STEPS) -> Record:
        """What clients see of each request; every step takes `scale` times its predicted time. Raises BadInput for a
        run of more than so many steps.
        """
        if scale in self.runs and not keep_steps:
            return self.runs[scale]
        most = min(most_steps, MOST_KEPT) if keep_steps else most_steps
        record = self.engines.record(self.traffic, scale=scale, keep_steps=keep_steps, most_steps=most)
        seen = as_seen(record, self.traffic, self._first_tokens)
        return seen if keep_steps else self.runs.setdefault(scale, seen)

    def window(self, record: Record, *, steady: bool) -> Mask | None:
        """The requests that count: all (None), or the middle of the run."""
        return middle(record, self.traffic) if steady else None

    def figures(self, record: Record, window: Mask | None = None, limits: Sequence[Limit] = ()) -> dict[str, Any]:
        """Latency percentiles and rates of a run."""
        return summary(record, self.traffic, self.engines.gpus, limits, window)

    def steady_figures(self, scale: float = 1.0) -> tuple[dict[str, Any], bool]:
        """Figures of the middle of a run, how its tokens still grow among them, and whether it did not keep up."""
        record = self.run(scale=scale)
        state, found = steadiness(record, self.traffic), self.figures(record, self.window(record, steady=True))
        return found | ({} if state.steady else grown(record, found)), state.overloaded

    def energy(self, record: Record, figures: Mapping[str, Any], window: Mask | None = None) -> Mapping[str, float]:
        """Mean watts of one GPU and joules of an output token, with the ends of their intervals."""
        engines, kept = self.engines, slice(None) if window is None else window
        begin, end = float(record.arrival_s[kept].min()), float(record.done_s[kept].max())
        power_w = float(watts_over_time(engines.powered, record.stretches, np.array([begin, end]))[0])
        board, half = engines.powered[-1].board, engines.uncertain.half("output_tokens_per_s")
        return energy_figures(power_w, engines.gpus, figures["output_tokens_per_s"], board, half)

    @property
    def all_notes(self) -> list[str]:
        """What its answers rest on."""
        server = self.engines.decode
        about = traffic_notes(server.runner, server.kv, self.traffic)
        return [*self.engines.notes, *about, *self.notes, self.engines.uncertain.note()]

    @property
    def _first_tokens(self) -> int:
        """Tokens that clients see at once, the first one among them."""
        server = self.engines.decode
        steps = server.drafted and server.runner.engine.scheduler.stream_interval_in_steps
        each = server.drafted.mean if server.drafted and steps else 1.0
        return 1 + round((server.setup.stream_interval - 1) * each)


@dataclass(frozen=True, slots=True)
class Served:
    """A simulated run: its summary, traffic and record."""

    answer: Mapping[str, Any]
    traffic: Traffic
    record: Record

    def __repr__(self) -> str:
        """One line; `answer` has everything."""
        answer = self.answer
        return f"<{len(self.traffic):,} requests to {answer['model']} on {answer['gpus']} × {answer['gpu']}>"

    def to_dict(self) -> dict[str, Any]:
        """The summary, floats rounded; watts and joules are, to six digits."""
        return {
            name: round(value, DIGITS) if isinstance(value, float) and not name.startswith(ENERGY) else value
            for name, value in self.answer.items()
        }


def deploy(stated: Stated, traffic: Traffic) -> Deployed:
    """A deployment for such requests, what it leaves unsaid filled. Raises what a deployment that cannot be raises."""
    setup, notes, guessed = fill(stated, traffic)
    setup = replace(setup, spread=traffic.spread)
    model, gpu, group = stated.model, stated.gpu, stated.setup.tp
    if guessed:
        known = launched(model, gpu, setup, stated.named[1] or "", group, traffic)
        engines, note = known or matched(model, gpu, setup, group, traffic)
        notes = (*notes, note)
    else:
        engines = Pools.of(model, gpu, setup, traffic.longest, stated.sides())
    check_prompts(engines.servers[0], int(traffic.input_len.max()))
    served, left_out = _affordable(traffic, engines)
    return Deployed(engines, served, (*notes, *left_out))


def check_prompts(server: Server, longest: int) -> None:
    """Raise BadInput where an engine that does not cut prompts is sent one of more tokens than a step."""
    most = server.policy.max_batched_tokens
    if not server.policy.chunked_prefill and longest > most:
        raise BadInput(
            f"max_num_batched_tokens = {most}: {server.runner.engine.name} does not cut prompts, and one has {longest} "
            f"tokens; give at least {longest}",
            field="max_num_batched_tokens",
        )


def _affordable(traffic: Traffic, engines: Pools) -> tuple[Traffic, tuple[str, ...]]:
    """As many of a closed loop's requests as a run can simulate, two waves at least: later waves repeat the first ones.

    Engines side by side run at least the steps of their share of the tokens.
    """
    clients = traffic.closed
    if not clients or engines.workers[-1] < 2:
        return traffic, ()
    each = float(traffic.output_len.mean()) * engines.workers[-1] / clients  # steps of a request
    count = max(int(AFFORDED * MOST_ROUNDS / (each + 1.0)), 2 * clients)
    if count >= len(traffic):
        return traffic, ()
    note = f"{len(traffic):,} requests take too many steps: the first {count:,} are simulated"
    return traffic.first(count), (note,)


def served(
    deployed: Deployed,
    limits: Sequence[Limit] = (),
    *,
    steady: bool = False,
    interval: bool = True,
    keep_steps: bool = False,
    most_steps: int = MOST_STEPS,
) -> Served:
    """Percentiles in ms and rates of a deployment, with intervals, and on request what happened in each step."""
    engines = deployed.engines
    record = deployed.run(keep_steps=keep_steps, most_steps=most_steps)
    window = deployed.window(record, steady=steady)
    found = deployed.figures(record, window, limits)
    bounds: dict[str, float] = {}
    if interval:
        scales = engines.uncertain.tried(deployed.traffic.closed)
        times = {name: one for name, one in found.items() if name.endswith("_ms") or name == FOUND}
        bounds = interval_ends(times, engines.uncertain, *_tried(deployed, times, scales, most_steps, steady=steady))
    bounds |= deployed.energy(record, found, window)
    if not limits:  # nothing tells good requests from others
        found = {name: one for name, one in found.items() if not name.startswith("good")}
    about = engines.about(deployed.traffic) | {"version": engines.decode.runner.engine.version}
    said = {"traffic": str(deployed.traffic), "notes": deployed.all_notes}
    verdict = steadiness(record, deployed.traffic).verdict
    answer = {**about, **found, **bounds, **said, "verdict": verdict}
    return Served(answer, deployed.traffic, record)


def answer(case: Case, front: Front | None = None, pace: Pace = AS_PREDICTED) -> dict[str, Any]:
    """The answer of the contract, less its id. Raises what building the deployment raises.

    `front`: another front end than the engine's own; `pace`: of the machine it runs on.
    """
    stated, requests = case.stated(front, pace), case.traffic()
    alike = case.arrivals is None and not case.spread and not case.prefix_share
    if case.mode == "estimate" and alike and not stated.apart:
        return _static_answer(case, stated, requests)
    deployed = deploy(stated, requests)
    traffic, uncertain = deployed.traffic, deployed.engines.uncertain
    record = deployed.run()
    window = deployed.window(record, steady=case.steady)
    seen = _batch(record, traffic) if case.mode == "estimate" else _means(deployed.figures(record, window))
    tried = uncertain.tried(traffic.closed) if case.mode == "serve" else ()
    others = _tried(deployed, seen, tried, steady=case.steady)
    intervals = interval_ends({name: seen[name] for name in METRICS if name in seen}, uncertain, *others)
    decode, energy = deployed.engines.decode, deployed.energy(record, seen, window)
    return {
        **{name: round(value, DIGITS) for name, value in (seen | intervals).items()},
        **energy,
        "kv_tokens": decode.memory.kv_tokens,
        "basis": {name: round(share, DIGITS) for name, share in decode.table.basis.items()},
        "traffic": str(traffic),
        **({"verdict": steadiness(record, traffic).verdict} if case.mode == "serve" else {}),
        "notes": [*case.unused, *deployed.all_notes],
    }


def _tried(
    deployed: Deployed, seen: Mapping[str, float], scales: Sequence[float], most: int = MOST_STEPS, *, steady: bool
) -> list[dict[str, float]]:
    """Some figures with steps at ends of their interval; of a long run, as they change those of its first requests."""
    whole = len(deployed.traffic) <= MOST_TRIED
    those = deployed if whole else replace(deployed, traffic=deployed.traffic.first(MOST_TRIED))

    def figures(scale: float) -> Mapping[str, float]:
        record = those.run(scale=scale, most_steps=most)
        found = those.figures(record, those.window(record, steady=steady))
        return found | _means(found)

    base = seen if whole or not scales else figures(1.0)
    ends = [figures(scale) for scale in scales]
    return [{name: one * end[name] / base[name] for name, one in seen.items() if base.get(name)} for end in ends]


def _static_answer(case: Case, stated: Stated, traffic: Traffic) -> dict[str, Any]:
    """What `estimate` says of the batch, in the names of a case's answer."""
    setup, notes, _ = fill(stated, traffic)
    budget = case.max_num_batched_tokens or STEP_TOKENS
    batch = StaticBatch(len(traffic), int(traffic.input_len[0]), int(traffic.output_len[0]), budget)
    found = static_estimate(stated.model, find_gpu(stated.gpu), setup, batch)
    tokens = 1e3 * float(traffic.output_len.sum())
    times: dict[str, float] = {}
    for side, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        ttft, tpot, e2e = (getattr(found, f"{name}_ms{side}") for name in ("prefill", "tpot", "e2e"))
        times |= {f"ttft_ms{side}": ttft, f"tpot_ms{side}": tpot, f"e2e_ms{side}": e2e}
        times[f"output_tokens_per_s{other}"] = tokens / e2e
    times |= {"ttft_p99_ms": found.prefill_ms, "tpot_p99_ms": found.tpot_ms}
    names = [f"{name}{side}" for name in ("power_w", "energy_j_per_output_token") for side in ("", "_low", "_high")]
    times |= {name: getattr(found, name) for name in names}
    if batch.output_len == 1:  # nobody sees a time between tokens
        times = {name: value for name, value in times.items() if not name.startswith("tpot")}
    return {
        **{name: round(value, DIGITS) for name, value in times.items()},
        "kv_tokens": int(found.memory_gib["kv_tokens"]),
        "basis": {name: round(share, DIGITS) for name, share in found.basis.items()},
        "traffic": str(traffic),
        "notes": [*case.unused, *found.notes, *notes],
    }


def _means(figures: Mapping[str, float]) -> dict[str, float]:
    """The contract's means and the slowest in a hundred. Requests of one token, or of one message, have no later ones;
    where no request has more, no time between tokens is answered.
    """
    names = {"ttft_ms": "ttft_mean_ms", "tpot_ms": "tpot_mean_ms", "e2e_ms": "e2e_mean_ms"}
    names |= {"output_tokens_per_s": "output_tokens_per_s", "ttft_p99_ms": "ttft_p99_ms", "tpot_p99_ms": "tpot_p99_ms"}
    later = figures.get("tpot_mean_ms", 0.0) > 0.0
    return {ours: figures[name] for ours, name in names.items() if later or not ours.startswith("tpot")}


def _batch(record: Record, traffic: Traffic) -> dict[str, float]:
    """A static batch as one: until all have their first token, until all are done, and the tokens between."""
    first, done = 1e3 * float(record.first_s.max()), 1e3 * float(record.done_s.max())
    later = float(traffic.output_len.max()) - 1.0
    between = {"tpot_ms": (done - first) / later, "tpot_p99_ms": (done - first) / later} if later else {}
    rate = 1e3 * float(traffic.output_len.sum()) / done
    return {"ttft_ms": first, **between, "e2e_ms": done, "output_tokens_per_s": rate, "ttft_p99_ms": first}
