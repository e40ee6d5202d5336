"""`python -m train.distil --in rows.npz --card CARD --hidden 128,96,64 --out DIR`: narrower members that answer alike.

What a row of a table costs is the width of its net, and a narrow net learns more from a wide one's answers than from
rows: those are free of noise, and there are as many as one asks for. Each member starts from the units of its teacher
that matter most and learns the teacher's mean and scale, on the rows that ship trained on and on drawn calls of every
GPU, stack, type and protocol; of the rows the measured times count a little, too. What it never learns is what the
teacher never saw: held-out shapes stay held out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipewave.nets.nets import Net, load
from train.descent import orders
from train.descent import taught as descend
from train.ensemble import Ensemble, Shape
from train.export import replace_net
from train.nets.gemm import drawn
from train.record import commit, peak_mb, start_of
from train.rows import Ints, Rows
from train.rows import load as load_rows
from train.splits import by_name
from train.start import Start

PART = 65_536  # rows answered at once
LOOKED_AT = 40_000  # rows that say which units matter
HIDDEN_SHARE = 0.1  # of the codes of a question, as in training
TOGETHER, SCALE = 2.0, 0.02  # beside the square of a member's error: of the mean of members, and of the scale
MEASURED = 0.02  # of the mean against measured times
RATE = 3e-3


@dataclass(frozen=True, slots=True)
class Questions:
    """Features [row, feature], codes [row, category], the teacher's answers [member, row, 2], measured residuals [row]
    (NaN where nothing was measured).
    """

    features: Tensor
    codes: Tensor
    answers: Tensor
    residual: Tensor

    def at(self, index: Tensor) -> Questions:
        """Some of them."""
        return Questions(self.features[index], self.codes[index], self.answers[:, index], self.residual[index])

    def beside(self, other: Questions) -> Questions:
        """These and those."""
        return Questions(
            torch.cat((self.features, other.features)),
            torch.cat((self.codes, other.codes)),
            torch.cat((self.answers, other.answers), 1),
            torch.cat((self.residual, other.residual)),
        )


def put(teacher: Ensemble, features: Tensor, codes: Tensor) -> Questions:
    """What the teacher says where nothing was measured."""
    return Questions(features, codes, answers(teacher, features, codes), torch.full((len(codes),), torch.nan))


def teacher_of(net: Net, card: Path, mean: Tensor, std: Tensor) -> Ensemble:
    """The net that ships, as members that can be asked with any codes."""
    shape = _shape(net, tuple(weight.shape[2] for weight in net.weights[:-1]))
    members = len(net.weights[0])
    teacher = _blank(shape, members, mean, std)
    Start.of(card, net.features, {name: tuple(codes) for name, codes in net.categories.items()}).into(teacher)
    return teacher


def _shape(net: Net, hidden: tuple[int, ...]) -> Shape:
    return Shape(len(net.features), tuple(map(len, net.categories.values())), hidden, net.activation)


def _blank(shape: Shape, members: int, mean: Tensor, std: Tensor) -> Ensemble:
    each = (mean.expand(members, -1).clone(), std.expand(members, -1).clone())
    return Ensemble(shape, tuple(range(members)), *each, torch.zeros(members, 2))


@torch.no_grad()
def answers(net: Ensemble, features: Tensor, codes: Tensor) -> Tensor:
    """[member, row, 2]."""
    members = len(net.mean)
    parts = zip(features.split(PART), codes.split(PART), strict=True)
    return torch.cat([net(x.expand(members, -1, -1), c.expand(members, -1, -1)) for x, c in parts], 1)


@torch.no_grad()
def narrowed(teacher: Ensemble, hidden: tuple[int, ...], features: Tensor, codes: Tensor) -> Ensemble:
    """Members with so many units a layer: the ones that move what follows most; what the others did is made up for by
    these as far as a linear map can.
    """
    shape = Shape(teacher.shape.features, teacher.shape.codes, hidden, teacher.shape.activation)
    student = _blank(shape, len(teacher.mean), teacher.mean[0], teacher.std[0])
    for member in range(len(teacher.mean)):
        weights = [weight[member] for weight in teacher.weights]
        biases = [bias[member] for bias in teacher.biases]
        tables = [table[member] for table in teacher.tables]
        units = (features - teacher.mean[member]) / teacher.std[member]
        for depth, width in enumerate(hidden):
            units = units @ weights[depth] + biases[depth]
            if not depth:
                units += sum(table[codes[:, column]] for column, table in enumerate(tables))
            units = torch.relu(units)
            matters = units.std(0) * weights[depth + 1].norm(dim=1)
            kept = matters.argsort(descending=True)[:width].sort().values
            left = torch.ones(units.shape[1], dtype=torch.bool).index_fill(0, kept, False)
            known = torch.cat((units[:, kept], torch.ones(len(units), 1)), 1)
            by = torch.linalg.lstsq(known, units[:, left]).solution @ weights[depth + 1][left]
            biases[depth + 1] = biases[depth + 1] + by[-1]
            weights[depth + 1] = weights[depth + 1][kept] + by[:-1]
            weights[depth], biases[depth] = weights[depth][:, kept], biases[depth][kept]
            tables = tables if depth else [table[:, kept] for table in tables]
            units = units[:, kept]
        for theirs, mine in ((weights, student.weights), (biases, student.biases), (tables, student.tables)):
            for value, parameter in zip(theirs, mine, strict=True):
                parameter[member] = value
    return student


def taught(student: Ensemble, rows: Questions, calls: Questions, plan: Plan, rate: float) -> Ensemble:
    """The student after so many steps, half of each batch from either."""
    halves = zip(orders(len(rows.codes), plan.batch // 2), orders(len(calls.codes), plan.batch // 2), strict=True)
    batches = (rows.at(some).beside(calls.at(others)) for some, others in halves)
    return descend(student, ((loss(student, batch, plan.measured),) for batch in batches), plan.steps, rate)


def loss(student: Ensemble, asked: Questions, weight: float = MEASURED) -> Tensor:
    """Squares of what members and their mean are off by, and so much of the mean against measured times."""
    members = len(student.mean)
    found = student(asked.features.expand(members, -1, -1), asked.codes.expand(members, -1, -1))
    off = found - asked.answers
    each, together = off[..., 0].square().mean(), off[..., 0].mean(0).square().mean()
    timed = ~asked.residual.isnan()
    measured = (found[..., 0].mean(0)[timed] - asked.residual[timed]).abs().mean()
    return each + TOGETHER * together + SCALE * off[..., 1].square().mean() + weight * measured


def codes_of(net: Net, rows: Rows, index: Ints) -> Tensor:
    """The net's codes of the rows' categories."""
    found = []
    for name, codes in net.categories.items():
        column = rows.columns[name]
        found.append(np.array([codes.get(value, 0) for value in column.values])[column.codes[index]])
    return torch.tensor(np.stack(found, 1))


def hidden_at_random(codes: Tensor) -> Tensor:
    """Codes with some hidden, as in training."""
    return codes * (torch.rand(codes.shape, device=codes.device) >= HIDDEN_SHARE)


@dataclass(frozen=True, slots=True)
class Plan:
    """The net, the split of rows that its members know, units of each layer, steps and rows a step, and what an error
    against measured times weighs beside one against the teacher.
    """

    net: str
    split: str
    hidden: tuple[int, ...]
    steps: int
    batch: int
    measured: float = MEASURED


def distil(plan: Plan, card: Path, rows: Rows, folder: Path) -> None:
    """Teach, print how far the student is off on held-out rows, write a run as `train.fit` does."""
    torch.manual_seed(0)
    begun, net, split = time.perf_counter(), load(card).net, by_name(plan.split, rows)
    columns = [rows.names.index(feature) for feature in net.features]
    seen, mine = torch.tensor(rows.features[split.train][:, columns]), codes_of(net, rows, split.train)
    mean, std = seen.mean(0), seen.std(0) + 1e-3
    teacher = teacher_of(net, card, mean, std)
    some = torch.randperm(len(seen))[:LOOKED_AT]
    student = narrowed(teacher, plan.hidden, seen[some], mine[some])
    residual = torch.tensor(rows.residual[split.train], dtype=torch.float32)
    told = Questions(seen, mine, answers(teacher, seen, mine), residual)
    asked = told.beside(put(teacher, seen, hidden_at_random(mine)))
    calls, codes = map(torch.tensor, drawn(plan.net, net))
    others = put(teacher, calls, torch.where(torch.rand(len(codes), 1) < 0.3, hidden_at_random(codes), codes))
    print(f"{len(seen):,} rows, {len(calls):,} drawn calls", flush=True)
    student = taught(student, asked, others, plan, RATE)
    out, theirs = torch.tensor(rows.features[split.score][:, columns]), codes_of(net, rows, split.score)
    off = (answers(student, out, theirs) - answers(teacher, out, theirs))[..., 0].mean(0)
    log = {
        "plan": {"activation": net.activation, "loss": json.loads(card.read_text("utf-8"))["net"]["loss"], "seed": 0},
        "features": list(net.features),
        "categories": {name: list(codes) for name, codes in net.categories.items()},
        "seconds": round(time.perf_counter() - begun, 1), "peak_mb": peak_mb(), "threads": torch.get_num_threads(),
        "device": "cpu", "commit": commit(), "start": start_of(card),
        "distilled": asdict(plan) | {"off": round(float(off.std()), 4)},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: tensor.numpy() for key, tensor in student.folded().items()}
    np.savez(folder / "weights.npz", members=np.array([plan.split] * len(student.mean)), **tensors)
    (folder / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    print(f"held-out rows: {100 * float(off.std()):.2f} % from the teacher", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.distil", description=__doc__)
    parser.add_argument("--net", default="gemm", help="one of the nets of GEMMs")
    parser.add_argument("--in", dest="rows", type=Path, required=True, help="rows.npz, see train.rows")
    parser.add_argument("--card", type=Path, required=True, help="card of the weights that teach")
    parser.add_argument("--split", default="ship", help="of the rows that the members know")
    parser.add_argument("--hidden", default="128,96,64", help="units of each layer")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=2_048)
    parser.add_argument("--measured", type=float, default=MEASURED, help="weight of measured times in the loss")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--weights", type=Path, help="folder for weights with these members in the place of the net")
    options = parser.parse_args(argv)
    hidden = tuple(map(int, options.hidden.split(",")))
    plan = Plan(options.net, options.split, hidden, options.steps, options.batch, options.measured)
    rows = load_rows(options.rows)
    distil(plan, options.card, rows, options.out)
    if options.weights:
        print(replace_net(options.card, rows, options.out, options.weights, split=plan.split))
    return 0


if __name__ == "__main__":
    sys.exit(main())
