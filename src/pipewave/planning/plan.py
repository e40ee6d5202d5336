"""What a plan found: designs as rows, the winner, what would move it, what was left out and what does not fit."""

from __future__ import annotations

import csv
import io
import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pipewave.files import packaged
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSpec, names
from pipewave.models.kernels import Deployment
from pipewave.models.load import PUBLISHED, quantised
from pipewave.models.quantization_config import ONLINE
from pipewave.planning.fleet import MONTH_H, Demand, Fleet, curve
from pipewave.planning.launch import pools
from pipewave.planning.manifests import platform_of, render
from pipewave.planning.prices import AT_BOARDS, Meter, Price
from pipewave.planning.run import command_line
from pipewave.planning.screen import Screened, screen
from pipewave.planning.space import Question, Space, Split
from pipewave.prediction.notes import by_gpu
from pipewave.results import Shown
from pipewave.step import Runner, find_engine

TIMES, ENDS = ("ttft_ms", "tpot_ms"), ("", "_low", "_high")
MARGIN = 64  # tokens that a launched server takes beyond the question: what a chat template adds
# Of TTFT and TPOT at the same rate, and of the largest rate.
CHANGES = ("ttft_ms_change_percent", "tpot_ms_change_percent", "tokens_per_s_per_gpu_change_percent")
PERHAPS, STRADDLES = "perhaps", "the 90 % interval of a limited time straddles its limit"  # of a design's `sure`
TRIED = packaged.shared(Path(__file__).with_name("tables.json"))
ELASTIC: dict[str, str] = TRIED["elastic"]  # properties of a GPU
LEFT_OUT: dict[str, dict[str, Any]] = TRIED["left_out"]  # what the default search does not try, and how to ask for it


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """A deployment at a rate, as a run of it says; `cost` orders designs: USD, GPUs for those without a price."""

    look: Screened
    fleet: Fleet
    cost: float
    meter: Meter = AT_BOARDS

    @property
    def joules(self) -> float:
        """Of an output token, at the boards."""
        return self.fleet.point.figures["energy_j_per_output_token"]

    @property
    def split(self) -> Split:
        """How it is deployed."""
        return self.look.split

    @property
    def sure(self) -> bool:
        """Whether it keeps the limits by the upper ends of its intervals."""
        return self.fleet.point.sure

    @property
    def speed(self) -> float:
        """Tokens a second for a user."""
        tpot = self.fleet.point.figures.get("tpot_mean_ms", 0.0)
        return 1e3 / tpot if tpot else math.inf

    def row(self, question: Question) -> dict[str, Any]:
        """One flat row."""
        split, point, fleet = self.split, self.fleet.point, self.fleet
        usd, figures = fleet.usd_per_hour, point.figures
        times = {f"{metric}_ms{end}": figures.get(f"{metric}_mean_ms{end}", 0.0)
                 for metric in ("ttft", "tpot", "e2e") for end in ENDS}  # fmt: skip
        tails = [limit.figure for limit in question.limits if limit.statistic != "mean"]
        found: dict[str, Any] = {
            "gpu": " + ".join(split.by_gpu),
            "gpus": split.gpus,
            "replicas": fleet.replicas,
            "engines": _pools(split),
            **{name: getattr(split, name) for name in ("tp", "pp", "ep", "dp", "power_limit_w")},
            "dcp": split.dcp if split.dcp > 1 else None,
            "drafts": split.speculative or "none",
            "engine": split.engine,
            "weights": split.weights or "as asked",
            "kv_dtype": split.kv_dtype or "auto",
            "max_num_seqs": point.max_num_seqs,
            "max_num_batched_tokens": point.max_num_batched_tokens,
            "requests": point.requests,
            "requests_per_s": fleet.peak,
            "in_flight": point.in_flight / point.replicas,
            **times,
            **{name + end: figures[name + end] for name in tails for end in ENDS},
            "tokens_per_s_per_gpu": fleet.peak * question.output_len / (fleet.replicas * split.gpus),
            "tokens_per_s_per_user": self.speed if math.isfinite(self.speed) else None,
            "usd_per_million_tokens": usd and usd / (3600 * fleet.peak * question.output_len) * 1e6,
            "usd_per_hour": usd,
            "usd_per_month": usd and usd * MONTH_H,
            **self.meter.per_token(self.joules),
        }
        energy = {name + end: figures[name + end] for name in ("power_w", "energy_j_per_output_token") for end in ENDS}
        rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}
        return rounded | energy | {"sure": "yes" if self.sure else PERHAPS}


