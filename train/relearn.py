"""`python -m train relearn --net gemm`: a net that ships, trained on: new rows are learned, the rest is kept.

Four terms go down together. Rows, up to half of them of software or tables that the net does not know, against their
measured times. Rows of known software, and drawn calls, against what the net said of them, also where GPU or software
is hidden. And pairs of calls of which the second is more work, until it takes no less time (`train.drawn`). Held-out
shapes are neither learned nor kept. `train/plans/relearn.json` holds the weights of the terms,
`train/plans/<net>.relearn.json` what a net has otherwise: of a table that was measured again, nothing is kept.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipewave.nets.nets import Net, load
from pipewave.nets.weights_metadata import from_nested, kind_of
from train.cards import read
from train.descent import Loss, orders, taught
from train.drawn import ORDERED, Drawn, drawn
from train.ensemble import Ensemble
from train.fit import clip
from train.record import begun
from train.rows import Floats, Ints, Rows
from train.run import Run, as_one, save_predictions
from train.splits import by_name, meet
from train.start import ensemble_of, successors, with_new

SPLIT, TRAINER = "ship", "train.relearn"
SCALES = 0.4  # what a square of the log of the error's scale costs where answers are kept
MARGIN = 0.006  # by which the larger call of a pair is to be slower
NEAR = 0.06  # pairs closer to being out of order than this make up most of a batch
HIDDEN_SHARE = 0.1  # of the codes of half of the rows, as in training
PART = 65_536  # calls answered at once
FEWEST = 600  # steps of nets of few rows
OFTEN = 8  # times as often as others is a row to be learned drawn: few ones would be learned by heart
PREFERRED = 0.01  # by which another than the last net is to be better: the last is most in order
LOSS = Loss("mape")


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps, rows a step, rate; what a square of log time off the old answer costs on rows (`kept`) and on drawn calls
    (`drawn`), and what a pair out of order does (`order`), beside a relative error of 1 on measured rows; conditions of
    rows that are learned anew though their software is known; contexts that are drawn. Nets of few rows take
    `epochs` at most.
    """

    steps: int = 8_000
    batch: int = 4_096
    rate: float = 1e-3
    kept: float = 10.0
    drawn: float = 10.0
    order: float = 8.0
    learn: tuple[str, ...] = ()
    contexts: int = 2_000
    epochs: int = 400


@dataclass(frozen=True, slots=True)
class Known:
    """Rows as tensors: features [row, feature], codes [row, category], residual and weight [row], and which of them
    are to be learned anew [row].
    """

    features: Tensor
    codes: Tensor
    residual: Tensor
    weight: Tensor
    new: Tensor

    def at(self, index: Tensor) -> Known:
        """Some of them, with categories hidden at random in half of these."""
        index = index.to(self.codes.device)
        codes = self.codes[index]
        half = torch.rand(len(codes), 1, device=codes.device) < 0.5
        hidden = half & (torch.rand(codes.shape, device=codes.device) < HIDDEN_SHARE)
        shown = torch.where(hidden, 0, codes)
        return Known(self.features[index], shown, self.residual[index], self.weight[index], self.new[index])


