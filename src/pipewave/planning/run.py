"""Designs served: what a plan prints of a design is what `serve` says of it under Poisson arrivals at that rate.

The largest rate of a design within limits is found by runs alone: from a first guess along the power law that the last
two runs span, until the nearest limit is met by 3 %.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipewave.errors import PipewaveError
from pipewave.models import ModelSpec
from pipewave.planning.space import Limit, Question, Split
from pipewave.published.answers import Deployed, deploy
from pipewave.published.unstated import Stated
from pipewave.simulate.disaggregated import Side
from pipewave.simulate.interval import interval_ends
from pipewave.simulate.run_window import steadiness
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of as speculative_of
from pipewave.step import find_engine

TURNS, FEWEST, MOST = 8, 300, 2000  # requests of a run for each that is in flight, and at least and at most
MOST_REPLICAS = 4  # of a fleet that one run simulates, at their share of its rate
TRIES, NEAR = 5, 0.03  # runs of a search, and how near the nearest limit is near enough
STEEPEST, FLATTEST, FARTHEST = 8.0, 0.15, 0.7  # of the power law of times over rate; one stride in logarithms
OVERLOADED = math.log(2.0)  # how far a run that cannot keep up counts as above its limits


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A design at a rate: the figures of a run, with intervals where they were asked for."""

    rate: float  # requests a second, of all replicas that were simulated
    replicas: int
    requests: int
    figures: Mapping[str, float]
    over: float  # logarithm of the time nearest to its limit over that limit; above 0: missed
    over_high: float  # the same of the upper ends of intervals; inf where there are none
    max_num_seqs: int  # of a data-parallel rank, and tokens of a step: as stated, or as the engine sets them
    max_num_batched_tokens: int
    notes: tuple[str, ...] = ()

    @property
    def sure(self) -> bool:
        """Whether the limits are kept by the upper ends of the intervals."""
        return self.over_high <= 0

    @property
    def in_flight(self) -> float:
        """Requests at once, by Little's law."""
        return self.rate * self.figures["e2e_mean_ms"] / 1e3


@dataclass(frozen=True, slots=True)
class Measured:
    """A design at the largest rates that keep the limits, surely and likely; None where none does."""

    split: Split
    sure: Point | None = None
    likely: Point | None = None
    refused: str = ""


def stated(model: ModelSpec, split: Split, question: Question, replicas: int = 1) -> Stated:
    """A design as a deployment. `serve` fills what it leaves unsaid as it does for everybody."""
    drafts = speculative_of(split.speculative) if split.speculative else None
    setup = Setup(kv_dtype=split.kv_dtype, speculative=drafts)
    if split.prefill:
        first, then = (side(one, n * replicas) for one, n in zip((split.prefill, split), split.workers, strict=True))
        return Stated(model, split.gpu, setup, split.engine, gpus=split.tp * split.dp, pools=(first, then))
    degrees: dict[str, Any] = {"tp": split.tp, "pp": split.pp, "ep": split.ep, "dp": split.dp, "replicas": replicas}
    setup = Setup(
        **degrees,
        kv_dtype=split.kv_dtype,
        speculative=drafts,
        max_num_seqs=split.max_num_seqs,
        max_num_batched_tokens=budget_of(split, question),
    )
    return Stated(model, split.gpu, setup, split.engine, gpus=split.tp * split.dp)


def side(split: Split, workers: int) -> Side:
    """A pool of a design whose prompts have engines of their own."""
    limits = {"max_num_seqs": split.max_num_seqs, "max_num_batched_tokens": split.max_num_batched_tokens}
    return Side(workers, split.tp, split.pp, split.ep, split.dp, **limits, gpu=split.gpu)


def budget_of(split: Split, question: Question) -> int | None:
    """Tokens of a step as given; where the engine cuts no prompts and its own budget is shorter than the longest one,
    the next power of two.
    """
    rule = find_engine(split.engine).scheduler
    longest = question.longest_prompt
    if split.max_num_batched_tokens or rule.chunks or rule.max_batched_tokens >= longest:
        return split.max_num_batched_tokens
    return 1 << (longest - 1).bit_length()


def requests_for(in_flight: float) -> int:
    """Requests of a run with so many in flight, for its middle to be steady."""
    return int(min(max(TURNS * in_flight, FEWEST), MOST))


def serve(
    model: ModelSpec, split: Split, question: Question, rate: float, requests: int, replicas: int = 1,
    *, ends: str = "both",
) -> Point:  # fmt: skip
    """A design under Poisson arrivals. Raises what a deployment that cannot be raises.

    ends: of the intervals, `both`, `upper` (with slow steps alone) or `none`.
    """
    ready = deploy(stated(model, split, question, replicas), question.traffic(requests, rate))
    figures, overloaded = _run(ready, 1.0)
    over = OVERLOADED if overloaded else _over(figures, question.limits)
    high = math.inf
    if ends != "none":
        uncertain = ready.engines.uncertain
        scales = [scale for scale in uncertain.tried(None) if scale > 1 or ends == "both"]
        others = [_run(ready, scale) for scale in scales]
        figures |= interval_ends(figures, uncertain, *(found for found, _ in others))
        late = overloaded or (bool(question.limits) and any(late for _, late in others))
        high = OVERLOADED if late else _over(figures, question.limits, "_high")
    policy = ready.engines.sides[1].policy
    notes = tuple(ready.all_notes) if ends == "both" else ()
    limits = policy.max_requests, policy.max_batched_tokens
    return Point(rate, replicas, requests, figures, over, high, *limits, notes)


