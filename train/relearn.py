"""`python -m train.relearn --in rows.npz --card CARD --learn COLUMN=VALUE --out DIR`: a net after a law has changed.

Features and base estimate of some kernels are no longer what the net that ships learned from. It learns these rows
anew, from their measured times; of all other rows, whose features are as they were, it keeps its own answers, also
where GPU or software is not told. So a law of one kernel moves the answers for that kernel alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipewave.nets.nets import Net, load
from train.descent import orders, taught
from train.distil import answers, codes_of, hidden_at_random, teacher_of
from train.ensemble import Ensemble
from train.export import replace_members
from train.losses import Loss
from train.record import commit, peak_mb, start_of
from train.rows import Rows
from train.rows import load as load_rows
from train.splits import by_name, meet

SHARE = 0.25  # of a batch: rows to learn
KEPT, KEPT_SCALE = 30.0, 0.5  # what a square of log time, and of log scale, off the old answer costs
RATE = 1e-3
LOSS = Loss("mape")


@dataclass(frozen=True, slots=True)
class Plan:
    """The split whose rows the members know, conditions of the rows to learn, steps, and rows a step."""

    split: str
    learn: tuple[str, ...]
    steps: int
    batch: int


@dataclass(frozen=True, slots=True)
class Asked:
    """Features [row, feature], codes [row, category] and measured residuals [row]."""

    features: Tensor
    codes: Tensor
    residual: Tensor

    @classmethod
    def of(cls, net: Net, rows: Rows, index: NDArray[np.int64], device: str) -> Asked:
        """Rows as a net is asked for them."""
        features = rows.features[index][:, [rows.names.index(name) for name in net.features]]
        parts = torch.tensor(features), codes_of(net, rows, index), torch.tensor(rows.residual[index]).float()
        return cls(*(part.to(device) for part in parts))

    def at(self, index: Tensor) -> Asked:
        """Some of them, with categories hidden at random in half of these."""
        codes = self.codes[index]
        half = torch.rand(len(codes), 1, device=codes.device) < 0.5
        return Asked(self.features[index], torch.where(half, hidden_at_random(codes), codes), self.residual[index])

    def by(self, net: Ensemble) -> Tensor:
        """What members say, [member, row, 2]."""
        members = len(net.mean)
        return net(self.features.expand(members, -1, -1), self.codes.expand(members, -1, -1))  # type: ignore[no-any-return]


def wanted(rows: Rows, learn: Sequence[str]) -> NDArray[np.bool_]:
    """Rows that meet all conditions of one of these lists."""
    return np.asarray(np.logical_or.reduce([meet(rows, one.split(",")) for one in learn]))


def relearn(plan: Plan, card: Path, rows: Rows, folder: Path, device: str = "cpu") -> None:
    """Learn, print how the answers to held-out rows moved, and write a run as `train.fit` does."""
    torch.manual_seed(0)
    begun, net, split = time.perf_counter(), load(card).net, by_name(plan.split, rows)
    new, useful = wanted(rows, plan.learn), rows.weight > 0
    learned, kept = split.train[(new & useful)[split.train]], split.train[~new[split.train]]
    parts = [Asked.of(net, rows, index, device) for index in (learned, kept)]
    everything = torch.cat([part.features for part in parts])
    teacher = teacher_of(net, card, everything.mean(0).cpu(), everything.std(0).cpu() + 1e-3).to(device)
    print(f"{len(learned):,} rows to learn, {len(kept):,} to keep", flush=True)
    student = copy.deepcopy(teacher)
    taught(student, terms(student, teacher, *parts, plan.batch), plan.steps, RATE)
    for name, mask in (("learned", new & useful), ("kept", ~new)):
        print(name, held_out(teacher, student, Asked.of(net, rows, split.score[mask[split.score]], device)), flush=True)
    log = {
        "plan": {"activation": net.activation, "loss": json.loads(card.read_text("utf-8"))["net"]["loss"], "seed": 0},
        "features": list(net.features),
        "categories": {name: list(codes) for name, codes in net.categories.items()},
        "seconds": round(time.perf_counter() - begun, 1), "peak_mb": peak_mb(), "threads": torch.get_num_threads(),
        "device": device, "commit": commit(), "start": start_of(card),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: tensor.cpu().numpy() for key, tensor in student.folded().items()}
    np.savez(folder / "weights.npz", members=np.array([plan.split] * len(student.mean)), **tensors)
    (folder / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def terms(student: Ensemble, teacher: Ensemble, new: Asked, kept: Asked, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The two terms of each step's loss: rows to learn, and rows to keep."""
    few = min(round(SHARE * batch), len(new.codes))
    halves = zip(orders(len(new.codes), few), orders(len(kept.codes), batch - few), strict=True)
    for some, others in halves:
        learned = measured(student, new.at(some.to(new.codes.device)))
        yield learned, as_it_was(student, teacher, kept.at(others.to(kept.codes.device)))


def measured(student: Ensemble, asked: Asked) -> Tensor:
    """How far members are off measured times, and their scales off that."""
    found = asked.by(student)
    target = asked.residual.expand(len(found), -1)
    return LOSS(found, target, torch.ones_like(target)).mean()


def as_it_was(student: Ensemble, teacher: Ensemble, asked: Asked) -> Tensor:
    """How far members are off what they said."""
    with torch.no_grad():
        before = asked.by(teacher)
    mean, scale = (asked.by(student) - before).square().mean((0, 1))
    return KEPT * mean + KEPT_SCALE * scale


def held_out(teacher: Ensemble, student: Ensemble, asked: Asked) -> str:
    """How far the net was and is off held-out rows, and how far its answers moved, %."""
    was, now = (answers(net, asked.features, asked.codes)[..., 0].mean(0) for net in (teacher, student))
    off = [100 * float((found - asked.residual).expm1().abs().mean()) for found in (was, now)]
    moved = 100 * float((now - was).expm1().abs().mean())
    return f"{len(was):,} held-out rows: {off[0]:.2f} % off before, {off[1]:.2f} after, answers moved by {moved:.2f}"


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.relearn", description=__doc__)
    parser.add_argument("--in", dest="rows", type=Path, required=True, help="rows.npz, see train.rows")
    parser.add_argument("--card", type=Path, required=True, help="card of the weights that ship")
    parser.add_argument("--learn", action="append", required=True, help="rows to learn: column=value[,column=value]")
    parser.add_argument("--split", default="ship", help="of the rows that the members know")
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--batch", type=int, default=4_096)
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--write", action="store_true", help="put the members into the weights that ship")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(argv)
    plan, rows = Plan(options.split, tuple(options.learn), options.steps, options.batch), load_rows(options.rows)
    relearn(plan, options.card, rows, options.out, options.device)
    if options.write:
        print(replace_members(options.card, options.out, plan.split))
    return 0


if __name__ == "__main__":
    sys.exit(main())