@dataclass(frozen=True, slots=True)
class Calls:
    """Drawn calls and their pairs as tensors: features [call, feature], codes [call, category], the others [call];
    `small`, `large` and `allowed` are [pair]. `successors` [number, code] are versions that begin as others: pairs are
    asked of these, too, by their codes in column `stack`.
    """

    features: Tensor
    codes: Tensor
    base: Tensor
    least: Tensor
    weight: Tensor
    small: Tensor
    large: Tensor
    allowed: Tensor
    successors: Tensor
    stack: int = 0

    @classmethod
    def of(cls, found: Drawn, device: str, successors: Tensor | None = None, stack: int = 0) -> Calls:
        """Only those with finite features."""
        features, codes, base, least, weight = (
            torch.tensor(np.concatenate([getattr(one, name) for one in found.contexts]), device=device)
            for name in ("features", "codes", "base", "least", "weight")
        )
        pairs = torch.tensor(np.concatenate(found.pairs), device=device)
        small, large, allowed = pairs[:, 0].long(), pairs[:, 1].long(), pairs[:, 2].float()
        fine = torch.isfinite(features).all(1)
        kept = fine[small] & fine[large]
        features = torch.where(fine[:, None], features, 0.0)
        return cls(
            features, codes.long(), base.float(), least.float(), weight.float() * fine, small[kept], large[kept],
            allowed[kept], torch.zeros(0, 0, dtype=torch.long) if successors is None else successors.to(device), stack,
        )  # fmt: skip

    def short(self, net: Ensemble, pairs: Tensor, version: int | None = None) -> Tensor:
        """By how much the larger call of each of these pairs is too fast, in log time, [pair]; of which successors."""
        ends = torch.cat((self.small[pairs], self.large[pairs]))
        codes = self.codes[ends]
        if version is not None:
            codes[:, self.stack] = self.successors[version][codes[:, self.stack]]
        means = said(net, self.features[ends], codes)[..., 0].mean(0)
        small, large = torch.maximum(self.base[ends] + means, self.least[ends]).chunk(2)
        allowed = self.allowed[pairs]
        return (allowed + torch.where(allowed < 0, 0.0, MARGIN) - (large - small)).clamp(min=0.0)


def said(net: Ensemble, features: Tensor, codes: Tensor) -> Tensor:
    """What members answer, [member, row, 2]."""
    members = len(net.mean)
    answers: Tensor = net(features.expand(members, -1, -1), codes.expand(members, -1, -1))
    return answers


@torch.no_grad()
def answers(net: Ensemble, features: Tensor, codes: Tensor) -> Tensor:
    """The same of many rows, a part at a time."""
    parts = zip(features.split(PART), codes.split(PART), strict=True)
    return torch.cat([said(net, *part) for part in parts], 1)


@torch.no_grad()
def shortfall(net: Ensemble, calls: Calls) -> Tensor:
    """By how much the larger call of every pair is too fast, [pair]."""
    numbers = torch.arange(len(calls.small), device=calls.small.device).split(PART)
    return torch.cat([calls.short(net, some) for some in numbers])


def new_rows(rows: Rows, card: Mapping[str, Any], learn: Sequence[str]) -> NDArray[np.bool_]:
    """Rows of software that a card does not know on their GPU, and those that meet a list of conditions."""
    ran = {(row.protocol, row.stack, row.kind, row.gpu) for row in from_nested(card.get("software", {})).rows}
    kv = "kv_dtype" if "kv_dtype" in rows.columns else "dtype"
    columns = (rows.columns[name].text().tolist() for name in ("protocol", "stack", "dtype", kv, "gpu"))
    keys = list(zip(*columns, strict=True))
    known = {key: (*key[:2], kind_of(*key[2:4]), key[4]) in ran for key in set(keys)}
    new = ~np.fromiter((known[key] for key in keys), bool, len(rows))
    return np.asarray(np.logical_or.reduce([new, *(meet(rows, one.split(",")) for one in learn)]))


def codes_of(categories: Mapping[str, Sequence[str]], rows: Rows, index: Ints) -> Tensor:
    """A net's codes of rows' categories, [row, category]."""
    found = []
    for name, values in categories.items():
        known = {value: code for code, value in enumerate(values)}
        column = rows.columns[name]
        found.append(np.array([known.get(value, 0) for value in column.values])[column.codes[index]])
    return torch.tensor(np.stack(found, 1))


