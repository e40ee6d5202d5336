"""`plan`: evaluate a space of designs, keep those that meet the limits, and find the front and the winner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSpec
from pipewave.models.kernels import Deployment
from pipewave.physics.demand import Array
from pipewave.planning import platforms
from pipewave.planning.launch import pools
from pipewave.planning.manifests import render
from pipewave.planning.prices import Price, prices
from pipewave.planning.served import Checked, Figures, command_line, figures
from pipewave.planning.space import Question, Space, Split
from pipewave.planning.steady import COLUMNS, Evaluated, evaluate
from pipewave.planning.sweep import Progress, sweep
from pipewave.prediction.notes import by_gpu
from pipewave.simulate.interval import Uncertainty, names_version, server_of
from pipewave.simulate.speculative import of as speculative_of
from pipewave.step import Runner, find_engine

TIMES = ("ttft_ms", "tpot_ms")
MARGIN = 64  # tokens that a launched server takes beyond the question: what a chat template adds
ELASTIC = {
    "DRAM bandwidth": "dram_gbps",
    "clock": "boost_clock_mhz",  # peaks and L2 follow it
    "L2 bandwidth": "l2_gbps",
    "link bandwidth": "link_gbps",
    "power": "tdp_w",
    "memory size": "dram_gib",
}
NEAR = 1.1  # designs so near a limit in closed form are served, too
SHOWN = 20  # of the Pareto front, and so many are served
Bools = NDArray[np.bool_]
PERHAPS, STRADDLES = "perhaps", "the 90 % interval of TTFT or TPOT straddles its limit"  # of a design's `sure`


@dataclass(frozen=True, slots=True)
class Designs:
    """Every evaluated design as columns; `split` indexes `splits`."""

    splits: tuple[Split, ...]
    split: np.ndarray[Any, np.dtype[np.intp]]
    budget: Array
    batch: Array
    columns: dict[str, Array]
    usd_per_million: Array
    refused: tuple[tuple[Split, str], ...]
    crowded_out: int
    notes: tuple[tuple[str, ...], ...]  # of each split's kernels
    model: ModelSpec
    found: Mapping[int, Figures] = field(default_factory=dict)  # of the designs that were served

    def at(self, index: int) -> Split:
        """The split of a design."""
        return self.splits[int(self.split[index])]

    @property
    def served(self) -> Bools:
        """Which designs were served."""
        mask = np.zeros(len(self), bool)
        mask[list(self.found)] = True
        return mask

    def corrected(self, checked: Checked) -> Designs:
        """The designs with what runs say of them."""
        rate = "tokens_per_s_per_gpu"
        usd = self.usd_per_million * self.columns[rate] / checked.columns[rate]
        columns = {name: values.copy() for name, values in checked.columns.items()}
        return replace(self, columns=columns, usd_per_million=usd, found=dict(checked.found))

    def __len__(self) -> int:
        return len(self.batch)

    def shortest(self) -> dict[str, float] | None:
        """The shortest times to a first and a later token, each of the design that is best at it; None without any."""
        return {name: round(float(self.columns[name].min()), 3) for name in TIMES} if len(self) else None

    def impossible(self) -> dict[str, str]:
        """GPUs that none of the splits tried is possible on, with the reason of the last of them."""
        able = {split.gpu for split in self.splits}
        return {split.gpu: why for split, why in self.refused if split.gpu not in able}

    def row(self, index: int) -> dict[str, Any]:
        """One design as a flat row; NaN cost (no price known) as None."""
        split = self.at(index)
        cost = float(self.usd_per_million[index])
        return {
            "gpu": split.gpu,
            "gpus": split.gpus,
            "engines": _pools(split),
            "tp": split.tp,
            "pp": split.pp,
            "ep": split.ep,
            "dp": split.dp,
            "drafts": split.speculative or "none",
            "engine": split.engine,
            "kv_dtype": split.kv_dtype or "auto",
            "max_num_seqs": int(self.batch[index]),
            "max_num_batched_tokens": int(self.budget[index]),
            **{name: round(float(self.columns[name][index]), 3) for name in COLUMNS if name != "spread"},
            **self._interval(index),
            "usd_per_million_tokens": None if np.isnan(cost) else round(cost, 4),
        }

    def uncertain(self, index: int) -> Uncertainty:
        """What is open about a design."""
        if index in self.found:
            return self.found[index].uncertain
        split, kernels = self.at(index), float(self.columns["spread"][index])
        drafts = speculative_of(split.speculative).by(self.model).spread if split.speculative else 0.0
        named, ranks = names_version(split.engine), split.dp > 1
        return Uncertainty(kernels, server_of(find_engine(split.engine)), named, ranks, drafts=drafts)

    def _interval(self, index: int) -> dict[str, float]:
        ends = {name: self.uncertain(index).ends(name, float(self.columns[name][index])) for name in TIMES}
        return {name + side: round(ms, 3) for name, each in ends.items() for side, ms in each.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    """The designs, which of them meet the limits, the Pareto front among those, the winner and what would move it."""

    model: str
    question: Question
    designs: Designs
    meets: Bools
    front: tuple[int, ...]
    winner: int | None
    elasticities: tuple[dict[str, Any], ...]
    prices: Mapping[str, Price]
    spec: ModelSpec

    def __repr__(self) -> str:
        """The winner in one line; `to_dict` has everything."""
        found = f"{len(self.designs):,} designs of {self.model}, {int(self.meets.sum()):,} meet the limits"
        if self.winner is None:
            return f"<{found}>"
        row = self.designs.row(self.winner)
        return (
            f"<{found}; cheapest: {row['gpus']} × {row['gpu']}, tp {row['tp']}, {row['max_num_seqs']} at once: "
            f"TTFT {row['ttft_ms']:.4g} ms, TPOT {row['tpot_ms']:.4g} ms>"
        )

    def to_dict(self, most: int = 30, form: str = "shell") -> dict[str, Any]:
        """The plan as one JSON object; the front is thinned to `most` rows, cheapest first."""
        designs = self.designs
        reasons: dict[str, list[str]] = {}
        for split, reason in designs.refused:
            reasons.setdefault(reason, []).append(_words(split))
        used = {designs.splits[designs.split[index]].gpu for index in self._shown()}
        return {
            "model": self.model,
            "designs": len(designs),
            "meet_the_limits": int(self.meets.sum()),
            "best_by_gpu": [self.marked(i) for i in self.best_by_gpu()],
            "shortest": designs.shortest(),
            "winner": None if self.winner is None else self.marked(self.winner),
            "serve": None if self.winner is None else self.serve_command(self.winner),
            "launch": None if self.winner is None else self.launch(self.winner, form),
            "notes": self.notes(),
            "elasticities": list(self.elasticities),
            "front": [self.marked(i) for i in self.front[:most]],
            "does_not_fit": [{"why": why, "splits": splits} for why, splits in reasons.items()],
            "impossible": designs.impossible(),
            "too_large_batches": designs.crowded_out,
            "without_price": sorted(self._unpriced()),
            "prices": [_price_row(p) for name, p in self.prices.items() if name in used],
        }

    def marked(self, index: int) -> dict[str, Any]:
        """A design as a row, and whether it meets the limits for sure: `yes`, or `perhaps` where an interval straddles
        one.
        """
        row = self.designs.row(index)
        limits = {name: limit for name in TIMES if (limit := getattr(self.question, name)) is not None}
        straddles = any(row[f"{name}_low"] <= limit < row[f"{name}_high"] for name, limit in limits.items())
        return row | {"sure": PERHAPS if straddles else "yes"}

    def notes(self) -> list[str]:
        """What the model, the kernels of the designs shown and the winner's interval rest on, each once."""
        shown = dict.fromkeys(int(self.designs.split[index]) for index in self._shown())
        listed = [(self.designs.splits[split].gpu, note) for split in shown for note in self.designs.notes[split]]
        kernels = [note.replace("of this GPU", f"of {gpu}") for gpu, note in listed]
        found = self.designs.found.get(-1 if self.winner is None else self.winner)
        unknown = [*found.notes, found.uncertain.note()] if found else []
        gpus = list(dict.fromkeys(self.designs.splits[split].gpu for split in shown))
        long = self.spec.length_notes(self.question.input_len + self.question.output_len)
        return [*dict.fromkeys(self.spec.notes), *long, *by_gpu(kernels, gpus), *unknown]

    def _shown(self) -> tuple[int, ...]:
        """The designs that the answer names."""
        return (*self.front, *self.best_by_gpu())

    def best_by_gpu(self) -> tuple[int, ...]:
        """The cheapest design of each GPU that was served and meets the limits."""
        return best_by_gpu(self.designs, self.meets & self.designs.served)

    def serve_command(self, index: int) -> str:
        """The command that serves a design under the same load; empty where prompts have engines of their own."""
        split, batch = self.designs.at(index), int(self.designs.batch[index])
        return command_line(self.model, split, self.question, batch, int(self.designs.budget[index]))

    def _unpriced(self) -> set[str]:
        """GPUs that were left out of the front for want of a price."""
        return {split.gpu for split in self.designs.splits if find_gpu(split.gpu).name not in self.prices}

    def launch(self, index: int, form: str = "shell") -> str:
        """What starts one replica of a design: its engine's command, a `docker run`, Kubernetes or Dynamo YAML."""
        designs = self.designs
        split = designs.splits[designs.split[index]]
        length, most = self.question.input_len + self.question.output_len, self.spec.max_length
        engine = Runner.of(Deployment(self.spec, split.parallel), find_gpu(split.gpu), find_engine(split.engine)).engine
        engines = pools(
            self.model,
            split,
            int(designs.batch[index]),
            int(designs.budget[index]),
            length=length if most is None else min(length + MARGIN, most),
            engine=engine,
        )
        return render(form, engine.name, engine.version, engines, platforms.of(split.gpu, engine.name))


