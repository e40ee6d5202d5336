"""Steps that draft and verify: what they take, and how many tokens they make.

A step verifies the drafts of the step before (each request brings tokens + 1 of them), then drafts anew: the drafting
layers see the verified tokens once, and one token a request for every further draft. It makes `mean` tokens a request
on average; the simulator counts in tokens, so a step's time is spread over them, and prompts that ride along cost what
they add to a step. The spread of single requests around the mean is left out: it averages out over their outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipewave.models import load
from pipewave.models.attention_spec import Recurrent
from pipewave.models.kernels import Batch
from pipewave.models.lora_and_drafts import draft_bytes, drafter
from pipewave.models.shard import kv_bytes_per_token, weight_bytes
from pipewave.models.spec import ModelSpec
from pipewave.simulate.kv_budget import beside
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.step_grids import Axes, Numbers, Pieces, RankBatch, Reader, Sizes, at_every_count, reader, upto
from pipewave.simulate.step_table import StepTable
from pipewave.step import Runner
from pipewave.step.memory import GIB, Budget

COUNTS = tuple(1 << i for i in range(13))


def draft_model(model: ModelSpec, how: Speculative) -> ModelSpec | None:
    """The model that drafts, where one does."""
    return load(how.model) if how.model else drafter(model, how.method)


class Drafter:
    """Seconds it takes to draft, read between points of (requests, mean cache)."""

    def __init__(self, runner: Runner, how: Speculative, sizes: Sizes) -> None:
        model, axes = draft_model(runner.deployment.model, how), Axes.of(sizes)
        self.caches: Sequence[float] = axes.caches
        self.counts: Sequence[int] = axes.counts if sizes.prompt else upto(sizes.requests, COUNTS)
        self.reads: Numbers[Reader] | None = None  # seconds by mean cache, of so many requests
        if model is not None:
            parallel = replace(runner.deployment.parallel, pp=1)
            parts = replace(runner, deployment=replace(runner.deployment, model=model, parallel=parallel))
            rows = self._predict(parts, how)
            self.reads = Numbers(lambda requests: reader(self.caches, rows[requests]))

    def _predict(self, runner: Runner, how: Speculative) -> Numbers[list[float]]:
        points = [(n, int(c)) for n in self.counts for c in self.caches]
        verified = how.verified
        first = [Batch((verified,) * n, (c + verified,) * n, verify=verified) for n, c in points]
        later = [Batch((1,) * n, (c + verified,) * n) for n, c in points if how.tokens > 1]
        priced = runner.price([runner.deployment.kernels(batch) for batch in (*first, *later)])
        us = priced.us + priced.nodes * runner.engine.host.graph_gap_us
        us = us.reshape(-1, len(points)).T @ [1.0, how.tokens - 1][: 1 + bool(later)]
        return at_every_count(self.counts, self.caches, 1e-6 * us)

    def seconds(self, decoding: int, cached: float) -> float:
        """Of drafting for so many requests that hold `cached` tokens together."""
        if not decoding or self.reads is None:
            return 0.0
        return self.reads[min(decoding, self.counts[-1])].at(cached / decoding)


class Drafted:
    """A step table under speculative decoding: seconds for one more token of every request that decodes."""

    def __init__(self, verifying: StepTable, drafts: Drafter, mean: float) -> None:
        self.verifying, self.drafts, self.mean = verifying, drafts, mean
        self.decoders: dict[int, Reader] = {}
        self.hidden_s = verifying.hidden_s  # as of steps without drafts

    def seconds(self, decoding: int, cached: int, pieces: Pieces) -> float:
        """Of a token of `decoding` requests that hold `cached` tokens together, beside prompt pieces."""
        if not decoding:
            return self.verifying.seconds(0, cached, pieces)
        alone = self.step_s(decoding, cached)
        if not pieces:
            return alone / self.mean
        both = self.verifying.seconds(decoding, cached, pieces) + self._draft_s(decoding, cached)
        return both - alone + alone / self.mean

    def decoder(self, decoding: int) -> Reader:
        """Of a token of so many requests that decode while nothing else runs, by the tokens they hold together."""
        known = self.decoders.get(decoding)
        if known is None:
            caches = sorted({*self.verifying.axes.caches, *self.drafts.caches})
            held = [cache * decoding for cache in caches]
            times = [self.step_s(decoding, cached) / self.mean for cached in held]
            known = self.decoders[decoding] = reader(held, times)
        return known

    def group_seconds(self, ranks: Sequence[RankBatch]) -> float:
        """The same of data-parallel ranks in lock step; the fullest one's drafts count."""
        drafts = max([self._draft_s(decoding, cached) for decoding, cached, _ in ranks])
        whole = self.verifying.group_seconds(ranks) + drafts
        if not any(decoding for decoding, _, _ in ranks):
            return whole
        if not any(pieces for _, _, pieces in ranks):
            return whole / self.mean
        alone = self.verifying.group_seconds([(decoding, cached, ()) for decoding, cached, _ in ranks]) + drafts
        return whole - alone + alone / self.mean

    def watts(self, seconds: float, decoding: int, cached: float, pieces: Pieces, ranks: int) -> float:
        """Mean watts of one GPU while a step verifies; drafts draw about as much."""
        each, held = -(-decoding // ranks), cached / ranks
        if pieces and ranks > 1:  # of a step of all ranks, in which tokens of drafts are told at their share
            drafted = (1 - 1 / self.mean) * self.step_s(each, int(held)) - self._draft_s(each, held) if each else 0.0
            return self.verifying.watts(seconds + drafted, decoding, cached, pieces, ranks)
        return self.verifying.watts(self.verifying.seconds(each, int(held), pieces), decoding, cached, pieces, ranks)

    def step_s(self, decoding: int, cached: float) -> float:
        """A whole step: verification and drafts."""
        return self.verifying.seconds(decoding, cached, ()) + self._draft_s(decoding, cached)

    def scaled(self, factor: float) -> Drafted:
        """The same with every step `factor` times as long."""
        return Drafted(self.verifying.scaled(factor), self.drafts, self.mean)

    def _draft_s(self, decoding: int, cached: float) -> float:
        return 1e6 * self.verifying.factor * self.verifying.pace.decode * self.drafts.seconds(decoding, cached)


def pays_until(plain: StepTable, drafted: Drafted, cache: int) -> int:
    """Most requests with which a token comes sooner drafted than not, each holding `cache` tokens; 0: never."""
    counts = range(1, min(plain.most_requests, drafted.verifying.most_requests) + 1)
    pays = [n for n in counts if drafted.seconds(n, n * cache, ()) < plain.seconds(n, n * cache, ())]
    return max(pays, default=0)


def with_drafter(memory: Budget, runner: Runner, how: Speculative | None) -> Budget:
    """GPU memory with the drafting layers' weights and KV cache taken out. Raises DoesNotFit.

    Engines keep a recurrent state after every token that a step verifies, for the accepted one to be taken on.
    """
    if how is None:
        return memory
    if runner.deployment.model.has(Recurrent):
        memory = replace(memory, states=memory.states + how.tokens + runner.engine.memory.states.drafting)
    model = draft_model(runner.deployment.model, how)
    if model is None:
        return memory
    split = runner.deployment.parallel
    alone = replace(split, pp=1)
    weights = weight_bytes(model, alone) if how.model else draft_bytes(model, split.tp, split.group)
    own = kv_bytes_per_token(runner.deployment.model, split, runner.deployment.kv_dtype)
    more = kv_bytes_per_token(model, alone, runner.deployment.kv_dtype)
    share = own / (own + more) if own else 1.0
    return beside(memory, weights / GIB, runner.engine.memory.page_size, "drafting layers", "speculative", share)
