"""All splits and seeds of a net in one job, on CPU or GPU.

Writes `predictions.npz` (for each split the scored rows' log residual and scale, averaged over seeds), `weights.npz`
(every member, ready for `train.export`) and `log.json`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corpus.select import HELD_OUT
from train.cards import plan_of
from train.descent import PRINTED, Descent, Loss
from train.ensemble import Data, Ensemble, Shape
from train.record import begun
from train.rows import Floats, Rows
from train.run import Predictions, Run, as_one, save_predictions
from train.splits import FEW_SHARE, Split, by_name, expand
from train.start import Start, neighbours, tension, ties

PREDICT_ROWS = 16_384
SAME = ("ship", f"fold:{HELD_OUT}")  # two names of one split
NEW_KERNELS = 0.5  # how often a row whose GPU is masked has its implementation masked too
WITHIN = {"family": "gpu"}  # a family is hidden only where the GPU is: a new GPU may be of a known one


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train. `features` None means all; `categories` are the columns the net may see.

    `mask_gpu`: share of an epoch's rows whose GPU is hidden from the net; `keep_family`: share of these that still show
    their architecture.
    `trust`: share of the residual that is learned of rows whose GPU and architecture are hidden: a new architecture
    lacks in part what others lack of the physical estimate.
    `tie` is the price of what a version of a stack adds to the one before it, squared (`train.start`).
    `rows` bounds the rows a member trains on, drawn at random; those of a `few:` split are `few_share` of its epochs.
    `by_kind` holds other values for the splits of a kind or for one split (`{"lofo": {"rows": 100000}, "logo:H100":
    {"seeds": 3}}`): members that are scored and not shipped may be cheaper.
    """

    splits: tuple[str, ...] = ("fold:*",)
    seeds: int = 1
    features: tuple[str, ...] | None = None
    categories: tuple[str, ...] = ("stack", "impl", "dtype")
    hidden: tuple[int, ...] = (128, 128, 64)
    activation: str = "silu"
    loss: str = "mape"
    quantile: float = 0.2
    epochs: float = 60.0
    batch: int = 2048
    learning_rate: float = 1e-2
    weight_decay: float = 0.05
    category_dropout: float = 0.05
    mask_gpu: float = 0.0
    keep_family: float = 0.5
    trust: float = 1.0
    ema: float = 0.998
    members_at_once: int = 64
    seed: int = 0
    rows: int | None = None
    few_share: float = FEW_SHARE
    tie: float = 0.0
    by_kind: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of_split(self, split: str) -> Plan:
        """The plan for a split: its own, or that of its kind."""
        return replace(self, **self.by_kind.get(split, self.by_kind.get(split.partition(":")[0], {})))


@dataclass(frozen=True, slots=True)
class Fitted:
    """Merged answers for the scored rows of each split, every member's tensors, and how training went."""

    predictions: Predictions
    tensors: Mapping[str, NDArray[np.float32]]
    members: tuple[str, ...]
    losses: tuple[tuple[float, ...], ...]
    record: Mapping[str, Any]  # `train.record.begun`


