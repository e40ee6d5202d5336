"""`python -m train power`: the constants of `physics/power.json`, from steady rows of the corpus and our own loops.

A tenth of the corpus's steady rows began from a cold board and read low, none reads high, so that the loss is absolute.
What a product at the limit would draw more counts nowhere: its constants are those of full clocks.
Collections run on operands of their own (constants, memory as it was): a factor of a framework's rows under `graph`,
`collected`, holds what that changes, and `physics/collected.json` what their meter reads besides.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from corpus.select import HELD_OUT, fold
from corpus.watts import PRODUCTS, collected_rows, own_rows
from pipewave.calls.families import from_dict
from pipewave.errors import PipewaveError
from pipewave.gpus import GPU, find
from pipewave.kernels import family_of
from pipewave.physics.collected import MOST_SHARE, READINGS, Reading, start_share
from pipewave.physics.power import GRAPH, LAW, START_S, dram_byte_j
from pipewave.prediction.columns import columns_of, group_key_of
from pipewave.prediction.kernel_latency import answer
from train import cards

SHIPPED = cards.read(LAW)  # its `like` is stated, `steps` are of `train.power_serving`
LIKE = SHIPPED["like"]  # kinds of call by the net that answers for them; the rest is answered like `other`
WATTS = {"idle": 0.18, "asleep": 0.11, "limit": 0.98}  # shares of its power limit that a board not listed takes
BOARDS = {
    "H200": {"idle": 0.171, "asleep": 0.11, "limit": 0.99},  # lab.board_energy: 120, 77 and 700 of 700 W
    "H100": {"idle": 0.171, "asleep": 0.104, "limit": 1.02},  # the same: 120, 73 and 718 of 700 W
    "B200": {"idle": 0.241, "asleep": 0.14, "limit": 0.987},  # lowest of the corpus, and where it gathers
    "GB200": {"idle": 0.175, "asleep": 0.14, "limit": 0.972},
}
COLLECTED = ("H200", "B200", "GB200")  # boards of the corpus
MEMORY = {"9": "H200"}  # whose joules a byte stand for its generation's
FLOPS = {"9": "H200", "10": "B200", "other": "H200"}  # and a FLOP
# What readings of a collection's meter are asked by besides work and time.
FEATURES = {
    "gemm": ["log_m"], "attention_prefill": ["batch", "keys"], "attention_decode": ["batch", "keys", "group"],
    # Where the busiest expert has all tokens, a collection draws its loads for long, and the board cools before a loop.
    "fused_moe": ["tokens_per_active", "busiest_share"],
}  # fmt: skip
HIDDEN = {"gemm": 16, "attention_prefill": 12, "attention_decode": 8, "fused_moe": 16}
PROMPTS = "attention_prefill"  # collected from the longest, on a board that is cold when a loop begins
METERED = f"{PROMPTS}_collected"  # what a collection's meter reads of them, by a law of its own
STRETCHES = tuple(pairwise(np.log2([64, 128, 10240, 12288, 16384]).tolist()))  # of tokens, in which its share falls
REACH = 3.0  # standard deviations from the mean, beyond which inputs count as there
FEWEST = 60  # rows that settle an interval
SOURCE = "python -m train power: shares of a board's power at the peak of each pipe; rows of corpus/watts.py"
PARTS = ("active", "tensor", "dram", "l2")
BASED = [4, 1, 2, 3]  # columns of shares beside PARTS, of the time that was worked out beforehand
KINDS = ("gemm", "attention_prefill", "attention_decode", "mla_context", "mla_generation", "fused_moe", "rmsnorm")


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured rows beside what is known of them without measuring."""

    table: pd.DataFrame  # gpu, kind, stack (framework and type of product), group, own, latency_us; watts, limit: W
    shares: np.ndarray  # [row, 5] of the time, tensor peak, DRAM and L2 bandwidth; the base time over the row's

    def take(self, mask: np.ndarray) -> Rows:
        """Some rows."""
        return Rows(self.table[mask].reset_index(drop=True), self.shares[mask])


