"""`python -m train power`: the constants of `physics/power.json`, from steady rows of the corpus and our own loops.

A row of the corpus is steady where its loop filled the second over which NVML averages: watts are written as a mean of
readings ten a second, whose number shows in the decimals. A tenth of these rows began from a cold board and read low,
none reads high, so that the loss is absolute. Our loops (`lab.board_energy`) have random operands and the board's own
counter: at the power limit their time says what the work costs. Collections run on operands of their own (constants,
memory as it was): a factor of a framework's rows under `graph`, `collected`, holds what that changes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus.cases import case_row
from corpus.frame import finish, gpu_name, repository
from corpus.select import HELD_OUT, fold
from corpus.sources import data_dir, tables
from pipewave.calls.families import from_dict
from pipewave.errors import PipewaveError
from pipewave.gpus import GPU, find
from pipewave.kernels import family_of
from pipewave.physics.power import LAW, START_S
from pipewave.prediction.columns import columns_of, group_key_of
from pipewave.prediction.kernel_latency import answer

TABLES = ("gemm", "attention", "mla", "fused_moe")
LEAST_US = {"gemm": 60.0, "attention": 330.0, "mla": 330.0, "fused_moe": 1000.0}  # for loops of a second
MOST_ROWS = 3000  # of a file
STEADY_READINGS = 9
LOOPS = "data/measured/*/energy/*.json"
FITTED_UNTIL = "2026-11-24"  # loops of later days say how far off the fit is: another H200, and an H100
NOISY = ("2209d14e",)  # cards whose counter was read while it lagged: ±6 %
# Kinds of call by the net that answers for them; the rest is answered like another kind.
LIKE = {
    "gemm_fp8": "gemm", "gemm_block": "gemm", "gemm_fp4": "gemm", "batched_gemm": "gemm", "silu_and_mul": "rmsnorm",
    "elementwise": "rmsnorm", "causal_conv1d": "rmsnorm", "hyper_connection": "rmsnorm", "mla_module_context": "gemm",
    "mla_module_generation": "mla_generation", "mega_moe": "fused_moe", "index_topk": "rmsnorm",
    "other": "attention_prefill",
}  # fmt: skip
WATTS = {"idle": 0.18, "asleep": 0.11, "limit": 0.98}  # shares of its power limit that a board not listed takes
BOARDS = {
    "H200": {"idle": 0.171, "asleep": 0.11, "limit": 0.99},  # lab.board_energy: 120, 77 and 700 of 700 W
    "H100": {"idle": 0.171, "asleep": 0.104, "limit": 1.02},  # the same: 120, 73 and 718 of 700 W
    "B200": {"idle": 0.241, "asleep": 0.14, "limit": 0.987},  # lowest of the corpus, and where it gathers
    "GB200": {"idle": 0.175, "asleep": 0.14, "limit": 0.972},
}
COLLECTED = ("H200", "B200", "GB200")  # boards of the corpus


def readings(watts: pd.Series) -> Any:
    """The fewest readings, in milliwatts, whose mean a row's watts can be."""
    found = np.zeros(len(watts), int)
    for count in range(60, 0, -1):
        total = watts.to_numpy() * 1e3 * count
        found[np.abs(total - np.round(total)) < 1e-3] = count
    return found


def corpus_rows(data: Path | None) -> Iterator[dict[str, Any]]:
    """Steady rows of the corpus as cases, with watts, µs and what they are distinguished by."""
    folder = data_dir(data)
    for name in TABLES:
        for table in tables(name):
            for file in table.files(folder) if table.source == "aiconfigurator" else ():
                yield from _of_file(table, name, file, folder)


def _of_file(table: Any, name: str, file: Path, folder: Path) -> Iterator[dict[str, Any]]:
    raw = table.read(file, folder)
    if "power" not in raw:
        return
    raw = raw[(raw["power"] > 0) & (raw["latency_us"] > LEAST_US[name]) & ~raw["flagged"].astype(bool)]
    raw = raw[readings(raw["power"]) >= STEADY_READINGS].reset_index(drop=True)
    if raw.empty:
        return
    rows = finish(raw, name, table.source).assign(watts=raw["power"], limit=raw["power_limit"])
    rows["gpu"] = [gpu_name(str(raw_gpu)) for raw_gpu in rows["raw_gpu"]]
    for given in rows.sample(min(len(rows), MOST_ROWS), random_state=0).to_dict("records"):
        row = case_row(name, given)
        if row is not None:
            yield row | {"watts": given["watts"], "group": str(given["group"]), "own": False}