def terms(
    student: Ensemble, teacher: Ensemble, rows: Known, calls: Calls | None, plan: Plan
) -> Iterator[tuple[Tensor, ...]]:
    """The terms of each step."""
    device, learned = rows.codes.device, torch.nonzero(rows.new)[:, 0].cpu()
    half, many = plan.batch // 2, len(rows.codes)
    new = min(half, len(learned), OFTEN * plan.batch * len(learned) // many)
    parts_of_rows = [orders(many, min(plan.batch - new, many))]
    if new:
        parts_of_rows.append(learned[some] for some in orders(len(learned), new))
    pairs = _pairs(teacher, calls, half) if calls is not None else None
    for parts in zip(*parts_of_rows, strict=True):
        some = rows.at(torch.cat(parts))
        found = said(student, some.features, some.codes)
        target = some.residual.expand(len(found), -1)
        measured = LOSS(found, target, some.weight.expand_as(target)).mean()
        with torch.no_grad():
            moved = said(teacher, some.features, some.codes)
        moved, weight = (found - moved)[:, ~some.new], some.weight[~some.new]
        both = (weight * (moved[..., 0].square() + moved[..., 0].mean(0).square())).mean()
        kept = plan.kept * both + (SCALES * moved[..., 1].square().mean() if plan.kept else 0.0)
        if calls is None or pairs is None:
            yield measured, torch.nan_to_num(kept)
            continue
        others, close = (each.to(device) for each in next(pairs))
        asked = calls.features[others], calls.codes[others]
        with torch.no_grad():
            before = said(teacher, *asked)
        moved = said(student, *asked) - before
        off = moved[..., 0].abs()
        huber = torch.where(off < 0.5, off.square(), off - 0.25)
        drawn_kept = (calls.weight[others] * (plan.drawn * huber + SCALES * moved[..., 1].square())).mean()
        version = random.choice([None, *range(len(calls.successors))])
        short = calls.short(student, close, version)
        order = plan.order * (short + 10.0 * short.clamp(max=0.2).square()).mean()
        yield measured, torch.nan_to_num(kept), drawn_kept, order


def _pairs(teacher: Ensemble, calls: Calls, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Numbers of drawn calls, and of pairs: one in seven of all, the others near to being out of order."""
    close = torch.nonzero(shortfall(teacher, calls) > MARGIN - NEAR)[:, 0].cpu()
    sizes = (len(calls.base), len(calls.small), len(close))
    shares = (size, size // 8, 3 * size // 4)
    numbers = (orders(count, min(count, share)) for count, share in zip(sizes, shares, strict=True))
    for others, far, near in zip(*numbers, strict=True):
        yield others, torch.cat((far, close[near]))


def _calls(name: str, net: Net, categories: Mapping[str, Sequence[str]], contexts: int, device: str) -> Calls | None:
    """Drawn calls of a net and their pairs; None where its family has no order."""
    family = next((family for family, nets in ORDERED.items() if name in nets), None)
    found = drawn(family, contexts, net=name).get(name) if family else None
    if not found or not found.pairs:
        return None
    known_stacks = "stack" in net.categories
    later = (successors(categories["stack"], net), [*net.categories].index("stack")) if known_stacks else ()
    return Calls.of(found, device, *later)


def _learned_from(
    net: Net, rows: Rows, categories: Mapping[str, Sequence[str]], new: NDArray[np.bool_], device: str
) -> Known:
    """The rows that a net is trained on: those not held out that weigh anything."""
    train = by_name(SPLIT, rows).train
    train = train[rows.weight[train] > 0]
    parts = (rows.features[train][:, [rows.names.index(name) for name in net.features]],
             codes_of(categories, rows, train), rows.residual[train].astype(np.float32),
             (rows.weight[train] / rows.weight[train].mean()).astype(np.float32), new[train])  # fmt: skip
    return Known(*(torch.as_tensor(part).to(device) for part in parts))


def _teacher(
    card: Path, net: Net, categories: dict[str, tuple[str, ...]], known: Known, calls: Calls | None
) -> Ensemble:
    """The weights that ship, standardised by rows and drawn calls."""
    everything = torch.cat((known.features, calls.features)) if calls else known.features
    reach = everything.amax(0) - everything.amin(0)
    spread = torch.where(reach > 0.0, torch.maximum(everything.std(0), reach / 8) + 1e-3, math.inf)  # a constant: bias
    mean, device = everything.mean(0).cpu(), known.features.device
    made: Ensemble = ensemble_of(card, net.features, categories, mean, spread.cpu()).to(device)
    return made


def _said_of_held_out(
    tried: Mapping[str, Ensemble], net: Net, rows: Rows, categories: Mapping[str, Sequence[str]], device: str
) -> dict[str, tuple[Floats, Floats]]:
    """What each net answers to held-out rows: log residual and scale."""
    score = by_name(SPLIT, rows).score
    features = rows.features[score][:, [rows.names.index(name) for name in net.features]]
    asked = torch.tensor(features).to(device), codes_of(categories, rows, score).to(device)
    return {key: as_one(answers(one, *asked).cpu().numpy()) for key, one in tried.items()}


def relearn(
    name: str, rows: Rows, card: Path, folder: Path, plan: Plan, device: str = "cpu", end: float = math.inf
) -> None:
    """Learn until `time.perf_counter()` says `end` at the latest, print how answers to held-out rows moved, and write
    a run as `train.fit` does, its answers to held-out rows included.
    """
    torch.manual_seed(0)
    random.seed(0)
    ended, net, document = begun(device, card), load(card).net, read(card)
    categories = with_new(net, rows)
    known = _learned_from(net, rows, categories, new_rows(rows, document, plan.learn), device)
    calls = _calls(name, net, categories, plan.contexts, device)
    teacher = _teacher(card, net, categories, known, calls)
    counts = f"{name}: {len(known.new):,} rows, {int(known.new.sum()):,} of them to learn"
    print(counts, f"{len(calls.small):,} pairs" if calls else "no pairs", flush=True)
    moving, most = copy.deepcopy(teacher), min(plan.steps, max(FEWEST, plan.epochs * len(known.new) // plan.batch))
    left = max(10.0, end - time.perf_counter())
    losses = terms(moving, teacher, known, calls, plan)
    last, steps = taught(moving, losses, most, plan.rate, clip, left)
    tried = {"last": last, "half way": blended(teacher, last), "before": teacher}
    said_of = _said_of_held_out(tried, net, rows, categories, device)
    errors = {key: halves_off(rows, by_name(SPLIT, rows).score, mean) for key, (mean, _) in said_of.items()}
    chosen = min(errors, key=lambda key: errors[key][0] * (1.0 if key == "last" else 1.0 + PREFERRED))
    if calls:
        share = {key: float((shortfall(one, calls) > MARGIN + 0.02).float().mean()) for key, one in tried.items()}
        said_share = ", ".join(f"{key} {100 * value:.2f}" for key, value in share.items())
        print(f"{name}: % of pairs out of order by more than 2 %: {said_share}", flush=True)
    how = asdict(plan) | {"steps": steps, "chosen": chosen}
    how |= {"held_out": {key: np.nan_to_num(np.round(two, 3), posinf=1e9).tolist() for key, two in errors.items()}}
    log = {
        "plan": {"activation": net.activation, "loss": document["net"]["loss"], "seed": 0}, "trainer": TRAINER,
        "relearned": how, "net": name, "features": list(net.features), "categories": categories,
    }  # fmt: skip
    tensors = {key: tensor.cpu().numpy() for key, tensor in tried[chosen].folded().items()}
    Run.write(folder, [SPLIT] * len(teacher.mean), tensors, log | ended())
    save_predictions(folder, {SPLIT: said_of[chosen], "before": said_of["before"]})
    off = ", ".join(f"{key} {two[0]:.2f} and {two[1]:.2f}" for key, two in errors.items())
    told = f"{steps:,} steps, % off on the held-out groups that choose and that tell: {off}: {chosen}"
    print(f"{name}: {told}", flush=True)


@torch.no_grad()
def blended(one: Ensemble, two: Ensemble, share: float = 0.5) -> Ensemble:
    """Weights between those of two nets, `share` of the second's."""
    found = copy.deepcopy(one)
    torch._foreach_lerp_(list(found.parameters()), list(two.parameters()), share)
    return found


def halves_off(rows: Rows, index: Ints, mean: NDArray[np.float64]) -> tuple[float, float]:
    """% off of held-out rows, the mean over GPUs and versions, of the half of their groups that chooses between nets
    and of the half that tells how good the chosen one is. Infinite where an answer is not finite.
    """
    off = np.nan_to_num(100 * np.abs(np.expm1(np.minimum(mean - rows.residual[index], 50.0))), nan=np.inf)
    half = np.unique(rows.group[index], return_inverse=True)[1] % 2
    cell = rows.columns["gpu"].codes[index] * 4096 + rows.columns["stack"].codes[index]
    found = []
    for part in (0, 1):
        at = np.flatnonzero((half == part) & (rows.weight[index] > 0))
        _, number = np.unique(cell[at], return_inverse=True)
        found.append(float((np.bincount(number, off[at]) / np.bincount(number)).mean()) if len(at) else np.inf)
    return found[0], found[1]
