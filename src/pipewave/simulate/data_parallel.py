"""Attention data parallelism: ranks of one engine with a scheduler, a cache and requests each, and one step for all.

Attention and dense parts of a step wait for the fullest rank; experts and the exchange work on the tokens of all.
Ranks without requests run along empty. New requests go to the rank with the fewest. All wait for the rank that compiles
a kernel or loads caches; what one rank compiled, the others find on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol

import numpy as np

from pipewave.simulate.engine_step import BatchPolicy, Step, StepTimer, Untimed
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.replica import Replica
from pipewave.simulate.step_grids import RankBatch
from pipewave.simulate.traffic import Traffic

FEWEST, BLOCK = 3, 16  # steps whose times are read between the first's and the last's


class GroupTimer(StepTimer, Protocol):
    """Step times of one scheduler, and of data-parallel ranks in lock step."""

    def group_seconds(self, ranks: Sequence[RankBatch], /) -> float:
        """Seconds of a step of all ranks."""


class DataParallelGroup:
    """`ranks` replicas in lock step, with the face of one replica; arguments as Replica's.

    Prompts are held back until every rank has one, for `prefill_wait_steps` of the policy, where ranks are decoding
    (TensorRT-LLM's `attention_dp_config`: enable_balance and timeout_iters).
    """

    def __init__(
        self,
        timer: GroupTimer,
        policy: BatchPolicy,
        kv: KvBudget,
        traffic: Traffic,
        ranks: int,
        *,
        ready: bool = False,
        jitter: Sequence[float] = (1.0,),
    ) -> None:
        self.jitter, self.jitters, self.steps = jitter, np.array(jitter), 0
        self.timer, self.most_held, self.held = timer, 0 if ready else policy.prefill_wait_steps, 0
        parts, compiled = (Untimed(), policy, kv, traffic), set[int]()
        self.ranks = [Replica(*parts, ready=ready, compiled=compiled) for _ in range(ranks)]
        self.waiting: deque[int] = deque()
        self.given = 0  # requests that run or wait on ranks

    @property
    def idle(self) -> bool:
        """True when there is nothing to do."""
        return not (self.waiting or self.given)

    @property
    def decoding(self) -> int:
        """Requests that decode."""
        return sum(rank.decoding for rank in self.ranks)

    @property
    def cached(self) -> int:
        """Tokens that they hold."""
        return sum(rank.cached for rank in self.ranks)

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return len(self.waiting) + self.given

    def step(self, now: float) -> Step:
        """Schedule and run one step of every rank."""
        while self.waiting:
            min(self.ranks, key=attrgetter("load")).waiting.append(self.waiting.popleft())
        kept = [rank.waiting for rank in self.ranks] if self._holds() else []
        for rank in self.ranks[: len(kept)]:
            rank.waiting = deque()
        whole, batches, waits_s = Step(now, 0.0, 0, []), list[RankBatch](), 0.0
        for rank in self.ranks:
            opened = rank.pass_quiet_step()
            if opened is not None:
                whole.pages += rank.kv.pages - rank.free - opened
                batches.append((rank.decoding, rank.cached, ()))
                continue
            step = rank.step(now)
            waits_s = max(waits_s, step.seconds)  # for a kernel to be compiled, or caches
            whole.pieces += step.pieces
            whole.first += step.first
            whole.done += step.done
            whole.preempted += step.preempted
            whole.pages += step.pages
            batches.append((step.decoding, step.cached, [(size, before) for _, size, before in step.pieces]))
        whole.decoding = sum([decoding for decoding, _, _ in batches])
        whole.cached = sum([cached for decoding, cached, _ in batches if decoding])
        whole.waiting = sum([len(rank.waiting) for rank in self.ranks])
        for rank, waiting in zip(self.ranks, kept, strict=False):
            rank.waiting = waiting
        self.given = sum([rank.load for rank in self.ranks])
        if whole.decoding or whole.pieces:
            whole.seconds = self.timer.group_seconds(batches) * self.jitter[self.steps % len(self.jitter)] + waits_s
            self.steps += 1
        return whole

    def decode_until(self, now: float, until: float, most: int) -> list[float]:
        """Run steps in which every request that runs decodes, as `Replica` does; their times are read between those of
        the first and the last of each few.
        """
        ends: list[float] = []
        while not self.waiting and not (self.most_held and any(rank.waiting for rank in self.ranks)):
            count = min(most - len(ends), BLOCK)
            for rank in self.ranks:
                if count >= FEWEST:
                    count = rank.quiet_steps(count)
            if count < FEWEST or not self.decoding:
                break
            work = (
                [(one.decoding, one.cached + ahead * one.decoding, ()) for one in self.ranks] for ahead in (1, count)
            )
            first, last = map(self.timer.group_seconds, work)
            took = np.linspace(first, last, count) * self.jitters[(self.steps + np.arange(count)) % len(self.jitters)]
            found = np.add.accumulate(np.concatenate(([now], took)))[1:]
            run = int(np.searchsorted(found, until, "right"))
            for rank in self.ranks:
                rank.pass_quiet(run, rank.opened(run))
            ends += found[:run].tolist()
            self.steps += run
            if run < count:
                break
            now = ends[-1]
        return ends

    def _holds(self) -> bool:
        """Whether prompts wait for ranks that have none."""
        if not self.most_held or not any(with_prompts := [bool(rank.waiting) for rank in self.ranks]):
            return False
        waits = not all(with_prompts) and all(rank.decoding for rank in self.ranks) and self.held + 1 < self.most_held
        self.held = self.held + 1 if waits else 0
        return waits