def own_rows() -> Iterator[dict[str, Any]]:
    """Loops of random data; those of a card that was read too often carry no watts."""
    for file in sorted(repository().glob(LOOPS)):
        said = json.loads(file.read_text(encoding="utf-8"))
        if said["card"] in NOISY:
            continue
        for row in said["rows"]:
            small = row.get("case", {}).get("kernel") == "elementwise" and row["case"]["bytes_read"] < 64 << 20
            if row.get("data") == "random" and "power_w" in row and not small:
                case = {name: value for name, value in row["case"].items() if name != "impl"}
                gpu = find(said["gpu"])
                yield {"case": case, "gpu": gpu.name, "protocol": "cold", "latency_us": row["latency_us"],
                       "watts": row["power_w"], "group": file.stem, "own": True,
                       "fitted": said["date"] <= FITTED_UNTIL}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured rows beside what is known of them without measuring.

    `shares`: [row, 4] of one, tensor peak, DRAM and L2 bandwidth that each row uses; `watts` and `limit` of its board.
    """

    table: pd.DataFrame  # gpu, kind, stack (framework and type of product), group, own, watts, latency_us
    shares: np.ndarray

    def take(self, mask: np.ndarray) -> Rows:
        """Some rows."""
        return Rows(self.table[mask].reset_index(drop=True), self.shares[mask])


def read(data: Path | None = None) -> Rows:
    """All rows, with what `predict` says of them."""
    rows = [*(row for row in own_rows() if row["fitted"]), *corpus_rows(data)]
    groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], Any]]] = {}
    for row in rows:
        try:
            call = from_dict(row["case"])
            family = family_of(call.kernel)
            key = (row["gpu"], row["protocol"], family.name, *group_key_of(family, call, None, None))
            groups.setdefault(key, []).append((row, call))
        except PipewaveError:
            continue
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
    work, product = found.analysis.done, found.analysis.done.product or found.ctx.dtype
    seconds = 1e-6 * given["latency_us"].to_numpy() if given["own"].iloc[0] else found.seconds[0]
    shares = _used(spec, product, work, seconds)
    kind, framework = found.analysis.net, found.ctx.stack.partition("-")[0]
    said = {"gpu": gpu, "kind": LIKE.get(kind, kind), "stack": f"{framework} {product}", "limit": spec.tdp_w}
    said |= {"generation": str(spec.compute_capability // 10), "predicted_us": 1e6 * found.seconds[0]}
    return given.assign(**said), shares


def _used(gpu: GPU, product: str, work: Any, seconds: Any) -> np.ndarray:
    rates = gpu.peak_flops(product), 1e9 * gpu.dram_gbps, 1e9 * gpu.l2_gbps
    amounts = work.flops, work.dram, work.l2
    used = [np.broadcast_to(amount / rate / seconds, len(seconds)) for amount, rate in zip(amounts, rates, strict=True)]
    return np.stack([np.maximum(1.0 - START_S / seconds, 0.0), *used], axis=1)


FEWEST = 60  # rows that settle an interval
SOURCE = (
    "python -m train power: shares of a board's power at the peak of each pipe; steady rows of AIConfigurator on H200, "
    "B200 and GB200, and loops of lab.board_energy on an H200"
)
PARTS = ("active", "tensor", "dram", "l2")
KINDS = ("gemm", "attention_prefill", "attention_decode", "mla_context", "mla_generation", "fused_moe", "rmsnorm")


def fit(rows: Rows, steps: int = 2500, seed: int = 0) -> dict[str, Any]:
    """Shares of each kind, factors of generations and of collected rows, that explain the watts."""
    import torch

    torch.manual_seed(seed)
    table = rows.table
    kinds = [kind for kind in KINDS if (table["kind"] == kind).any()]
    kind = torch.tensor(table["kind"].map(kinds.index).to_numpy())
    families = sorted(set(zip(table["kind"], table["generation"], strict=True)))
    family = torch.tensor([families.index(pair) for pair in zip(table["kind"], table["generation"], strict=True)])
    stacks = sorted(set(zip(table["kind"], table["stack"], strict=True)))
    stack = torch.tensor([stacks.index(pair) for pair in zip(table["kind"], table["stack"], strict=True)])
    own = torch.tensor(table["own"].to_numpy(bool))
    shares = torch.tensor(rows.shares, dtype=torch.float32)
    boards = pd.DataFrame([BOARDS.get(name, WATTS) for name in table["gpu"]])
    idle, limit = (torch.tensor(boards[name].to_numpy(), dtype=torch.float32) for name in ("idle", "limit"))
    truth = torch.tensor(np.log(table["watts"] / table["limit"]).to_numpy(), dtype=torch.float32)
    weight = torch.tensor(weights(table), dtype=torch.float32)
    law = torch.nn.Parameter(torch.full((len(kinds), 4), -1.5))
    generation, collected = torch.nn.Parameter(torch.zeros(len(families))), torch.nn.Parameter(torch.zeros(len(stacks)))
    newer = torch.tensor([which != "9" for _, which in families])[family]
    optimiser = torch.optim.Adam([{"params": [law], "lr": 0.03}, {"params": [generation, collected], "lr": 0.02}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, [0.03, 0.02], total_steps=steps)
    for _ in range(steps):
        some = torch.randint(len(truth), (4096,))
        factor = generation[family[some]] * newer[some] + torch.where(own[some], 0.0, collected[stack[some]])
        drawn = idle[some] + (shares[some] * torch.exp(law[kind[some]])).sum(1) * torch.exp(factor)
        held = (drawn**-20 + limit[some] ** -20) ** (-1 / 20)
        error = torch.log(torch.where(own[some], drawn, held)) - truth[some]
        loss = (weight[some] * torch.sqrt(error**2 + 4e-4)).mean()
        loss = loss + 3e-3 * (collected**2).mean() + 1e-2 * (generation**2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    found: dict[str, Any] = {}
    for number, name in enumerate(kinds):
        values = torch.exp(law[number]).tolist()
        found[name] = {part: round(value, 4) for part, value in zip(PARTS, values, strict=True)}
        found[name]["generations"] = _factors(families, generation, name, {"9"})
        found[name]["collected"] = _factors(stacks, collected, name)
    return found


def _factors(keys: list[tuple[str, str]], logs: Any, kind: str, but: set[str] | frozenset[str] = frozenset()) -> Any:
    pairs = zip(keys, logs.tolist(), strict=True)
    return {key: round(float(np.exp(log)), 4) for (name, key), log in pairs if name == kind and key not in but}


def weights(table: pd.DataFrame) -> np.ndarray:
    """Kinds and boards alike, long calls more, our loops as much as a board of the corpus."""
    energy = table["watts"] * table["latency_us"]
    weight = np.ones(len(table))
    for members in table.groupby(["kind", "gpu", "own"]).groups.values():
        mine = energy[members]
        weight[members] = (1.0 + np.minimum(mine / mine.mean(), 5.0)) / len(members) ** 0.5
        weight[members] *= 16.0 if table["own"][members].all() else 1.0
    return weight / weight.mean()


def watts(rows: Rows, law: Mapping[str, Any]) -> np.ndarray:
    """Watts of rows by a law in the form of `fit`."""
    table = rows.table
    found = np.empty(len(table))
    for (kind, gpu, stack, generation, own), members in table.groupby(
        ["kind", "gpu", "stack", "generation", "own"]
    ).groups.items():
        row, board = law.get(kind, law["attention_prefill"]), BOARDS.get(gpu, WATTS)
        factor = row["generations"].get(generation, 1.0) * (1.0 if own else row["collected"].get(stack, 1.0))
        drawn = board["idle"] + factor * rows.shares[members] @ np.array([row[part] for part in PARTS])
        found[members] = np.minimum(drawn, board["limit"]) * table["limit"][members]
    return found


def folds(table: pd.DataFrame) -> np.ndarray:
    """Rows whose group of shapes is held out."""
    return np.array([fold(group) == HELD_OUT for group in table["group"]])


def spreads(rows: Rows, law: Mapping[str, Any], default: float) -> dict[str, float]:
    """Half-widths of the logarithm that nine in ten rows of each kind keep."""
    error = np.abs(np.log(watts(rows, law) / rows.table["watts"]))
    found = dict.fromkeys(KINDS, default)
    for kind, members in rows.table.groupby("kind").groups.items():
        found[kind] = float(np.quantile(error[members], 0.9)) if len(members) >= FEWEST else default
    return found


def unseen_shapes(rows: Rows) -> tuple[Rows, np.ndarray]:
    """Collected rows whose group of shapes is held out, and their watts by a law that was fitted without them."""
    held = folds(rows.table) & ~rows.table["own"].to_numpy(bool)
    some = rows.take(held)
    return some, watts(some, fit(rows.take(~held)))


def unseen_gpu(rows: Rows, name: str) -> tuple[Rows, np.ndarray]:
    """Collected rows of a GPU, and their watts by a law that was fitted without it."""
    mask = gpu_mask(rows, name)
    some = rows.take(mask & ~rows.table["own"].to_numpy(bool))
    return some, watts(some, fit(rows.take(~mask)))


def main(argv: list[str] | None = None) -> None:
    """Fit, settle intervals on what each fit did not see, and write the law."""
    parser = argparse.ArgumentParser(prog="python -m train power", description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=LAW)
    options = parser.parse_args(argv)
    rows = read(options.data)
    unseen = folds(rows.table) & ~rows.table["own"].to_numpy(bool)
    near = spreads(rows.take(unseen), fit(rows.take(~unseen)), 0.15)
    masks = [gpu_mask(rows, name) for name in COLLECTED]
    apart = [spreads(rows.take(mask), fit(rows.take(~mask)), 0.25) for mask in masks]
    kinds = fit(rows)
    for kind, row in kinds.items():
        other = max(near[kind], *(found[kind] for found in apart))
        row["spread"] = [round(value, 3) for value in (near[kind], other, 1.5 * other)]
    law = {"source": SOURCE, "boards": BOARDS | {"other": WATTS}, "like": LIKE, "kinds": kinds}
    law["generations"] = sorted(rows.table["generation"].unique())
    law["steps"] = json.loads(LAW.read_text(encoding="utf-8"))["steps"]  # of `train.power_serving`
    options.out.write_text(json.dumps(law, indent=1) + "\n", encoding="utf-8")


def gpu_mask(rows: Rows, name: str) -> np.ndarray:
    """Rows of one GPU."""
    return (rows.table["gpu"] == name).to_numpy()
