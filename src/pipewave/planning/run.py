"""Designs served: what a plan prints of a design is what `serve` says of it under Poisson arrivals at that rate.

The largest rate of a design within limits is found by runs alone: from a first guess along the power law that the last
two runs span, until the nearest limit is met by 5 %.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pipewave.models import ModelSpec
from pipewave.planning.space import Question, Split
from pipewave.published.answers import Deployed, deploy
from pipewave.published.unstated import Stated
from pipewave.simulate.interval import interval_ends
from pipewave.simulate.pools import Side
from pipewave.simulate.report import over
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of as speculative_of
from pipewave.step import find_engine

TURNS, FEWEST, MOST = 6, 300, 1500  # requests of a run for each that is in flight, and at least and at most
FILLS, LONGEST = 2, 6000  # but so many for each, up to so many: engines that still fill look faster, or overloaded
MOST_RANKS = 4  # engines of a fleet that one run simulates (at least one replica), at their share of its rate
SHORT_TURNS, SHORT_MOST = 4, 700  # of a run on the way to the largest rate
TRIES = 5  # runs of that search
STEEPEST, FLATTEST, FIRST, FARTHEST = 8.0, 0.15, 2.0, 0.7  # of the power law of times over rate; one stride, in logs
OVERLOADED = 0.25  # how far a run that cannot keep up counts as above its limits, as a logarithm
Ready = Callable[[float, int, int], Deployed]  # a design for so many requests at a rate, of so many replicas


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A design at a rate: the figures of a run, with intervals where they were asked for."""

    rate: float  # requests a second, of all replicas that were simulated
    replicas: int
    requests: int
    figures: Mapping[str, float]
    over: float  # logarithm of the time nearest to its limit over that limit; above 0: missed
    over_high: float  # the same of the upper ends of intervals; inf where there are none
    max_num_seqs: int  # of a data-parallel rank: as stated or as the engine sets it, where its cache holds as many
    max_num_batched_tokens: int  # as stated or as the engine sets it
    notes: tuple[str, ...] = ()

    @property
    def sure(self) -> bool:
        """Whether the limits are kept by the upper ends of the intervals."""
        return self.over_high <= 0

    @property
    def in_flight(self) -> float:
        """Requests at once, by Little's law."""
        return self.rate * self.figures["e2e_mean_ms"] / 1e3


def stated(model: ModelSpec, split: Split, question: Question, replicas: int = 1) -> Stated:
    """A design as a deployment. `serve` fills what it leaves unsaid as it does for everybody."""
    setup = Setup(kv_dtype=split.kv_dtype, speculative=speculative_of(split.speculative) if split.speculative else None)
    if split.prefill:
        first, then = (side(one, n * replicas) for one, n in zip((split.prefill, split), split.workers, strict=True))
        return Stated(model, split.card, setup, split.engine, gpus=split.tp * split.dp, pools=(first, then))
    own = {name: getattr(split, name) for name in ("tp", "pp", "ep", "dp", "dcp", "max_num_seqs")}
    setup = replace(setup, **own, replicas=replicas, max_num_batched_tokens=budget_of(split, question))
    return Stated(model, split.card, setup, split.engine, said=frozenset(["ep", "dp"]), gpus=split.tp * split.dp)


def side(split: Split, workers: int) -> Side:
    """A pool of a design whose prompts have engines of their own."""
    limits = split.max_num_seqs, split.max_num_batched_tokens, split.card
    return Side(workers, split.tp, split.pp, split.ep, split.dp, *limits)


def budget_of(split: Split, question: Question) -> int | None:
    """Tokens of a step as given; where the engine cuts no prompts and its own budget is shorter than the longest one,
    the next power of two.
    """
    rule = find_engine(split.engine).scheduler
    longest = question.longest_prompt
    if split.max_num_batched_tokens or rule.chunks or rule.max_batched_tokens >= longest:
        return split.max_num_batched_tokens
    return 1 << (longest - 1).bit_length()


def requests_for(in_flight: float, turns: int = TURNS, most: int = MOST) -> int:
    """Requests of a run with so many in flight, for its middle to be steady."""
    return int(max(min(max(turns * in_flight, FEWEST), most), min(FILLS * in_flight, LONGEST)))


def ready_for(model: ModelSpec, split: Split, question: Question) -> Ready:
    """A design, each run of it made once: the one that finds the largest rate is often the one that is told."""
    return cache(lambda rate, requests, n: deploy(stated(model, split, question, n), question.traffic(requests, rate)))