def read(data: Path | None = None) -> Rows:
    """All rows, with what `predict` says of them."""
    rows = [*(row for row in own_rows() if row["fitted"]), *collected_rows(data)]
    groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], Any]]] = {}
    for row in rows:
        with suppress(PipewaveError):  # rows that this release does not answer
            call = from_dict(row["case"])
            family = family_of(call.kernel)
            key = (row["gpu"], row["protocol"], family.name, *group_key_of(family, call, None, None))
            groups.setdefault(key, []).append((row, call))
    parts = [part for key, members in groups.items() if (part := _answered(key, members)) is not None]
    return Rows(pd.concat([table for table, _ in parts], ignore_index=True), np.concatenate([s for _, s in parts]))


def _answered(
    key: tuple[Any, ...], members: list[tuple[dict[str, Any], Any]]
) -> tuple[pd.DataFrame, np.ndarray] | None:
    gpu, protocol, name, *rest = key
    family, spec = family_of(name), find(gpu)
    try:
        found = answer(family, columns_of(family, [call for _, call in members]), tuple(rest), spec, protocol)
    except PipewaveError:
        return None
    given = pd.DataFrame([{k: row.get(k) for k in ("latency_us", "watts", "group", "own")} for row, _ in members])
    analysis, product = found.analysis, found.analysis.done.product or found.ctx.dtype
    seconds = 1e-6 * given["latency_us"].to_numpy() if given["own"].iloc[0] else found.seconds[0]
    tensor, dram, l2 = _used(spec, product, analysis, seconds)
    dram = dram * 1e9 * spec.dram_gbps * dram_byte_j(spec) / spec.tdp_w
    shares = np.column_stack((np.maximum(1.0 - START_S / seconds, 0.0), tensor, dram, l2, analysis.base_s / seconds))
    kind = LIKE.get(analysis.net, analysis.net)
    inputs = [*_used(spec, product, analysis, analysis.base_s), np.log2(1e6 * analysis.base_s)]
    inputs += [analysis.features[name] for name in FEATURES.get(kind, ())]
    framework, generation = found.ctx.framework, str(spec.compute_capability // 10)
    said = {"gpu": gpu, "kind": kind, "net": analysis.net, "stack": f"{framework} {product}", "limit": spec.tdp_w}
    said |= {"rows": f"{generation} {framework} {found.ctx.impl} {product}", "generation": generation}
    said |= {"inputs": list(np.column_stack(inputs)), "keys": analysis.features.get("keys", 0.0)}
    said |= {"causal": analysis.features["causal"] if kind == PROMPTS and protocol == GRAPH else 0.0}
    return given.assign(**said), shares


def _used(gpu: GPU, product: str, analysis: Any, seconds: np.ndarray) -> list[np.ndarray]:
    """Shares of tensor peak, DRAM and L2 bandwidth, [row] each."""
    rates, work = (gpu.peak_flops(product), 1e9 * gpu.dram_gbps, 1e9 * gpu.l2_gbps), analysis.done
    return [amount / rate / seconds for amount, rate in zip((work.flops, work.dram, work.l2), rates, strict=True)]


class _Watts(torch.nn.Module):
    """The law of some rows' watts: logarithms of its constants, and what is known of each row."""

    def __init__(self, rows: Rows, *, metered: bool) -> None:
        super().__init__()
        table, self.metered = rows.table, metered
        self.kinds = [kind for kind in KINDS if (table["kind"] == kind).any()]
        self.kind = torch.tensor(table["kind"].map(self.kinds.index).to_numpy())
        self.family, self.families = pd.MultiIndex.from_frame(table[["kind", "generation"]]).factorize(sort=True)
        self.stack, self.stacks = pd.MultiIndex.from_frame(table[["kind", "stack"]]).factorize(sort=True)
        prompts = table["stack"].str.partition(" ")[0].where(table["causal"] > 0)
        self.start, self.starts = pd.factorize(prompts, sort=True)
        self.newer = torch.tensor([which != "9" for _, which in self.families])[self.family]
        self.own, product = (torch.tensor(mask.to_numpy(bool)) for mask in (table["own"], table["kind"].isin(PRODUCTS)))
        self.unlimited = (self.own | metered) & ~product  # metered time at the limit says what the work costs
        reached = metered * np.column_stack([np.log(start_share([(*ends, 1.0)], table)) for ends in STRETCHES])
        boards, watts = pd.DataFrame([BOARDS.get(name, WATTS) for name in table["gpu"]]), table["watts"]
        known = boards["idle"], boards["limit"], np.log(watts / table["limit"]), weights(table), rows.shares, reached
        numbers = (torch.tensor(np.asarray(each), dtype=torch.float32) for each in known)
        self.idle, self.limit, self.truth, self.weight, self.shares, self.reached = numbers
        self.logs = torch.nn.Parameter(torch.full((len(self.kinds), len(PARTS)), -1.5))
        self.generation = torch.nn.Parameter(torch.zeros(len(self.families)))
        self.collected = torch.nn.Parameter(torch.zeros(len(self.stacks)))
        self.falls = torch.nn.Parameter(torch.full((len(self.starts), len(STRETCHES)), -4.0))

    def forward(self, some: torch.Tensor) -> Any:
        """The loss over some rows."""
        factor = self.generation[self.family[some]] * self.newer[some]
        factor = factor + torch.where(self.own[some], 0.0, self.collected[self.stack[some]])
        fallen = (torch.nn.functional.softplus(self.falls)[self.start[some]] * self.reached[some]).sum(1, keepdim=True)
        read = self.shares[some][:, : len(PARTS)] - (1.0 - torch.exp(-fallen)) * self.shares[some][:, BASED]
        constants = torch.exp(_tied(self.logs, self.kinds)[self.kind[some]])
        drawn = self.idle[some] + (read * constants).sum(1) * torch.exp(factor)
        held = (drawn**-20 + self.limit[some] ** -20) ** (-1 / 20)
        error = torch.log(torch.where(self.unlimited[some], drawn, held)) - self.truth[some]
        loss = (self.weight[some] * torch.sqrt(error**2 + 4e-4)).mean()
        return loss + 3e-3 * (self.collected**2).mean() + 1e-2 * (self.generation**2).mean()

    def constants(self) -> dict[str, Any]:
        """As `power.json` holds them: shares of each kind with their factors, or those of prompts and how they fall."""
        found: dict[str, Any] = {}
        for name, logs in zip(self.kinds, _tied(self.logs, self.kinds), strict=True):
            found[name] = dict(zip(PARTS, (round(share, 4) for share in torch.exp(logs).tolist()), strict=True))
            found[name]["generations"] = _factors(self.families, self.generation, name, {"9"})
            found[name]["collected"] = _factors(self.stacks, self.collected, name)
        each = zip(self.starts, _rounded(-torch.nn.functional.softplus(self.falls)), strict=True)
        falls = {name: [(*ends, fall) for ends, fall in zip(STRETCHES, row, strict=True)] for name, row in each}
        return {METERED: found[PROMPTS] | {"falls": falls}} if self.metered else found


def fit(rows: Rows, steps: int = 2500, seed: int = 0, *, metered: bool = False) -> dict[str, Any]:
    """Shares and factors that explain the watts; `metered`: and the share of prompts that collections' meters read."""
    torch.manual_seed(seed)
    law = _Watts(rows, metered=metered)
    factors = {"params": [law.generation, law.collected, law.falls], "lr": 0.02}
    optimiser = torch.optim.Adam([{"params": [law.logs], "lr": 0.03}, factors])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, [0.03, 0.02], total_steps=steps)
    for _ in range(steps):
        loss = law(torch.randint(len(law.truth), (4096,)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return law.constants()


def _tied(law: Any, kinds: list[str]) -> Any:
    """The same logarithms with one energy of a FLOP for all products: few rows of experts fill the tensor cores."""
    found, tensor = law.clone(), PARTS.index("tensor")
    for kind in set(PRODUCTS).intersection(kinds):
        found[kinds.index(kind), tensor] = law[kinds.index(PRODUCTS[0]), tensor]
    return found


def _factors(keys: list[tuple[str, str]], logs: Any, kind: str, but: set[str] | frozenset[str] = frozenset()) -> Any:
    pairs = zip(keys, logs.tolist(), strict=True)
    return {key: round(float(np.exp(log)), 4) for (name, key), log in pairs if name == kind and key not in but}


def readings_of(rows: Rows, law: Mapping[str, Any]) -> dict[str, Any]:
    """What a collection's meter reads besides a law in the form of `fit`, by kind, as `collected.json` holds it."""
    rows = rows.take(~rows.table["own"].to_numpy(bool))
    above = drawn(rows, law)
    masks = {kind: (rows.table["kind"] == kind).to_numpy() for kind in FEATURES}
    return {kind: _reading(rows.take(mask), kind, above[mask]) for kind, mask in masks.items() if mask.any()}


def _reading(rows: Rows, kind: str, drawn: np.ndarray) -> dict[str, Any]:
    table, base = rows.table, rows.shares[:, len(PARTS)]
    inputs, drawing = np.stack(table["inputs"].to_list()), np.random.default_rng(0)
    middle, scale = inputs.mean(0), inputs.std(0) + 1e-9
    low, high = middle - REACH * scale, middle + REACH * scale
    given = torch.tensor((np.clip(inputs, low, high) - middle) / scale)
    group, groups = pd.factorize(table["rows"])
    sizes = (0.5 / len(middle) ** 0.5, (len(middle), HIDDEN[kind])), (0.5, HIDDEN[kind] + 1), (0.05, HIDDEN[kind])
    matrix, bias, out = (torch.tensor(drawing.normal(0.0, *each), requires_grad=True) for each in sizes)
    of_group = torch.tensor(np.zeros((len(groups), HIDDEN[kind] + 1)), requires_grad=True)
    boards = pd.DataFrame([BOARDS[name] for name in table["gpu"]])
    known = (boards["idle"], boards["limit"], drawn, weights(table), table["watts"] / table["limit"], base)
    idle, limit, law, weight, truth, base = (torch.tensor(np.asarray(each, float)) for each in known)
    settings = {"max_iter": 1000, "history_size": 20, "line_search_fn": "strong_wolfe"}
    optimiser = torch.optim.LBFGS([matrix, bias, out, of_group], **settings)

    def loss() -> Any:
        optimiser.zero_grad()
        each = (bias + of_group)[group]
        more = torch.relu(given @ matrix + each[:, :-1]) @ out + each[:, -1]
        found = torch.maximum(law + base * torch.clamp(more, -MOST_SHARE, MOST_SHARE), idle)
        error = torch.log((found**-20 + limit**-20) ** (-1 / 20) / truth)
        value = (weight * torch.sqrt(error**2 + 4e-4)).mean() + 3.0 / len(table) * ((matrix**2).sum() + (out**2).sum())
        value = value + 5e-3 * (of_group**2).sum() / len(groups)
        value.backward()
        return value

    optimiser.step(loss)
    unscaled = matrix / torch.tensor(scale)[:, None]
    own = bias + of_group
    own[:, :-1] -= torch.tensor(middle) @ unscaled
    arrays = {"low": low, "high": high, "weights": unscaled, "out": out}
    found = {"nets": sorted(set(table["net"])), "features": FEATURES[kind]}
    told = {name: _rounded(values) for name, values in arrays.items()}
    return found | told | {"groups": dict(zip(groups, _rounded(own), strict=True))}


def _rounded(values: Any) -> Any:
    found = values.detach().numpy() if isinstance(values, torch.Tensor) else values
    return np.array([float(f"{value:.5g}") for value in found.ravel()]).reshape(found.shape).tolist()


def weights(table: pd.DataFrame) -> np.ndarray:
    """Kinds and boards alike, long calls more, our loops as much as a board of the corpus."""
    energy = table["watts"] * table["latency_us"]
    weight = np.ones(len(table))
    for members in table.groupby(["kind", "gpu", "own"]).groups.values():
        mine = energy[members]
        weight[members] = (1.0 + np.minimum(mine / mine.mean(), 5.0)) / len(members) ** 0.5
        weight[members] *= 16.0 if table["own"][members].all() else 1.0
    return np.asarray(weight / weight.mean())


def drawn(rows: Rows, law: Mapping[str, Any]) -> np.ndarray:
    """What a law in the form of `fit` says of rows at no limit, in shares of their boards' power."""
    table = rows.table
    found, keys = np.empty(len(table)), ["kind", "gpu", "stack", "generation", "own"]
    for (kind, gpu, stack, generation, own), members in table.groupby(keys).groups.items():
        row = (not own and law.get(f"{kind}_collected")) or law.get(kind, law[PROMPTS])
        factor = row["generations"].get(generation, 1.0) * (1.0 if own else row["collected"].get(stack, 1.0))
        idle, falls, read = BOARDS.get(gpu, WATTS)["idle"], row.get("falls", {}), rows.shares[members]
        share = start_share(falls.get(stack.partition(" ")[0], ()), table.loc[members])
        read = read[:, : len(PARTS)] - (1.0 - np.asarray(share))[:, None] * read[:, BASED]
        found[members] = idle + factor * read @ np.array([row[part] for part in PARTS])
    return found


def watts(rows: Rows, law: Mapping[str, Any], read: Mapping[str, Any]) -> np.ndarray:
    """Watts of rows by a law, and by what `readings_of` says of a collection's meter."""
    table, found = rows.table, drawn(rows, law)
    boards = pd.DataFrame([BOARDS.get(gpu, WATTS) for gpu in table["gpu"]])
    for (kind, group), members in table[~table["own"].astype(bool)].groupby(["kind", "rows"]).groups.items():
        if kind in read and (reading := Reading.of(read[kind], group)):
            given = np.stack(table["inputs"][members].to_list()).T
            features = dict(zip(reading.features, given[4:], strict=True))
            base, said = rows.shares[members, len(PARTS)], found[members] - boards["idle"].to_numpy()[members]
            found[members] += base * reading.above(said / base, tuple(given[:3]), 1e-6 * 2.0 ** given[3], features)
    return np.asarray(np.clip(found, boards["idle"], boards["limit"]) * table["limit"])


def spreads(rows: Rows, found: np.ndarray, default: float) -> dict[str, float]:
    """Half-widths of the logarithm that nine in ten rows of each kind keep. `found`: their watts by a law."""
    error, members = np.abs(np.log(found / rows.table["watts"])), rows.table.groupby("kind").groups
    settled = {kind: float(np.quantile(error[rows], 0.9)) for kind, rows in members.items() if len(rows) >= FEWEST}
    return dict.fromkeys(KINDS, default) | settled


def unseen_shapes(rows: Rows) -> tuple[Rows, np.ndarray, np.ndarray]:
    """Collected rows whose group of shapes is held out, and their watts by a fit without them, and by its law alone."""
    held = np.array([fold(group) == HELD_OUT for group in rows.table["group"]])
    return _without(rows, held & ~rows.table["own"].to_numpy(bool))


def unseen_gpu(rows: Rows, name: str) -> tuple[Rows, np.ndarray, np.ndarray]:
    """Collected rows of a GPU, and their watts by a fit without it, and by its law alone."""
    return _without(rows, (rows.table["gpu"] == name).to_numpy())


def _without(rows: Rows, mask: np.ndarray) -> tuple[Rows, np.ndarray, np.ndarray]:
    some, others = rows.take(mask & ~rows.table["own"].to_numpy(bool)), rows.take(~mask)
    law = fit(others)
    whole = law | fit(others, metered=True)
    return some, watts(some, whole, readings_of(others, whole)), watts(some, law, {})


def main(argv: list[str] | None = None) -> None:
    """Fit, settle intervals on what each fit did not see, and write the law."""
    parser = argparse.ArgumentParser(prog="python -m train power", description=__doc__)
    parser.add_argument("--data", type=Path)
    rows = read(parser.parse_args(argv).data)
    held, with_readings, alone = unseen_shapes(rows)
    near, told = (spreads(held, found, 0.15) for found in (alone, with_readings))
    apart = [spreads(others, found, 0.25) for others, _, found in (unseen_gpu(rows, name) for name in COLLECTED)]
    kinds = fit(rows) | fit(rows, metered=True)
    for key, row in kinds.items():
        kind = key.removesuffix("_collected")
        other = max(near[kind], *(one[kind] for one in apart))
        row["spread"] = [round(value, 3) for value in (near[kind], other, 1.5 * other)]
    told_of = readings_of(rows, kinds)
    for kind, row in told_of.items():
        row["spread"] = round(told[kind], 3)
    law = SHIPPED | {"source": SOURCE, "boards": BOARDS | {"other": WATTS}, "memory": MEMORY, "flops": FLOPS}
    law |= {"kinds": kinds, "generations": sorted(rows.table["generation"].unique())}
    READINGS.write_text(json.dumps(told_of) + "\n", encoding="utf-8")
    cards.ship(LAW, law)