@dataclass(frozen=True)
class Plan(Shown):
    """Designs that were looked at, those that were served and keep the limits, and what follows from them."""

    spec: ModelSpec
    question: Question
    space: Space
    demand: Demand
    looked: tuple[Screened, ...]
    designs: tuple[Design, ...]
    prices: Mapping[str, Price]
    meter: Meter = AT_BOARDS
    checkpoint: str = ""  # the repository that was asked about, where the model goes by another's sizes
    _TABLE: ClassVar[str] = "rows"
    _DRAWN: ClassVar[tuple[str, ...]] = ("tokens_per_s_per_user", "tokens_per_s_per_gpu")

    @property
    def model(self) -> str:
        """Its name."""
        return self.spec.name

    @cached_property
    def ranked(self) -> tuple[Design, ...]:
        """All designs, those that keep the limits for sure first, the cheapest first; priced ones before others."""
        return tuple(sorted(self.designs, key=lambda d: (not d.sure, d.cost, -d.speed)))

    @property
    def winner(self) -> Design | None:
        """The cheapest design that keeps the limits for sure; where none does, the cheapest that is likely to."""
        return self.ranked[0] if self.ranked else None

    @property
    def likely(self) -> Design | None:
        """The cheapest design that is likely to keep the limits, where it is not the winner."""
        best = min(self.designs, key=lambda d: d.cost, default=None)
        return best if best is not None and self.winner is not None and best.cost < self.winner.cost else None

    @cached_property
    def best_by_gpu(self) -> tuple[Design, ...]:
        """The best design of each GPU, pair of GPUs and power limit that was served, cheapest first."""
        best: dict[Any, Design] = {}
        for design in self.ranked:
            best.setdefault((tuple(design.split.by_gpu), design.split.power_limit_w), design)
        return tuple(sorted(best.values(), key=lambda d: d.cost))

    @cached_property
    def front(self) -> tuple[Design, ...]:
        """Designs that no other beats in both cost and speed for a user, cheapest first."""
        priced = [d for d in self.designs if d.fleet.usd_per_hour is not None] or list(self.designs)
        out: list[Design] = []
        for design in sorted(priced, key=lambda d: (d.cost, -d.speed)):
            if not out or design.speed > out[-1].speed:
                out.append(design)
        return tuple(out)

    @cached_property
    def least_energy(self) -> Design | None:
        """The design of fewest joules a token among those that keep the limits for sure; of all where none does."""
        return min([d for d in self.designs if d.sure] or self.designs, key=lambda d: d.joules, default=None)

    @cached_property
    def energy_front(self) -> tuple[Design, ...]:
        """Designs that no other beats in cost, joules a token and speed for a user at once, cheapest first."""
        aims = [(d.cost, d.joules, -d.speed) for d in self.designs]
        beaten = [any(one != aim and all(map(operator.le, one, aim)) for one in aims) for aim in aims]
        return tuple(sorted((d for d, out in zip(self.designs, beaten, strict=True) if not out), key=lambda d: d.cost))

    def __repr__(self) -> str:
        """The winner in one line; `to_dict` has everything."""
        found = f"{len(self.looked):,} designs of {self.model}, {len(self.designs):,} served"
        if self.winner is None:
            return f"<{found}; none keeps the limits>"
        row = self.winner.row(self.question)
        return (
            f"<{found}; cheapest: {row['replicas']} × {row['gpus']} × {row['gpu']}, tp {row['tp']}, {row['engine']}: "
            f"TTFT {row['ttft_ms']:.4g} ms, TPOT {row['tpot_ms']:.4g} ms>"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Designs as rows: the best of each GPU first, then the others, each group cheapest first."""
        best = self.best_by_gpu
        return [d.row(self.question) for d in (*best, *(d for d in self.ranked if d not in best))]

    def csv(self) -> str:
        """Every design that was served as comma-separated rows."""
        rows, out = self.rows(), io.StringIO()
        writer = csv.DictWriter(out, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def to_dict(self, most: int = 30, form: str = "shell") -> dict[str, Any]:
        """The plan as one JSON object; lists of designs hold at most so many rows."""
        reasons: dict[str, list[str]] = {}
        for one in self.looked:
            if one.refused:
                reasons.setdefault(one.refused, []).append(one.split.label)
        winner, question = self.winner, self.question
        used = {find_gpu(gpu).name for d in (*self.front, *self.best_by_gpu) for gpu in d.split.by_gpu}
        able = {one.split.gpu for one in self.looked if not one.refused}
        least = zip(*(one.least_ms for one in self.looked if not one.refused), strict=True)
        return {
            "model": self.model,
            "asked": {"limits": [str(limit) for limit in question.limits], "input_len": question.input_len,
                      "output_len": question.output_len, "prefix_share": question.prefix_share},
            "designs": sum(not one.refused for one in self.looked),
            "meet_the_limits": sum(one.rate > 0 for one in self.looked),
            "served": len(self.designs),
            "best_by_gpu": [d.row(question) for d in self.best_by_gpu],
            "shortest": {name: round(min(each), 3) for name, each in zip(TIMES, least, strict=False)} or None,
            "winner": winner and winner.row(question),
            "likely": self.likely and self.likely.row(question),
            "fleet": winner and self.fleet(winner),
            "serve": winner and self.serve_command(winner),
            "launch": winner and self.launch(winner, form),
            "notes": self.notes(),
            "left_out": self.left_out(),
            "elasticities": self.elasticities(),
            "front": [d.row(question) for d in self.front[:most]],
            "energy_front": [d.row(question) for d in self.energy_front[:most]],
            "least_energy": self.least_energy and self.least_energy.row(question),
            "rows": self.rows()[:most],
            "does_not_fit": [{"why": why, "splits": splits} for why, splits in reasons.items()],
            "impossible": {one.split.gpu: one.refused for one in self.looked if one.split.gpu not in able},
            "without_price": sorted(gpu for gpu in self.space.gpus if find_gpu(gpu).name not in self.prices),
            "prices": [asdict(price) for name, price in self.prices.items() if name in used],
        }  # fmt: skip

    def fleet(self, design: Design) -> dict[str, Any]:
        """Replicas, GPUs, costs and headroom of a design; over the recorded time, where there is one."""
        found = design.fleet.to_dict(design.split, self.question, design.look.prompt_share)
        each = design.fleet.usd_per_hour and design.fleet.usd_per_hour / design.fleet.replicas
        if self.demand.arrivals is not None:
            found["autoscaler"] = curve(self.demand, design.fleet.capacity, each)
        if self.demand.budget is not None and each:
            replicas = int(self.demand.budget / (each * MONTH_H))
            found["budget"] = {
                "usd_per_month": self.demand.budget,
                "enough": design.fleet.replicas <= replicas,
                "replicas": replicas,
                "requests_per_s": round(replicas * design.fleet.capacity, 4),
            }
        return found

    def serve_command(self, design: Design) -> str:
        """The command that serves a design under the same requests."""
        return command_line(self.model, design.split, self.question, design.fleet.point)

    def launch(self, design: Design, form: str = "shell") -> str:
        """What starts one replica of a design: its engine's command, a `docker run`, Kubernetes or Dynamo YAML."""
        split, point = design.split, design.fleet.point
        longest, most = self.question.longest, self.spec.max_length
        engine = Runner.of(Deployment(self.spec, split.parallel), find_gpu(split.gpu), find_engine(split.engine)).engine
        engines = pools(
            self.checkpoint or self.model if split.weights in ("", *ONLINE) else split.weights,
            split,
            point.max_num_seqs * split.dp * split.workers[1],
            point.max_num_batched_tokens,
            length=longest if most is None else min(longest + MARGIN, most),
            engine=engine,
        )
        return render(form, engine.name, engine.version, engines, platform_of(split.gpu, engine.name))

    def notes(self) -> list[str]:
        """What the model, and the designs of the front and of each GPU, rest on, each once."""
        shown = [*self.best_by_gpu, *self.front]
        listed = [note.replace("of this GPU", f"of {d.split.gpu}") for d in shown for note in d.fleet.point.notes[:-1]]
        gpus = list(dict.fromkeys(d.split.gpu for d in shown))
        last = self.winner.fleet.point.notes[-1:] if self.winner else ()
        return [*dict.fromkeys((*by_gpu(listed, gpus), *last))]

    def elasticities(self) -> list[dict[str, Any]]:
        """What 10 % more of each GPU property would do to the winner at its largest rate, in percent."""
        if self.winner is None or self.winner.split.prefill or self.winner.split.weights:
            return []
        split, gpu = self.winner.split, self.winner.split.card
        base, out = screen(self.spec, split, self.question, gpu), []
        for label, name in ELASTIC.items():
            # Nets know GPUs by name, so the better one keeps it.
            better = gpu.what_if(name=gpu.name, **{name: 1.1 * getattr(gpu, name)})
            changed = screen(self.spec, split, self.question, better, at_rate=base.rate)
            if not (base.refused or changed.refused):
                after, before = ((*one.times_ms[:2], one.rate) for one in (changed, base))
                pairs = zip(CHANGES, after, before, strict=True)
                out.append({"more": f"+10 % {label}"} | {key: round(100 * (b / a - 1), 2) for key, b, a in pairs})
        return out

    def left_out(self) -> list[dict[str, Any]]:
        """What the search did not try, and by how much it would change the winner's rate, by a look."""
        if self.winner is None or self.winner.split.prefill or self.winner.split.weights:
            return []
        split, base = self.winner.split, self.winner.look.rate
        out = []
        others = [(self.spec, option, change) for option, change in LEFT_OUT.items()]
        forms = quantised(self.model, (*ONLINE, PUBLISHED)) if self.model in names() else {}
        others += [(form, f"--quantize {name}", {"weights": name}) for name, form in forms.items()]
        for spec, option, change in others:
            if all(getattr(split, name) in (None, 1, "") for name in change):
                found = screen(spec, replace(split, **change), self.question)
                if not found.refused and found.rate:
                    more = found.rate / base * split.gpus / found.split.gpus
                    out.append({"option": option, "rate_change_percent": round(100 * (more - 1), 1)})
        return out


def _pools(split: Split) -> str:
    """How many engines of which split: `one`, or `3 tp4 + 1 dp8` when prompts have their own."""
    if split.prefill is None:
        return "one"
    several, said = split.gpu != split.prefill.gpu, []
    for count, side in zip(split.workers, (split.prefill, split), strict=True):
        degree = f"dp{side.dp}" if side.dp > 1 else f"tp{side.tp}"
        said.append(f"{count} {degree}" + (f" {side.gpu}" if several else ""))
    return " + ".join(said)
