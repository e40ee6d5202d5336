"""`python -m train.monotone --net gemm [--runs DIR] [--write]`: shipped nets trained on until more work takes no less
time.

Three terms go down together: answers to the rows that the net was trained on stay, answers to drawn calls stay (but of
pairs that are out of order), and pairs come into order (`train.drawn`). Held-out rows are neither kept nor learned.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipewave.nets.nets import Net, load
from train.descent import orders, taught
from train.distil import codes_of, hidden_at_random, teacher_of
from train.drawn import SIZES, Drawn, drawn
from train.ensemble import Ensemble
from train.export import replace_members
from train.fit import clip
from train.record import commit, peak_mb, start_of
from train.rows import Rows
from train.rows import load as load_rows
from train.splits import by_name

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "src" / "pipewave" / "data" / "weights"
RUNS = ROOT / ".cache" / "runs"
FAMILIES = {"gemm": "gemm", "attention": "attention", "mla": "mla", "fused": "fused_moe", "all_reduce": "all_reduce"}
SPLIT = "ship"
KEPT, DRAWN, ORDER = 30.0, 10.0, 8.0  # what a square of log time costs on rows and on drawn calls, and what a pair does
SCALES = 0.4  # what a square of the log of the error's scale costs
MARGIN = 0.006  # by which the larger call of a pair is to be slower
NEAR = 0.06  # pairs closer to being out of order than this make up most of a batch
RATE = 5e-4
PART = 131_072


@dataclass(frozen=True, slots=True)
class Calls:
    """Drawn calls and their pairs as tensors: features [call, feature], codes [call, category], the others [call];
    `small`, `large` and `allowed` are [pair].
    """

    features: Tensor
    codes: Tensor
    base: Tensor
    least: Tensor
    weight: Tensor
    small: Tensor
    large: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, found: Drawn, device: str) -> Calls:
        """Only those with finite features."""
        parts = (found.features, found.codes, found.base, found.least, found.weight)
        features, codes, base, least, weight = (torch.tensor(np.concatenate(part), device=device) for part in parts)
        pairs = torch.tensor(np.concatenate(found.pairs), device=device)
        small, large, allowed = pairs[:, 0].long(), pairs[:, 1].long(), pairs[:, 2].float()
        fine = torch.isfinite(features).all(1)
        kept = fine[small] & fine[large]
        features = torch.where(fine[:, None], features, 0.0)
        return cls(
            features, codes.long(), base.float(), least.float(), weight.float() * fine, small[kept], large[kept],
            allowed[kept],
        )  # fmt: skip

    def short(self, means: Tensor, pairs: Tensor) -> Tensor:
        """By how much the larger call of each of these pairs is too fast, in log time, given means of all their calls,
        [2 · pair]: smaller ones first.
        """
        ends = torch.cat((self.small[pairs], self.large[pairs]))
        small, large = torch.maximum(self.base[ends] + means, self.least[ends]).chunk(2)
        allowed = self.allowed[pairs]
        return (allowed + torch.where(allowed < 0, 0.0, MARGIN) - (large - small)).clamp(min=0.0)


def said(net: Ensemble, features: Tensor, codes: Tensor) -> Tensor:
    """[member, row, 2]."""
    members = len(net.mean)
    answers: Tensor = net(features.expand(members, -1, -1), codes.expand(members, -1, -1))
    return answers


@torch.no_grad()
def shortfall(net: Ensemble, calls: Calls) -> Tensor:
    """The same of all pairs, [pair]."""
    numbers = torch.arange(len(calls.small), device=calls.small.device).split(PART)
    return torch.cat([calls.short(_ends(net, calls, some), some) for some in numbers])


def _ends(net: Ensemble, calls: Calls, pairs: Tensor) -> Tensor:
    ends = torch.cat((calls.small[pairs], calls.large[pairs]))
    return said(net, calls.features[ends], calls.codes[ends])[..., 0].mean(0)


def off(student: Ensemble, teacher: Ensemble, features: Tensor, codes: Tensor) -> Tensor:
    """How far answers moved, [member, row, 2]."""
    with torch.no_grad():
        before = said(teacher, features, codes)
    return said(student, features, codes) - before


def terms(
    student: Ensemble, teacher: Ensemble, rows: tuple[Tensor, Tensor], calls: Calls, batch: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The three terms of each step."""
    features, codes = rows
    device, close = features.device, torch.nonzero(shortfall(teacher, calls) > MARGIN - NEAR)[:, 0]
    sizes = (len(features), len(calls.base), len(calls.small), len(close))
    shares = (batch, batch, batch // 8, 3 * batch // 4)
    numbers = (orders(size, min(size, share)) for size, share in zip(sizes, shares, strict=True))
    for some, others, far, near in zip(*numbers, strict=True):
        some, others = some.to(device), others.to(device)
        half = torch.rand(len(some), 1, device=device) < 0.5
        shown = torch.where(half, hidden_at_random(codes[some]), codes[some])
        moved = off(student, teacher, features[some], shown)
        mean = moved[..., 0]
        kept = KEPT * (mean.square().mean() + mean.mean(0).square().mean()) + SCALES * moved[..., 1].square().mean()
        moved, weight = off(student, teacher, calls.features[others], calls.codes[others]), calls.weight[others]
        far_off = moved[..., 0].abs()
        huber = torch.where(far_off < 0.5, far_off.square(), far_off - 0.25)
        drawn_kept = (weight * (DRAWN * huber + SCALES * moved[..., 1].square())).mean()
        pairs = torch.cat((far.to(device), close[near.to(device)]))
        short = calls.short(_ends(student, calls, pairs), pairs)
        yield kept, drawn_kept, ORDER * (short + 10.0 * short.clamp(max=0.2).square()).mean()


def in_order(name: str, rows: Rows, steps: int, batch: int, device: str = "cpu", contexts: int = 2_000) -> Ensemble:
    """The shipped net of that name after so many steps; what was gained is printed."""
    card = WEIGHTS / f"{name}.json"
    net = load(card).net
    index = by_name(SPLIT, rows).train
    features = torch.tensor(rows.features[index][:, [rows.names.index(each) for each in net.features]]).to(device)
    family = next((family for start, family in FAMILIES.items() if name.startswith(start)), name)
    found, other = (drawn([family], count, seed)[name] for count, seed in ((contexts, 0), (contexts // 8, 1)))
    calls, test = Calls.of(found, device), Calls.of(other, device)
    seen = torch.cat((features, calls.features))
    spread = torch.maximum(seen.std(0), (seen.amax(0) - seen.amin(0)) / 8) + 1e-3
    teacher = teacher_of(net, card, seen.mean(0).cpu(), spread.cpu()).to(device)
    student = copy.deepcopy(teacher)
    known = features, codes_of(net, rows, index).to(device)
    taught(student, terms(student, teacher, known, calls, batch), steps, RATE, clip)
    was, now = (float((shortfall(one, test) > MARGIN + 0.02).float().mean()) for one in (teacher, student))
    print(f"{name}: {100 * was:.2f} % of drawn pairs out of order by more than 2 %, now {100 * now:.2f} %", flush=True)
    return student


def save(student: Ensemble, net: Net, card: Path, folder: Path, begun: float) -> None:
    """A run as `train.fit` writes it."""
    log = {
        "plan": {"activation": net.activation, "loss": json.loads(card.read_text("utf-8"))["net"]["loss"], "seed": 0},
        "features": list(net.features),
        "categories": {name: list(codes) for name, codes in net.categories.items()},
        "seconds": round(time.perf_counter() - begun, 1), "peak_mb": peak_mb(), "threads": torch.get_num_threads(),
        "device": str(student.mean.device), "commit": commit(), "start": start_of(card),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: tensor.cpu().numpy() for key, tensor in student.folded().items()}
    np.savez(folder / "weights.npz", members=np.array([SPLIT] * len(student.mean)), **tensors)  # type: ignore[arg-type]
    (folder / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Train the nets on, print what was gained, and put them where asked."""
    parser = argparse.ArgumentParser(prog="python -m train.monotone", description=__doc__)
    parser.add_argument("--net", action="append", help=f"of the families {', '.join(SIZES)} or a collective")
    parser.add_argument(
        "--runs", type=Path, default=ROOT / ".cache" / "runs", help="where `python -m train rows` wrote"
    )
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--batch", type=int, default=2_048)
    parser.add_argument("--write", action="store_true", help="put the members into the weights that ship")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(argv)
    for name in options.net:
        torch.manual_seed(0)
        begun, folder, card = time.perf_counter(), options.runs / name, WEIGHTS / f"{name}.json"
        student = in_order(name, load_rows(folder / "rows.npz"), options.steps, options.batch, options.device)
        save(student, load(card).net, card, folder / "monotone", begun)
        if options.write:
            print(replace_members(card, folder / "monotone", SPLIT), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