def _run(ready: Deployed, scale: float) -> tuple[dict[str, float], bool]:
    """Figures of the middle of a run, and whether it did not keep up with its requests."""
    record = ready.run(scale=scale)
    found = ready.figures(record, ready.window(record, steady=True))
    return found, steadiness(record, ready.traffic).overloaded


def _over(figures: Mapping[str, float], limits: Sequence[Limit], end: str = "") -> float:
    """Logarithm of the time nearest to its limit over that limit."""
    ratios = [figures.get(one.figure + end, 0.0) / one.ms for one in limits]
    return math.log(max([*ratios, 1e-6]))


def largest(
    model: ModelSpec, split: Split, question: Question, guess: float, in_flight: float, *, sure: bool
) -> Point | None:
    """The design at the largest rate whose times, or whose intervals' upper ends, keep the limits; None: at none.

    Without limits, the largest rate near the guess that the design keeps up with. in_flight: requests at that guess.
    """
    passed: list[tuple[float, float]] = []  # logarithms of rates, and how far above the limits
    missed: list[tuple[float, float]] = []
    at = math.log(guess)
    for _ in range(TRIES):
        rate = math.exp(at)
        requests = requests_for(in_flight * rate / guess)
        point = serve(model, split, question, rate, requests, ends="upper" if sure else "none")
        over = point.over_high if sure else point.over
        (missed if over > 0 else passed).append((at, min(over, OVERLOADED)))
        if -NEAR <= over <= 0 or (over <= 0 and not question.limits):
            break
        at = _next(sorted(passed), sorted(missed))
        if passed and at - max(passed)[0] < NEAR / 4:
            break
    if not passed:
        return None
    rate = math.exp(max(passed)[0])
    return serve(model, split, question, rate, requests_for(in_flight * rate / guess))


def _next(passed: Sequence[tuple[float, float]], missed: Sequence[tuple[float, float]]) -> float:
    """Where to look next: where the line through the two nearest points meets the limits, less half of what is near
    enough, and never outside of what is known.
    """
    low, high = (passed[-1] if passed else None), (missed[0] if missed else None)
    two = [low, high] if low and high else (passed[-2:] if passed else missed[:2])
    aim, (at, over) = -NEAR / 2, (low or high or (0.0, 0.0))
    slope = 1.0
    if len(two) == 2 and two[0] and two[1] and two[1][0] > two[0][0]:
        slope = (two[1][1] - two[0][1]) / (two[1][0] - two[0][0])
    slope = min(max(slope, FLATTEST), STEEPEST)
    following = at + min(max((aim - over) / slope, -FARTHEST), FARTHEST)
    if low and high:
        width = high[0] - low[0]
        following = min(max(following, low[0] + 0.15 * width), high[0] - 0.15 * width)
    return following


def measure(
    model: ModelSpec,
    split: Split,
    question: Question,
    rates: tuple[float, float],
    in_flight: float,
    *,
    likely: bool = True,
) -> Measured:
    """A design at its largest sure rate, and its likely one where asked or where none is sure; searched from first
    guesses of both, likely and sure (0: there is none).
    """
    try:
        guess, surely = rates
        held = in_flight * surely / guess
        sure = largest(model, split, question, surely, held, sure=True) if surely > 0 else None
        other = largest(model, split, question, guess, in_flight, sure=False) if likely or sure is None else None
        return Measured(split, sure, other)
    except PipewaveError as problem:
        return Measured(split, refused=problem.message)


def command_line(model: str, split: Split, question: Question, point: Point) -> str:
    """`pipewave serve` of a design under the same requests; empty where no command says them."""
    if question.recorded is not None or split.weights:
        return ""
    words = ["pipewave", "serve", "--model", model, "--gpu", split.gpu, "--engine", split.engine]
    if split.prefill:
        for name, one, each in zip(("prefill", "decode"), (split.prefill, split), split.workers, strict=True):
            words += [f"--{name}", _pool(one, each * point.replicas)]
    else:
        degrees: dict[str, Any] = {"tp": split.tp, "pp": split.pp, "ep": split.ep, "dp": split.dp}
        words += [word for name, n in degrees.items() if n > 1 for word in (f"--{name}", str(n))]
        words += ["--gpus", str(split.tp * split.dp)] if split.dp > 1 and split.tp > 1 else []
        words += ["--replicas", str(point.replicas)] if point.replicas > 1 else []
        limits = {"--max-num-seqs": split.max_num_seqs, "--max-num-batched-tokens": budget_of(split, question)}
        words += [word for name, value in limits.items() if value for word in (name, str(value))]
    words += ["--kv-cache-dtype", split.kv_dtype] if split.kv_dtype else []
    words += ["--speculative", split.speculative] if split.speculative else []
    words += ["--prefix-share", f"{question.prefix_share:g}"] if question.prefix_share else []
    words += ["--isl", str(question.input_len), "--osl", str(question.output_len), "--spread", f"{question.spread:g}"]
    return shlex.join([*words, "--request-rate", repr(point.rate), "--requests", str(point.requests), "--steady"])


def _pool(split: Split, workers: int) -> str:
    said = {"workers": workers, "gpu": split.gpu, "tp": split.tp, "ep": split.ep, "dp": split.dp}
    return ",".join(f"{name}={value}" for name, value in said.items() if value != 1)
