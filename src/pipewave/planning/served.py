"""Designs served: the figures of a plan's best designs are those of `serve` under the same steady load.

The closed form (`steady`) ranks thousands of designs; those that a plan names are then simulated as `pipewave serve
--steady` does, with lengths within half of their mean. Where a run says otherwise, the design takes the run's figures,
its neighbours of the same split are moved alike, and the ranking is made again.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.models import ModelSpec
from pipewave.physics.demand import Array
from pipewave.planning.space import Question, Split
from pipewave.published.answers import deploy
from pipewave.published.unstated import Stated
from pipewave.simulate.disaggregated import Side
from pipewave.simulate.interval import Uncertainty
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of as speculative_of
from pipewave.simulate.traffic import Traffic, synthetic

ROUNDS, FEWEST = 5, 128  # requests of each place in the batch; requests of a run at least
SPREAD = 0.5  # of lengths, over their mean
MOST_SERVED = 16  # designs of a plan, and one more for each GPU
CHANGED = ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s_per_gpu")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run says of a design, and what is open about it."""

    columns: dict[str, float]
    uncertain: Uncertainty
    notes: tuple[str, ...]


def load(question: Question, batch: int) -> Traffic:
    """A steady load that keeps `batch` requests in flight."""
    count = max(ROUNDS * batch, FEWEST)
    sizes = {"input_len": question.input_len, "output_len": question.output_len}
    return synthetic(count, **sizes, concurrency=batch, spread=SPREAD)


def longest_prompt(question: Question) -> int:
    """Most tokens of a prompt of that load."""
    return int(question.input_len * (1 + SPREAD))


def stated(model: ModelSpec, split: Split, batch: int, budget: int | None) -> Stated:
    """A design as a deployment."""
    each = -(-batch // (split.dp * max(split.workers[1], 1)))
    drafts = speculative_of(split.speculative) if split.speculative else None
    degrees: dict[str, Any] = {"tp": split.tp, "pp": split.pp, "ep": split.ep, "dp": split.dp}
    limits: dict[str, Any] = {"max_num_seqs": each, "max_num_batched_tokens": budget}
    setup = Setup(**degrees, **limits, kv_dtype=split.kv_dtype, speculative=drafts)
    pools = None
    if split.prefill:
        prompts, tokens = split.workers
        first = Side(prompts, split.prefill.tp, split.prefill.pp, split.prefill.ep, split.prefill.dp)
        pools = (first, Side(tokens, **degrees, max_num_seqs=each))
        setup = Setup(kv_dtype=split.kv_dtype, speculative=drafts)
    return Stated(model, split.gpu, setup, split.engine, gpus=split.tp * split.dp, pools=pools)


def figures(model: ModelSpec, split: Split, question: Question, batch: int, budget: int) -> Figures:
    """A design under its steady load. Raises what a deployment that cannot be raises."""
    ready = deploy(stated(model, split, batch, budget), load(question, batch))
    record = ready.run()
    found = ready.figures(record, ready.window(record, steady=True))
    tpot = found.get("tpot_mean_ms", 0.0)
    columns = {
        "ttft_ms": found["ttft_mean_ms"],
        "tpot_ms": tpot,
        "e2e_ms": found["e2e_mean_ms"],
        "tokens_per_s_per_gpu": found["output_tokens_per_s_per_gpu"],
        "tokens_per_s_per_user": 1e3 / tpot if tpot else np.inf,
    }
    return Figures(columns, ready.engines.uncertain, ready.notes)


@dataclass(slots=True)
class Checked:
    """Designs' columns as runs correct them."""

    columns: dict[str, Array]
    split: np.ndarray[Any, np.dtype[np.intp]]
    found: dict[int, Figures] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    ratios: dict[int, list[Array]] = field(
        default_factory=dict
    )  # of each split's runs over the closed form, logarithms

    def __post_init__(self) -> None:
        self.columns = {name: values.copy() for name, values in self.columns.items()}
        self._first = {name: values.copy() for name, values in self.columns.items()}

    _first: dict[str, Array] = field(init=False, default_factory=dict)

    def check(self, named: Callable[[], Iterable[int]], serve: Callable[[int], Figures], gpus: int) -> None:
        """Serve the designs that `named` lists, which hears of every correction, until all of them were, or enough."""
        while len(self.found) + len(self.refused) < MOST_SERVED + gpus:
            index = next((i for i in named() if i not in self.found and i not in self.refused), None)
            if index is None:
                return
            try:
                self._correct(index, serve(index))
            except PipewaveError as problem:
                self.refused[index] = problem.message

    @property
    def possible(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Designs that no run refused."""
        able = np.ones(len(self.split), bool)
        able[list(self.refused)] = False
        return able

    def _correct(self, index: int, run: Figures) -> None:
        """Take a run's figures, and move the split's other designs by the mean of its runs over the closed form."""
        self.found[index] = run
        seen = self.ratios.setdefault(int(self.split[index]), [])
        pairs = [(run.columns[name], float(self._first[name][index])) for name in CHANGED]
        seen.append(np.array([np.log(a / b) if a > 0 < b else 0.0 for a, b in pairs]))
        others = self.split == self.split[index]
        others[list(self.found)] = False
        for name, log_ratio in zip(CHANGED, np.mean(seen, axis=0), strict=True):
            self.columns[name][others] = self._first[name][others] * np.exp(log_ratio)
        with np.errstate(divide="ignore"):
            self.columns["tokens_per_s_per_user"][others] = 1e3 / self.columns["tpot_ms"][others]
        for name, value in run.columns.items():
            self.columns[name][index] = value


def command_line(model: str, split: Split, question: Question, batch: int, budget: int) -> str:
    """`pipewave serve` of a design under the same load; empty where prompts have engines of their own."""
    if split.prefill:
        return ""
    words = ["pipewave", "serve", "--model", model, "--gpu", split.gpu, "--engine", split.engine]
    degrees: dict[str, Any] = {"tp": split.tp, "pp": split.pp, "ep": split.ep, "dp": split.dp}
    words += [word for name, n in degrees.items() if n > 1 for word in (f"--{name}", str(n))]
    words += ["--gpus", str(split.tp * split.dp)] if split.dp > 1 and split.tp > 1 else []
    words += ["--kv-cache-dtype", split.kv_dtype] if split.kv_dtype else []
    words += ["--speculative", split.speculative] if split.speculative else []
    words += ["--max-num-seqs", str(-(-batch // split.dp)), "--max-num-batched-tokens", str(budget)]
    words += ["--isl", str(question.input_len), "--osl", str(question.output_len), "--concurrency", str(batch)]
    return shlex.join([*words, "--requests", str(max(ROUNDS * batch, FEWEST)), "--spread", str(SPREAD), "--steady"])