def fit(rows: Rows, plan: Plan, device: str = "cpu", start: Path | None = None) -> Fitted:
    """Train every split × seed of the plan and answer the rows each split scores; `start`: a card to start from."""
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    ended = begun(device, start)
    data = Data.of(rows, plan.features, plan.categories, torch.device(device))
    parts = list(_parts(rows, plan))
    jobs = [job for part in parts for job in part.jobs]
    categories = {name: rows.columns[name].values for name in plan.categories}
    begin = Start.of(start, plan.features or rows.names, categories) if start else None
    trained = [_train(part.jobs, data, part.plan, begin) for part in parts]
    answers = [
        answer for (net, _), part in zip(trained, parts, strict=True) for answer in _answers(net, part.jobs, data)
    ]
    tensors = [net.folded() for net, _ in trained]
    return Fitted(
        predictions=_merged([split for split, _ in jobs], answers),
        tensors={name: torch.cat([one[name] for one in tensors]).cpu().numpy() for name in tensors[0]},
        members=tuple(split.name for split, _ in jobs),
        losses=tuple(curve for _, curve in trained),
        record=ended(),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Members (split, seed) that train together under one plan."""

    jobs: list[tuple[Split, int]]
    plan: Plan


def _parts(rows: Rows, plan: Plan) -> Iterator[Part]:
    """Members with like plans, so many at once. `fold:0` is what `ship` holds out, and is not trained twice."""
    names = expand(plan.splits, rows)
    names = [name for name in names if name != SAME[1] or SAME[0] not in names]
    for own, alike in groupby(names, key=plan.of_split):
        splits = [_thinned(by_name(name, rows, own.few_share), own) for name in alike]
        jobs = [(split, seed) for split in splits for seed in range(own.seeds)]
        yield from (Part(jobs[at : at + own.members_at_once], own) for at in range(0, len(jobs), own.members_at_once))


def _thinned(split: Split, plan: Plan) -> Split:
    if plan.rows is None or len(split.train) <= plan.rows:
        return split
    kept = np.random.default_rng(plan.seed).choice(split.train, size=plan.rows, replace=False)
    return replace(split, train=kept)


def _train(
    jobs: list[tuple[Split, int]], data: Data, plan: Plan, start: Start | None
) -> tuple[Ensemble, tuple[float, ...]]:
    splits, seeds = [split for split, _ in jobs], tuple(seed + plan.seed for _, seed in jobs)
    device = data.features.device
    index = [torch.tensor(split.train, device=device) for split in splits]
    net = _net(index, seeds, data, plan)
    if start:
        start.into(net)
    net, tied = net.to(device), torch.tensor(ties(data.stacks), device=device)
    longest = max(len(rows) for rows in index)
    steps = max(1, math.ceil(plan.epochs * longest / plan.batch))
    descent = Descent(net, steps, plan.learning_rate, ema=plan.ema, weight_decay=plan.weight_decay)
    loss, curve = Loss(plan.loss, plan.quantile), []
    for step, batch in zip(range(steps), _batches(index, plan.batch), strict=False):
        features, codes, target, weight = data.at(batch)
        shown = _hidden_at_random(codes, plan)
        each = loss(net(features, shown), _trusted(shown, target, plan), weight)
        strain = tension(net.tables[data.stack], tied).sum() if plan.tie and data.stack is not None else 0.0
        descent.step(each.sum() + plan.tie * strain, clip)
        if step % max(1, steps // PRINTED) == 0:
            curve.append(each.detach().mean())
    descent.finish()
    seen = _seen(index, data)
    if data.stack is not None:
        net.lend(data.stack, torch.stack([neighbours(data.stacks, each) for each in seen[data.stack]]))
        seen[data.stack] = torch.ones_like(seen[data.stack])
    net.forget(seen)
    return net, tuple(float(value) for value in curve)


def _net(index: list[Tensor], seeds: tuple[int, ...], data: Data, plan: Plan) -> Ensemble:
    """Members that start from the mean residual of their own rows, with their own standardisation."""
    mean = torch.stack([data.features[rows].mean(0) for rows in index])
    std = torch.stack([_spread(data.features[rows]) for rows in index])
    centre = torch.stack([data.target[rows].median() for rows in index])
    spread = torch.stack([data.target[rows].std() for rows in index])
    shape = Shape(data.features.shape[1], data.counts, plan.hidden, plan.activation)
    flat = std < 1e-6 * (1 + mean.abs())  # a feature constant over a member's rows says nothing to that member
    start = torch.stack([centre, spread.clamp(min=1e-3).log()], -1).cpu()
    return Ensemble(shape, seeds, mean.cpu(), torch.where(flat, torch.inf, std).cpu(), start)


def _spread(features: Tensor) -> Tensor:
    """Standard deviation, but an eighth of the range at least: the flag of a few rows must not drown the rest."""
    range_ = features.max(0).values - features.min(0).values
    return torch.maximum(features.std(0), range_ / 8)


def _batches(index: list[Tensor], size: int) -> Iterator[Tensor]:
    """Row numbers [member, size] for ever; every member walks its own rows in a new random order each time round."""
    longest = max(len(rows) for rows in index)
    while True:
        orders = [rows[torch.randperm(len(rows), device=rows.device)] for rows in index]
        orders = [torch.cat([order] * math.ceil((longest + size) / len(order)))[: longest + size] for order in orders]
        whole = torch.stack(orders)
        for start in range(0, longest, size):
            yield whole[:, start : start + size]


def _hidden_at_random(codes: Tensor, plan: Plan) -> Tensor:
    """Each category at random; one that stands for a group of another's only together with that, half of the times.

    A share `mask_gpu` of the rows looks like rows of an unseen GPU: no GPU name, no architecture but for a share
    `keep_family` of them, and half of the times no implementation, for new GPUs bring kernels of their own.
    """
    seen = torch.rand(codes.shape, device=codes.device) >= plan.category_dropout
    for whole, part in WITHIN.items():
        if whole in plan.categories and part in plan.categories:
            known = seen[..., plan.categories.index(part)]
            seen[..., plan.categories.index(whole)] = known | (torch.rand(known.shape, device=codes.device) < 0.5)
    if plan.mask_gpu:
        masked = torch.rand(codes.shape[:-1], device=codes.device) < plan.mask_gpu
        for name, share in (("gpu", 1.0), ("family", 1.0 - plan.keep_family), ("impl", NEW_KERNELS)):
            if name in plan.categories:
                hidden = masked & (torch.rand(masked.shape, device=codes.device) < share)
                seen[..., plan.categories.index(name)] &= ~hidden
    return codes * seen


def _trusted(shown: Tensor, target: Tensor, plan: Plan) -> Tensor:
    """What a net should say: of rows that show neither GPU nor architecture, a share of their residual."""
    where = [plan.categories.index(name) for name in ("gpu", *WITHIN) if name in plan.categories]
    if plan.trust == 1.0 or not where:
        return target
    strangers = (shown[..., where] == 0).all(-1)
    return torch.where(strangers, plan.trust * target, target)


def clip(net: Ensemble, most: float = 5.0) -> None:
    """Limit the gradient of each member by itself, so that members do not feel one another."""
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    squares = torch.stack([gradient.square().flatten(1).sum(1) for gradient in gradients]).sum(0)
    factor = (most / (squares.sqrt() + 1e-12)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.reshape(-1, *[1] * (gradient.dim() - 1)))


def _seen(index: list[Tensor], data: Data) -> list[Tensor]:
    """For each category column, [member, code]: did the member train on it?"""
    seen = []
    for column, count in enumerate(data.counts):
        present = [torch.bincount(data.codes[rows, column], minlength=count) > 0 for rows in index]
        seen.append(torch.stack(present))
    return seen


@torch.no_grad()
def _answers(net: Ensemble, jobs: list[tuple[Split, int]], data: Data) -> list[Floats]:
    """Outputs [row, 2] of each member for the rows its split scores; all members advance together."""
    out: list[list[Floats]] = [[np.zeros((0, 2))] for _ in jobs]
    longest = max(len(split.score) for split, _ in jobs)
    for start in range(0, longest, PREDICT_ROWS):
        pieces = [split.score[start : start + PREDICT_ROWS] for split, _ in jobs]
        width = max(len(piece) for piece in pieces)
        padded = np.stack([np.pad(piece, (0, width - len(piece))) for piece in pieces])
        rows = torch.tensor(padded, device=data.features.device)
        values = net(data.features[rows], data.codes[rows]).cpu().numpy().astype(np.float64)
        for member, piece in enumerate(pieces):
            out[member].append(values[member, : len(piece)])
    return [np.concatenate(parts) for parts in out]


def _merged(splits: list[Split], answers: list[Floats]) -> dict[str, tuple[Floats, Floats]]:
    """Seeds of a split to one answer."""
    merged = {}
    for name in dict.fromkeys(split.name for split in splits):
        same = np.stack([answer for split, answer in zip(splits, answers, strict=True) if split.name == name])
        merged[name] = as_one(same)
    if SAME[0] in merged:
        merged[SAME[1]] = merged[SAME[0]]
    return merged


def save(fitted: Fitted, plan: Plan, rows: Rows, folder: Path) -> None:
    """Write the three files; predictions as float32, in the order of the split's scored rows."""
    save_predictions(folder, fitted.predictions)
    categories = {name: rows.columns[name].values for name in plan.categories}
    log = {"plan": asdict(plan), "features": plan.features or rows.names, "categories": categories, "rows": len(rows)}
    Run.write(folder, fitted.members, fitted.tensors, {**log, **fitted.record, "losses": fitted.losses})


def run(
    rows: Rows, given: Mapping[str, Any], folder: Path, device: str | None = None, start: Path | None = None
) -> None:
    """Train what a plan asks for and write a folder; `start`: a card to start from."""
    plan = plan_of(Plan, given)
    fitted = fit(rows, plan, device or ("cuda" if torch.cuda.is_available() else "cpu"), start)
    save(fitted, plan, rows, folder)
    print(f"{len(fitted.members)} members on {len(rows):,} rows: {fitted.record['seconds']:.0f} s", flush=True)
