"""Rows and features of the net `fused_moe`.

Held-out tables count the newest version of each framework on each GPU. Training takes rows of every version besides
(`corpus.versions`); a column `counted` tells them apart.

TensorRT-LLM tunes its kernels before it is measured. Where that failed, a whole series of rows (one sharding and
routing of a layer, all numbers of tokens) runs kernels 1.3 to six times slower than its neighbours'. Nothing in a row
foretells it, and an engine that serves has tuned: such series weigh nothing in training, a column `fallback` names
them, and tables of every version leave them out (`untuned`, counted in `corpus/dropped.json`). They are told by the
layer's other shardings beside the estimate, and by series that cannot be faster: those of a routing that loads ranks
less evenly, and those of a card that is no faster.

`tables/fused_moe.tuned.json` is the table of graph replays without them (`train.evaluate.report` of rows with
`counted=yes`, `protocol=graph`, `fallback=no`).
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import corpus
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.base import Analysis, Columns, Context
from pipewave.kernels.moe.family import analyse
from pipewave.kernels.moe.routing import SHAPE, SHARED, WHOLE, model
from pipewave.kernels.moe.software import engine
from pipewave.measure.row_files import rows as measured
from pipewave.software.stacks import nearest
from train.net import Net, balanced, pack
from train.rows import Column, Rows

FAMILY = family_of("fused_moe")

SIZES = ("tokens", "experts", "topk", "hidden", "inter", "gated", "tp", "ep")
# The contract has one name for a weight type; what meets it shows in the implementation.
ACTIVATIONS = {"mxfp4_mxfp8": ("mxfp4", ":mxfp8"), "int4_fp8": ("int4", ":w4afp8")}
OLDER_ROWS = 1_500  # a GPU, stack and type
MANY_LAYERS = 3  # of a version tell what it runs usually
# Series that may have fallen back to untuned kernels, and how much slower than the layer's other series they then are.
TUNED, SLOWER = ("moe_torch_flow", "moe_torch_flow_cutlass", "moe_torch_flow_nongated"), 1.8
LAYER = ["gpu", "stack", "impl", "dtype", "group"]
ROUTINGS = ("balanced", "power_law_1.01", "power_law_1.2")  # each loads the fullest rank more than the one before
NO_FASTER = {"B200": "GB200", "GB200": "B200", "H200": "H100"}
BEATEN = 1.2  # times a series that cannot be faster: of kernels that nothing tunes 1 in 200 takes as long
# How much more a row counts where rows are few: engine steps ask for cold ones.
IMPORTANCE = {"cold": 3.0, "profiler_warm": 1.5, "graph": 1.0}

Floats = NDArray[np.float64]


def rows(_: str = "", data_dir: str | Path | None = None) -> pd.DataFrame:
    """Counted rows, some older ones, and our own with the Triton configuration that ran, under the contract's names."""
    newest = corpus.training_rows("fused_moe", data_dir)
    parts = [newest[~corpus.is_own(newest)].assign(counted=True), _older(newest, data_dir).assign(counted=False)]
    parts.append(_own())
    frame = pd.concat([part.astype(dict.fromkeys(part.select_dtypes("category"), "object")) for part in parts])
    frame["config"] = frame["config"].astype(object).where(frame["config"].notna(), None)
    dtype = frame["dtype"].astype(str)
    suffix = dtype.map({old: tail for old, (_, tail) in ACTIVATIONS.items()}).fillna("")
    plain = dtype.replace({old: new for old, (new, _) in ACTIVATIONS.items()})
    return frame.assign(dtype=plain, impl=frame["impl"].astype(str) + suffix).reset_index(drop=True)