def serve(
    design: Ready, question: Question, rate: float, requests: int, replicas: int = 1, *, sure: bool = False
) -> Point:
    """A design under Poisson arrivals; where it misses, ends of its intervals are not run; nor is the lower one where
    it must keep the limits by the upper one (`sure`), and does not. Raises as `deploy` does.
    """
    ready = design(rate, requests, replicas)
    (figures, _), record, uncertain = ready.steady_figures(), ready.run(), ready.engines.uncertain
    above, high = (_above(ready, question, sure=upper) for upper in (False, True))
    scales = uncertain.tried(None) if above <= 0 and (high <= 0 or not sure) else ()
    ends = interval_ends(figures, uncertain, *(ready.steady_figures(scale)[0] for scale in scales))
    figures = {**figures, **ends, **ready.energy(record, figures, ready.window(record, steady=True))}
    server = ready.engines.decode
    fits = max(int(server.kv.pages // server.kv.held(question.input_len + question.output_len)), 1)
    limits = min(server.policy.max_requests, fits), server.policy.max_batched_tokens
    return Point(rate, replicas, requests, figures, above, high, *limits, tuple(ready.all_notes))


def _above(ready: Deployed, question: Question, *, sure: bool) -> float:
    """How far the times of a deployment, or the upper ends of their intervals, are above the limits, as a logarithm.
    Steps at their slowest are run only where the others leave it open.
    """
    figures, overloaded = ready.steady_figures()
    if not sure or overloaded or not question.limits:
        return OVERLOADED if overloaded else over(figures, question.limits)
    uncertain = ready.engines.uncertain
    if (by_law := over(figures | interval_ends(figures, uncertain), question.limits, "_high")) > 0:
        return by_law
    slow, late = ready.steady_figures(max(uncertain.tried(None), default=1.0))
    return OVERLOADED if late else max(by_law, over(slow, question.limits))


def _surely_above(ready: Deployed, question: Question) -> float:
    """The same of the upper ends, from steps at their slowest alone where these tell: without queues all times grow as
    steps do, with them faster, so those of likely steps are shorter by that factor at least.
    """
    uncertain = ready.engines.uncertain
    scale = max(uncertain.tried(None), default=1.0)
    slow, late = ready.steady_figures(scale)
    above = OVERLOADED if late else over(slow, question.limits)
    likely = {name: value / scale for name, value in slow.items() if name.endswith("_ms")}
    by_law = over(slow | interval_ends(likely, uncertain), question.limits, "_high")
    return above if above > 0 or by_law <= above else _above(ready, question, sure=True)


def largest(design: Ready, question: Question, guess: float, in_flight: float, *, sure: bool, near: float) -> float:
    """The largest rate at which a design's times, or their intervals' upper ends, keep the limits, from short runs; 0:
    none was found.

    Without limits, the largest rate near the guess that the design keeps up with. in_flight: requests at that guess.
    near: how near the nearest limit is near enough, as a logarithm.
    """
    passed, missed = (list[tuple[float, float]]() for _ in range(2))  # logarithms of rates, how far above the limits
    at = math.log(guess)
    for _ in range(TRIES):
        rate = math.exp(at)
        ready = design(rate, requests_for(in_flight * rate / guess, SHORT_TURNS, SHORT_MOST), 1)
        above = _surely_above(ready, question) if sure and question.limits else _above(ready, question, sure=False)
        (missed if above > 0 else passed).append((at, min(above, FARTHEST)))
        if -near <= above <= 0 or (above <= 0 and not question.limits):
            break
        at = _next(sorted(passed), sorted(missed), -near / 2)
        if passed and at - max(passed)[0] < near / 2:
            break
    return math.exp(max(passed)[0]) if passed else 0.0


def _next(passed: Sequence[tuple[float, float]], missed: Sequence[tuple[float, float]], aim: float) -> float:
    """Where to look next: where the line through the two nearest points is so far above the limits, and never outside
    of what is known.
    """
    two = [passed[-1], missed[0]] if passed and missed else passed[-2:] or missed[:2]
    (at, above), wide = (passed[-1:] or missed[:1])[0], two[-1][0] - two[0][0]
    slope = min(max((two[-1][1] - two[0][1]) / wide, FLATTEST), STEEPEST) if wide > 0 else FIRST
    following = at + min(max((aim - above) / slope, -FARTHEST), FARTHEST)
    if passed and missed:
        following = min(max(following, two[0][0] + 0.15 * wide), two[1][0] - 0.15 * wide)
    return following


def command_line(model: str, split: Split, question: Question, point: Point) -> str:
    """`pipewave serve` of a design under the same requests; empty where no command says them."""
    capped_pools = split.prefill and (split.power_limit_w or split.prefill.power_limit_w)
    if question.recorded is not None or capped_pools:
        return ""
    words = ["pipewave", "serve", "--model", model, "--gpu", split.gpu, "--engine", split.engine]
    if split.prefill:
        for name, one, each in zip(("prefill", "decode"), (split.prefill, split), split.workers, strict=True):
            said = {"workers": each * point.replicas} | {key: getattr(one, key) for key in ("gpu", "tp", "ep", "dp")}
            said = {key: value for key, value in said.items() if value != 1}
            said |= {key: limit for key in ("max_num_seqs", "max_num_batched_tokens") if (limit := getattr(one, key))}
            words += [f"--{name}", ",".join(f"{key}={value}" for key, value in said.items())]
    else:
        degrees = ((name, getattr(split, name)) for name in ("tp", "pp", "ep", "dp", "dcp"))
        words += [word for name, n in degrees if n > 1 for word in (f"--{name}", str(n))]
        words += ["--gpus", str(split.tp * split.dp)] if split.dp > 1 and split.tp > 1 else []
        words += ["--replicas", str(point.replicas)] if point.replicas > 1 else []
        limits = {"--max-num-seqs": split.max_num_seqs, "--max-num-batched-tokens": budget_of(split, question)}
        words += [word for name, value in limits.items() if value for word in (name, str(value))]
    words += ["--kv-cache-dtype", split.kv_dtype] if split.kv_dtype else []
    words += ["--quantize", split.weights] if split.weights else []
    words += ["--power-limit", f"{split.power_limit_w:g}"] if split.power_limit_w else []
    words += ["--speculative", split.speculative] if split.speculative else []
    words += ["--prefix-share", f"{question.prefix_share:g}"] if question.prefix_share else []
    words += ["--isl", str(question.input_len), "--osl", str(question.output_len), "--spread", f"{question.spread:g}"]
    return shlex.join([*words, "--request-rate", repr(point.rate), "--requests", str(point.requests), "--steady"])
