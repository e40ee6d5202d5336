"""How far the numbers of a rule are from measured rows: `python -m train.rule_fit attention_costs|link_times`.

For each case of a rule of `software/stack_rules.json` (`attention_costs`, `link_times`): the rows whose base estimate
rests on it, how far the estimate is from them, and the numbers that make it best. Every GPU counts alike. What a refit
is worth is measured on GPUs that it did not see, one left out at a time, or, where one GPU has the case, on groups of
shapes. Numbers that ship are not changed: the nets were trained on their base estimates, so that a refit goes with a
retraining.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from pipewave.kernels.attention import engines, setting
from pipewave.kernels.attention.analyse import analyse_requests
from pipewave.software import stack_rules
from pipewave.software.stack_rules import Case

Floats = NDArray[np.float64]
Place = tuple[Any, ...]  # keys and places from a case's value down to a number

NETS = {
    "attention_costs": ("attention", ("attention_prefill", "attention_decode")),
    "link_times": ("collective", ("all_gather", "reduce_scatter", "all_to_all", "send_recv", "all_reduce")),
}
CACHED: tuple[_lru_cache_wrapper[Any], ...] = (stack_rules.constant, engines.engine_of, setting._setting)
SAMPLE = 15  # rows of a net, GPU, stack and implementation
NUDGE = 1.05  # of a case's numbers, to find the rows that rest on it
LIMIT = 12.0  # most that a number may be scaled by, and the inverse
FOLDS = 4  # of groups, where one GPU has the case


@dataclass(frozen=True)
class Sampled:
    """Rows of one net on one GPU."""

    net: str
    module: Any
    gpu: str
    frame: pd.DataFrame

    def log_base(self) -> Floats:
        """Log of the base estimate in µs under the rules in force."""
        if not hasattr(self.module, "inputs"):
            return np.log(np.asarray(self.module.features(self.net, self.frame)[1]))
        base_us = np.empty(len(self.frame))
        for index, requests, heads, ctx in self.inputs:
            base_us[index] = analyse_requests(requests, heads, ctx).base_s * 1e6
        return np.log(base_us)

    @cached_property
    def inputs(self) -> list[Any]:
        """What the estimate is made from, by context; made once, for a fit asks for it some hundred times."""
        return list(self.module.inputs(self.net, self.frame))

    def part(self, mask: NDArray[np.bool_]) -> Sampled:
        """Some of the rows."""
        return Sampled(self.net, self.module, self.gpu, self.frame[mask].reset_index(drop=True))

    @property
    def log_us(self) -> Floats:
        """Log of the measured time in µs."""
        return np.log(self.frame["latency_us"].to_numpy(np.float64))


def sampled(rule: str, data: str | None) -> list[Sampled]:
    """Seeded rows of every GPU, stack and implementation."""
    name, nets = NETS[rule]
    module = import_module(f"train.nets.{name}")
    found = []
    for net in nets:
        frame = module.rows(net, data).sample(frac=1.0, random_state=0)
        kept = frame[frame.groupby(["gpu", "stack", "impl"], observed=True).cumcount() < SAMPLE]
        found += [
            Sampled(net, module, str(gpu), rows.reset_index(drop=True))
            for gpu, rows in kept.groupby("gpu", observed=True)
        ]
    return found


def numbers(value: Any, at: Place = ()) -> Iterator[Place]:
    """Where a case's value holds numbers above zero."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from numbers(inner, (*at, name))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from numbers(inner, (*at, place))
    elif isinstance(value, float) and value > 0.0:
        yield at


@contextmanager
def scaled(case: Case, factors: Mapping[Place, float]) -> Iterator[None]:
    """The rules with some numbers of a case multiplied."""
    before = json.dumps(case.value)
    try:
        for path, factor in factors.items():
            holder = case.value
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] *= factor
        _forget()
        yield
    finally:
        case.value.clear()
        case.value.update(json.loads(before))
        _forget()


def _forget() -> None:
    for cached in CACHED:
        cached.cache_clear()


def resting(case: Case, rows: Sequence[Sampled], bases: Sequence[Floats]) -> list[Sampled]:
    """The rows whose estimate moves with the case's numbers; `bases`: of all rows as shipped."""
    with scaled(case, dict.fromkeys(numbers(case.value), NUDGE)):
        moved = [np.abs(part.log_base() - base) > 1e-9 for part, base in zip(rows, bases, strict=True)]
    return [part.part(mask) for part, mask in zip(rows, moved, strict=True) if mask.any()]