def _older(newest: pd.DataFrame, data_dir: str | Path | None) -> pd.DataFrame:
    """Rows of every other version, as many of each, none of builds between releases."""
    frame = corpus.load("fused_moe", data_dir, sources=("aiconfigurator",))
    names = ["gpu", "stack", "dtype"]
    counted = pd.MultiIndex.from_frame(newest[names].astype(str).drop_duplicates())
    known = pd.MultiIndex.from_frame(frame[names].astype(str)).isin(counted)
    return corpus.versions(frame[~known & ~corpus.is_build(frame)], max_rows=OLDER_ROWS)


def _own() -> pd.DataFrame:
    """Our rows, once with the configuration that ran and once without, as a caller may or may not know it."""
    found = [row for source, gpu, file in corpus.own_files("fused_moe") for row in _flat(source, gpu, file)]
    frame = pd.DataFrame(found)
    return pd.concat([frame, frame.assign(config=None)], ignore_index=True) if found else frame


def _flat(source: str, gpu: str, file: Path) -> Iterator[dict[str, Any]]:
    for row in measured(file):
        if row.get("flush", "write") != "write":
            continue
        case = {"tp": 1, "ep": 1, "gated": True, "part": "all", "dtype": "bf16", "routing": "random"} | row["case"]
        shape = {name: case[name] for name in (*SIZES, "routing", "part", "dtype")}
        group = ",".join(str(case[name]) for name in ("hidden", "inter", "topk", "experts"))
        software = {"stack": row["stack"], "framework": row["stack"].partition("-")[0], "impl": row["impl"]}
        timed = {name: row[name] for name in ("latency_us", "protocol")}
        timed["noise"] = (row["max_us"] - row["min_us"]) / row["latency_us"] / 2
        config = tuple(sorted((row.get("config") or {}).items())) or None
        yield shape | software | timed | {
            "group": group, "gpu": gpu, "source": source, "counted": True, "config": config
        }  # fmt: skip