def _pools(split: Split) -> str:
    """How many engines of which split: `one`, or `3 tp4 + 1 dp8` when prompts have their own."""
    if split.prefill is None:
        return "one"
    sides = zip(split.workers, (split.prefill, split), strict=True)
    return " + ".join(f"{n} " + (f"dp{s.dp}" if s.dp > 1 else f"tp{s.tp}") for n, s in sides)


def _words(split: Split) -> str:
    """A split in a few words."""
    wide = f" dp{split.dp}" if split.dp > 1 else ""
    return f"{split.gpu} tp{split.tp} pp{split.pp} ep{split.ep}{wide}"


def _price_row(price: Price) -> dict[str, Any]:
    return {name: getattr(price, name) for name in price.__slots__}


def plan(
    model: ModelSpec,
    question: Question,
    space: Space,
    *,
    own_prices: Mapping[str, float] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Evaluate a space. `progress` hears of every few splits: how many more are done, and how many there are.

    Raises UnknownGPU or BadInput; a split that cannot be is a reason in the answer.
    """
    for gpu in space.gpus:
        find_gpu(gpu)
    known = prices(own_prices)
    rough = _gather(sweep(model, question, space, executor, progress), known, model)
    checked = Checked(rough.columns, rough.split)

    def served(index: int) -> Figures:
        return figures(model, rough.at(index), question, int(rough.batch[index]), int(rough.budget[index]))

    def found() -> tuple[Designs, Bools, tuple[int, ...]]:
        designs = rough.corrected(checked)
        meets = _meets(designs, question, NEAR) & checked.possible
        return designs, meets, pareto(designs, meets)

    def named() -> Iterator[int]:
        designs, meets, front = found()
        yield from front[:1]
        yield from best_by_gpu(designs, meets)
        yield from front[1:SHOWN]

    checked.check(named, served, len(space.gpus))
    designs = rough.corrected(checked)
    meets = _meets(designs, question) & checked.possible
    sure = meets & designs.served
    front = pareto(designs, sure)
    winner = front[0] if front else None
    moved = elasticities(model, question, designs, winner) if winner is not None else ()
    return Plan(model.name, question, designs, meets, front, winner, moved, known, model)


def _gather(evaluated: Sequence[Evaluated], known: Mapping[str, Price], model: ModelSpec) -> Designs:
    good = [one for one in evaluated if not one.refused]
    splits = tuple(one.split for one in good)
    sizes = [len(one.batches) for one in good]
    columns = {name: _join([one.columns[name] for one in good]) for name in COLUMNS}
    price = {gpu: known.get(find_gpu(gpu).name) for gpu in {split.gpu for split in splits}}
    hourly = [found.usd_per_hour if (found := price[split.gpu]) else np.nan for split in splits]
    usd = np.repeat(np.array(hourly, float), sizes) / 3600 / columns["tokens_per_s_per_gpu"] * 1e6
    return Designs(
        splits,
        np.repeat(np.arange(len(good)), sizes),
        _join([one.budgets for one in good]),
        _join([one.batches for one in good]),
        columns,
        usd,
        tuple((one.split, one.refused) for one in evaluated if one.refused),
        sum(one.crowded_out for one in evaluated),
        tuple(one.notes for one in good),
        model,
    )


def _join(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0)


def _meets(designs: Designs, question: Question, near: float = 1.0) -> Bools:
    """Which designs keep the limits; those that were not served, `near` times the limits."""
    good, slack = np.ones(len(designs), bool), np.where(designs.served, 1.0, near)
    for name in TIMES:
        limit = getattr(question, name)
        if limit is not None:
            good &= designs.columns[name] <= limit * slack
    return good


def pareto(designs: Designs, among: Bools) -> tuple[int, ...]:
    """Indices of designs no other beats in both cost and speed for a user, cheapest first.

    Cost is USD per token, among GPUs that have a price; when none has, GPU time per token.
    """
    candidates = np.flatnonzero(among & ~np.isnan(designs.usd_per_million))
    cost = designs.usd_per_million[candidates]
    if not len(candidates):
        candidates = np.flatnonzero(among)
        cost = 1.0 / designs.columns["tokens_per_s_per_gpu"][candidates]
    speed = designs.columns["tokens_per_s_per_user"][candidates]
    front, best = [], -np.inf
    for index in np.lexsort((-speed, cost)):
        if speed[index] > best:
            best = speed[index]
            front.append(int(candidates[index]))
    return tuple(front)


def best_by_gpu(designs: Designs, among: Bools) -> tuple[int, ...]:
    """The design of each GPU with most tokens a second and GPU, in order of the GPUs' first designs."""
    best, rate = dict[str, int](), designs.columns["tokens_per_s_per_gpu"]
    for index in np.flatnonzero(among).tolist():
        gpu = designs.at(index).gpu
        if gpu not in best or rate[index] > rate[best[gpu]]:
            best[gpu] = index
    return tuple(best.values())


def elasticities(model: ModelSpec, question: Question, designs: Designs, index: int) -> tuple[dict[str, Any], ...]:
    """What 10 % more of each GPU property would do to a design, in percent."""
    split, setting = designs.splits[designs.split[index]], ([int(designs.budget[index])], [int(designs.batch[index])])
    if split.prefill:
        return ()
    lane = [max(setting[1][0] // (split.pp * split.dp), 1)]
    gpu = find_gpu(split.gpu)
    base = evaluate(model, split, question, setting[0], lane, gpu)
    out = []
    for label, name in ELASTIC.items():
        # Nets know GPUs by name, so the better one keeps it.
        better = gpu.what_if(name=gpu.name, **{name: 1.1 * getattr(gpu, name)})
        changed = evaluate(model, split, question, setting[0], lane, better)
        if not (base.refused or changed.refused):
            out.append({"more": f"+10 % {label}", **_changes(base, changed)})
    return tuple(out)


def _changes(base: Evaluated, changed: Evaluated) -> dict[str, float]:
    names = ("ttft_ms", "tpot_ms", "tokens_per_s_per_gpu")
    return {
        f"{name}_change_percent": round(100 * float(changed.columns[name][0] / base.columns[name][0] - 1), 2)
        for name in names
    }