def errors(case: Case, rows: Sequence[Sampled], log_factors: Mapping[Place, float]) -> list[Floats]:
    """Log of estimate over measurement, part by part."""
    with scaled(case, {path: float(np.exp(log)) for path, log in log_factors.items()}):
        return [part.log_base() - part.log_us for part in rows]


def fitted(case: Case, rows: Sequence[Sampled]) -> dict[Place, float]:
    """Log factors that make the estimate best, robustly, every GPU alike."""
    paths = list(numbers(case.value))
    sizes = pd.Series([len(part.frame) for part in rows]).groupby([part.gpu for part in rows]).sum()
    weights = [sizes[part.gpu] ** -0.5 for part in rows]

    def residual(logs: Floats) -> Floats:
        found = errors(case, rows, dict(zip(paths, logs.tolist(), strict=True)))
        return np.concatenate([weight * error for weight, error in zip(weights, found, strict=True)])

    limit = np.log(LIMIT)
    scale = 0.2 * float(np.mean(weights))
    found = least_squares(
        residual,
        np.zeros(len(paths)),
        bounds=(-limit, limit),
        loss="soft_l1",
        f_scale=scale,
        diff_step=2e-2,
        max_nfev=6,
    )
    return dict(zip(paths, found.x.tolist(), strict=True))


def left_out(rows: Sequence[Sampled]) -> Iterator[tuple[list[Sampled], list[Sampled]]]:
    """(rows to fit, rows to score): a GPU left out at a time, or groups of shapes where there is one GPU."""
    gpus = sorted({part.gpu for part in rows})
    if len(gpus) > 1:
        for gpu in gpus:
            yield [part for part in rows if part.gpu != gpu], [part for part in rows if part.gpu == gpu]
        return
    groups = sorted({str(group) for part in rows for group in part.frame["group"]})
    for fold in range(FOLDS):
        mine = set(groups[fold::FOLDS])
        masks = [part.frame["group"].astype(str).isin(mine).to_numpy() for part in rows]
        yield (
            [part.part(~mask) for part, mask in zip(rows, masks, strict=True) if (~mask).any()],
            [part.part(mask) for part, mask in zip(rows, masks, strict=True) if mask.any()],
        )


def mean(found: Sequence[Floats], gpus: Sequence[str]) -> float:
    """Mean absolute log error in percent, every GPU alike."""
    frame = pd.DataFrame({"gpu": np.repeat(gpus, [len(one) for one in found]), "off": np.abs(np.concatenate(found))})
    return round(100.0 * float(frame.groupby("gpu")["off"].mean().mean()), 1)


def judged(case: Case, rows: Sequence[Sampled]) -> dict[str, Any]:
    """What ships, what a refit says, and both on rows that the refit did not see."""
    best = fitted(case, rows)
    shipped, refitted, gpus = [], [], []
    for others, mine in left_out(rows):
        elsewhere = fitted(case, others) if others else {}
        shipped += errors(case, mine, {})
        refitted += errors(case, mine, elsewhere)
        gpus += [part.gpu for part in mine]
    return {
        "when": dict(case.when),
        "rows": sum(len(part.frame) for part in rows),
        "gpus": len(set(gpus)),
        "error as shipped, %": mean(shipped, gpus),
        "error refitted elsewhere, %": mean(refitted, gpus),
        "factors": {".".join(map(str, path)): round(float(np.exp(log)), 2) for path, log in best.items()},
    }


def main() -> None:
    """Print every case with rows; keep them with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rule", choices=sorted(NETS))
    parser.add_argument("--data", help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    parser.add_argument("--json", type=Path, help="keep the figures, beside those of other rules")
    options = parser.parse_args()
    rows = sampled(options.rule, options.data)
    bases, found = [part.log_base() for part in rows], []
    for case in stack_rules.table()[options.rule]:
        if mine := resting(case, rows, bases):
            found.append(judged(case, mine))
            print(json.dumps(found[-1]), flush=True)
    if options.json:
        kept = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps(kept | {options.rule: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