def with_named_configs(_: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with configurations as text, by which rows can be grouped."""
    return frame.assign(config=frame["config"].map(repr))


def analysed(columns: Columns, ctx: Context) -> Analysis:
    """What the family makes of rows whose configuration is text."""
    options = dict(ctx.options)
    named = options | {"config": literal_eval(str(options["config"]))}
    return analyse(columns, replace(ctx, options=tuple(named.items())))


def fallbacks(frame: pd.DataFrame, base_us: Floats) -> NDArray[np.bool_]:
    """Rows of series that ran untuned kernels, aligned with the frame."""
    tuned = frame["impl"].isin(TUNED).to_numpy()
    slowness = np.log(frame["latency_us"].to_numpy(np.float64) / base_us)
    series = frame.loc[tuned, [*LAYER, "tp", "ep", "routing"]].astype(str).assign(slowness=slowness[tuned])
    middle = series.groupby([*LAYER, "tp", "ep", "routing"])["slowness"].transform("median")
    usual = series.assign(middle=middle).groupby(LAYER)["middle"].transform("median")
    found = np.zeros(len(frame), bool)
    found[tuned] = (middle - usual > np.log(SLOWER)).to_numpy() | _beaten(frame[tuned])
    return found


def _beaten(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether each row's series is slower than one that cannot be faster, in the median over numbers of tokens."""
    place, series = [*LAYER[1:], "tp", "ep"], ["gpu", "routing"]
    named = rows[[*place, *series]].astype(str).assign(tokens=rows["tokens"], log=np.log(rows["latency_us"]))
    times = named.pivot_table(index=[*place, "tokens"], columns=series, values="log", aggfunc="min")
    slow: dict[tuple[Any, ...], bool] = {}
    for gpu, routing in (one for one in times if one[1] in ROUTINGS):
        uneven = ROUTINGS[ROUTINGS.index(routing) :]
        others = [*((gpu, other) for other in uneven[1:]), *((NO_FASTER.get(gpu, ""), other) for other in uneven)]
        beside = times[gpu, routing] - times[[one for one in others if one in times]].min(axis=1)
        slow |= {(*at, gpu, routing): log > np.log(BEATEN) for at, log in beside.groupby(level=place).median().items()}
    keys = named[[*place, *series]].itertuples(index=False, name=None)
    return np.array([slow.get(key, False) for key in keys], np.bool_)


def untuned(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """The same of rows as the corpus has them, whole series of them."""
    mine = frame["impl"].isin(TUNED).to_numpy() & ~frame["flagged"].to_numpy()
    named = frame[mine].astype(dict.fromkeys(frame.select_dtypes("category"), "object")).assign(config=None)
    named = named.assign(dtype=named["dtype"].replace({old: new for old, (new, _) in ACTIVATIONS.items()}))
    found = np.zeros(len(frame), bool)
    if len(named):
        found[mine] = fallbacks(named, NETS["fused_moe"].features("fused_moe", named)[1])
    return found


def packed(frame: pd.DataFrame, named: Mapping[str, Floats], base_us: Floats) -> Rows:
    """Rows with a column `fallback` (yes or no): such weigh nothing."""
    slow = fallbacks(frame, base_us)
    weight = balanced(frame) * frame["protocol"].map(IMPORTANCE).to_numpy(np.float64)
    found = pack(frame, named, base_us, np.where(slow, 0.0, weight))
    return replace(found, columns={**found.columns, "fallback": Column.of(np.where(slow, "yes", "no"))})


def card(_: str, known: dict[str, Any]) -> dict[str, Any]:
    """Kernels that a stack keeps for some models, beside that of its other layers of the type. A version of which few
    layers were measured keeps those of the nearest one, and its usual kernel where that of the few is of another kind.
    """
    frame, usual = rows(), dict[str, str](known["default_impl"])
    layers = frame[[*SHAPE, "gated"]].drop_duplicates()
    layers = layers.assign(model=[model(layer) for layer in layers.to_dict("records")])
    frame = frame[~corpus.is_own(frame)].merge(layers, on=[*SHAPE, "gated"])
    capability = frame["gpu"].map(lambda name: str(find(name).compute_capability))
    frame["where"] = frame["stack"] + "|" + capability + "|" + frame["dtype"]
    frame["held"] = np.where(frame["ep"] > 1, SHARED, WHOLE)
    near = dict(_near(frame.groupby("where").agg(layers=("group", "nunique"), named=("model", "all"))))
    usual |= {few: usual[many] for few, many in near.items() if engine(usual[few]) != engine(usual[many])}
    models = dict(_by_model(frame, usual))
    kept = {few + key.removeprefix(many): impl for few, many in near.items() for key, impl in models.items()
            if key.startswith(f"{many}|")}  # fmt: skip
    return {"default_impl": usual | kept | models}


def _near(measured: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """By version, capability and type of which few layers were measured, all named: the nearest version of many."""
    many = [str(one).partition("|") for one in measured.index[measured["layers"] >= MANY_LAYERS]]
    for few in measured.index[measured["named"] & (measured["layers"] < MANY_LAYERS)]:
        stack, _, kind = few.partition("|")
        if found := nearest(stack, [name for name, _, other in many if other == kind]):
            yield few, f"{found}|{kind}"


def _by_model(frame: pd.DataFrame, usual: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The most frequent implementation by stack, capability, type and what `chosen_by` says, where not the usual."""
    for (where, name), part in frame.groupby(["where", "model"]):
        runs = part.groupby("held")["impl"].agg(_most)
        for held in (WHOLE, SHARED):
            impl = str(runs.get(held, runs.iloc[0]))
            if impl != usual.get(where, impl):
                yield f"{where}|{name},{held}", impl


def _most(impls: pd.Series) -> str:
    """The most frequent, one that keeps to the activations of the type first."""
    plain = impls[~impls.str.contains(":")]
    return str((plain if len(plain) else impls).mode().iloc[0])


NETS = {
    "fused_moe": Net(rows, FAMILY, ("moe",), card=card, packed=packed, prepared=with_named_configs, analyse=analysed)
}
