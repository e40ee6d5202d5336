"""The one store: measured launches in append-only files, fitted tables in sealed ones, of any kernel.

Both are named by GPU and kernel; every record names the kernel's source, its configurations, driver and Triton, so that
what was measured otherwise is not read. Several processes append to one file; a table is replaced in one step.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from pipewave.errors import BadFile
from pipewave.files import sealed
from pipewave.files.store import Store, read
from pipewave.tune.choose.chooser import Lists
from pipewave.tune.law.anchors import Floats
from pipewave.tune.law.gp_correction import GpCorrection
from pipewave.tune.law.margin import Base
from pipewave.tune.law.model import Model, Pooled, PooledPrediction
from pipewave.tune.law.peaks import Peaks
from pipewave.tune.law.smooth import Smoother
from pipewave.tune.machine import flat
from pipewave.tune.user_kernels.device import Built
from pipewave.tune.user_kernels.kernel import KernelDescription, Kind, config_hash

LAUNCHES, TABLE = 1, 7  # schemas; tables: 7 is one format for shipped and user kernels
NOT_BUILT = 2  # in place of an error
GP_ARRAYS = "mean", "spread", "alike", "sizes", "marks", "config", "weights", "twos"
PACKAGED = Path(str(files("pipewave").joinpath("data", "tables")))
ENVIRONMENT = ("gpu", "driver", "triton")  # of a measured launch
HARD, SOFT = ("gpu", "sm_count", "cc"), ("triton", "cuda", "driver")  # of a table: refused, warned about once
NARROW = {"weights": np.float16, "alike": np.float16, "at": np.float32, "law": np.float32, "sizes": np.float32,
          "marks": np.float32, "sigma": np.float32, "config": np.int16}  # fmt: skip
Record = Mapping[str, Any]
Arrays = dict[str, Any]
_warned: set[str] = set()


class TableMismatch(BadFile):
    """A sound table that belongs to another GPU, kernel source or configuration space."""

    code = "table_mismatch"


@dataclass(frozen=True, slots=True)
class KindTable:
    """One kind of launch in a table."""

    model: Model
    launches: Sequence[Mapping[str, Any]]  # numbers of launches like those to choose for
    sizes: Sequence[str]  # the numbers that launches are placed by
    lists: Lists | None = None  # short lists by cell, where they were worked out ahead


Kinds = Mapping[Kind, KindTable]


def folder() -> Path:
    """Where measured launches of the user's kernels lie."""
    return Path(platformdirs.user_cache_dir("pipewave")) / "own"


def slug(gpu: str) -> str:
    """A GPU's folder name: `NVIDIA H200` and `h200` are the same."""
    return gpu.lower().removeprefix("nvidia").strip(" _-").replace(" ", "_")


def stem(of: KernelDescription, gpu: str, base: Path | None = None) -> Path:
    """Path of a kernel's files on a GPU, without suffix."""
    return (base or folder()) / slug(gpu) / f"{of.name}-{of.source_sha256[:16]}"


def locate(kernel: str, gpu: str) -> Path:
    """The table of a shipped kernel on a GPU: the user's own, else the packaged one. BadFile where there is none."""
    for base in (Path(platformdirs.user_data_dir("pipewave")) / "tables", PACKAGED):
        path = base / slug(gpu) / f"{kernel}.safetensors"
        if path.exists():
            return path
    known = ", ".join(sorted(found.name for found in PACKAGED.glob("*"))) or "none"
    raise BadFile(f"no {kernel} table for GPU {gpu!r} (shipped: {known}); carry one over: "
                  "`load_table(..., transfer=True)`", field="gpu")  # fmt: skip


def append(path: Path, of: KernelDescription, env: Mapping[str, Any], kind: Kind, numbers: Mapping[str, Any],
           counts: Floats, us: Floats, built: Sequence[Sequence[int]], seconds: float) -> None:  # fmt: skip
    """Add a measured launch. OSError where the disk is full."""
    record = {"t": "launch", "schema": LAUNCHES, "configs": config_hash(of.configs), "env": _environment(env),
              "kind": [list(pair) for pair in kind], "numbers": dict(numbers), "counts": counts.tolist(),
              "us": [None if np.isnan(value) else float(value) for value in us], "built": [list(one) for one in built],
              "seconds": seconds}  # fmt: skip
    with Store(path.with_suffix(".launches")) as store:
        store.append(record)


def _environment(env: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(env.get(name, "")) for name in ENVIRONMENT}


def launches(path: Path, of: KernelDescription, env: Mapping[str, Any] | None) -> list[Record]:
    """Launches measured with these configurations, driver and Triton; `env` None takes any GPU's."""
    wanted = config_hash(of.configs), None if env is None else _environment(env)
    return [record for record in read(path.with_suffix(".launches")).of("launch")
            if record["schema"] == LAUNCHES and record["configs"] == wanted[0]
            and wanted[1] in (None, record["env"])]  # fmt: skip


def numbers_of(record: Record) -> tuple[Kind, Mapping[str, Any], Floats, Floats]:
    """Kind, numbers, counts [c, 6] and µs [c] of a record."""
    us = np.array([np.nan if value is None else value for value in record["us"]], float)
    return _kind(record), record["numbers"], np.array(record["counts"], float), us


def built_of(record: Record) -> dict[int, Built]:
    """What the compiler said of the configurations that were compiled by then."""
    errors = "", "did not compile"
    return {i: Built(smem, registers, errors[error]) for i, (smem, registers, error) in enumerate(record["built"])
            if error < NOT_BUILT}  # fmt: skip


def write_table(path: Path, of: KernelDescription, env: Mapping[str, Any], kinds: Kinds,
                canary: Sequence[Any] = ()) -> Path:  # fmt: skip
    """Write fitted kinds of a kernel as one sealed file, whole or not at all; returns its path."""
    card: dict[str, Any] = {"schema": TABLE, "kernel": {"name": of.name, "source_sha256": of.source_sha256,
                            "configs_sha256": config_hash(of.configs), "key": list(of.key),
                            "configs": [_plain(config) for config in of.configs]},
                            "env": flat(env), "kinds": [], "canary": list(canary)}  # fmt: skip
    arrays: Arrays = {}
    for i, (kind, one) in enumerate(kinds.items()):
        arrays |= _arrays(str(i), one.model)
        for level, lists in enumerate(one.lists or ()):
            arrays |= _list_arrays(f"{i}_cells{level}", lists)
        card["kinds"].append({"kind": [list(pair) for pair in kind], "launches": [dict(each) for each in one.launches],
                              "sizes": list(one.sizes), "levels": len(one.lists or ())} | _card(one.model))  # fmt: skip
    target = path.with_suffix(".safetensors")
    sealed.write(target, card, {name: _narrowed(name, array) for name, array in arrays.items()})
    return target


def _narrowed(name: str, array: Any) -> Any:
    narrow = (
        np.float32 if "_gp_" in name and array.dtype.kind == "f" else NARROW.get(name.rpartition("_")[2], array.dtype)
    )
    return array.astype(narrow)


def read_table(path: Path, of: KernelDescription) -> tuple[dict[str, Any], dict[Kind, KindTable]]:
    """A table's description and its kinds.

    Raises:
        BadFile: damaged, of another version, or no such table. TableMismatch: of another kernel, source or
            configurations.
    """
    meta, arrays = sealed.read(path, "tuning table")
    if meta.get("schema") != TABLE or "kinds" not in meta:
        raise BadFile(f"{path} is no tuning table, or of another version; measure anew",
                      field="table")  # fmt: skip
    if meta["kernel"]["name"] != of.name:
        raise TableMismatch(f"{path} holds a table of {meta['kernel']['name']}, not of {of.name}", field="kernel")
    for what, wanted in (("source_sha256", of.source_sha256), ("configs_sha256", config_hash(of.configs))):
        if meta["kernel"][what] != wanted:
            raise TableMismatch(f"{path} was made for another {what.partition('_')[0]} of {of.name}; measure anew",
                                field="table")  # fmt: skip
    return meta, {_kind(each): _kind_table(str(i), each, arrays) for i, each in enumerate(meta["kinds"])}


def card(path: Path) -> dict[str, Any]:
    """A table's description. BadFile where it is none."""
    meta, _ = sealed.read(path, "tuning table")
    if not isinstance(meta.get("kernel"), dict):
        raise BadFile(f"{path} is no tuning table", field="table")
    return meta


def kernel_of(path: Path) -> str:
    """The kernel that a table is of. BadFile where it is none."""
    return str(card(path)["kernel"].get("name", ""))


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as JSON has it."""
    return {name: value if isinstance(value, int | float | str | None) else str(value)
            for name, value in config.items()}  # fmt: skip


def _kind_table(name: str, of: Mapping[str, Any], arrays: Arrays) -> KindTable:
    wide = {key: value.astype(np.float64) if value.dtype.kind == "f" else value.astype(np.int64)
            for key, value in arrays.items() if key.startswith(f"{name}_")}  # fmt: skip
    lists = tuple(_read_lists(f"{name}_cells{level}", wide) for level in range(of["levels"])) or None
    return KindTable(_model(name, of, wide), list(of["launches"]), list(of["sizes"]), lists)


def _kind(of: Mapping[str, Any]) -> Kind:
    return tuple((name, text) for name, text in of["kind"])


def _list_arrays(name: str, lists: Mapping[int, bytes]) -> Arrays:
    pairs = [np.frombuffer(one).reshape(-1, 2) for one in lists.values()]
    every = np.concatenate([np.zeros((0, 2)), *pairs])
    return {f"{name}_key": np.array(list(lists), np.int64), f"{name}_config": every[:, 0],
            f"{name}_length": np.array([len(one) for one in pairs], np.uint8),
            f"{name}_factor": every[:, 1].astype(np.float16)}  # fmt: skip


def _read_lists(name: str, a: Arrays) -> dict[int, bytes]:
    pairs = np.stack([a[f"{name}_config"].astype(float), a[f"{name}_factor"]], axis=1)
    ends = [0, *np.cumsum(a[f"{name}_length"]).tolist()]
    return {key: pairs[start:end].tobytes()
            for key, start, end in zip(a[f"{name}_key"].tolist(), ends[:-1], ends[1:], strict=True)}  # fmt: skip


def _card(model: Model) -> dict[str, Any]:
    """What of a model is no array."""
    found: dict[str, Any] = {"margin": model.margin, "measured": model.launches, "card": asdict(model.peaks),
                             "lengths": [each.length for each in model.smooth]}  # fmt: skip
    if model.base is not None:
        found["based"] = True
    if (beside := model.beside) is not None:
        found |= {"beside_length": beside.smooth.length, "beside_share": beside.share}
    if model.gp_correction is not None:
        found |= {"gp_level": model.gp_correction.level}
    return found if model.there is None else found | {"there": _card(model.there)}


def _arrays(name: str, model: Model) -> Arrays:
    found = {f"{name}_law": model.law, f"{name}_sigma": model.sigma, f"{name}_resident": model.resident}
    for j, each in enumerate(model.smooth):
        found |= _smooth_arrays(f"{name}_{j}", each)
    if (other := model.beside) is not None:
        found |= _smooth_arrays(f"{name}_beside", other.smooth)
        found |= {f"{name}_beside_pooled": other.pooled.law, f"{name}_beside_offset": other.pooled.offset}
    if (base := model.base) is not None:
        found |= {f"{name}_base_at": base.at, f"{name}_base_best": base.best}
    if (alike := model.gp_correction) is not None:
        found |= {f"{name}_gp_{part}": getattr(alike, part) for part in GP_ARRAYS}
    return found if model.there is None else found | _arrays(f"{name}_there", model.there)


def _model(name: str, of: Mapping[str, Any], a: Mapping[str, Any]) -> Model:
    smooth = tuple(_smoother(f"{name}_{j}", length, a) for j, length in enumerate(of["lengths"]))
    peaks, beside, alike = Peaks(**of["card"]), None, None
    if "beside_length" in of:
        pooled = Pooled(peaks, a[f"{name}_beside_pooled"], a[f"{name}_beside_offset"])
        smoothed = _smoother(f"{name}_beside", of["beside_length"], a)
        beside = PooledPrediction(pooled, smoothed, of["beside_share"])
    if "gp_level" in of:
        alike = GpCorrection(**{part: a[f"{name}_gp_{part}"] for part in GP_ARRAYS}, level=of["gp_level"])
    there = _model(f"{name}_there", of["there"], a) if "there" in of else None
    base = Base(a[f"{name}_base_at"], a[f"{name}_base_best"]) if of.get("based") else None
    return Model(peaks, a[f"{name}_resident"], a[f"{name}_law"], smooth, a[f"{name}_sigma"], of["margin"],
                 of["measured"], beside, alike, there, base)  # fmt: skip


def _smooth_arrays(name: str, of: Smoother) -> Arrays:
    return {f"{name}_{part}": getattr(of, part) for part in ("mean", "spread", "at", "weights")}


def _smoother(name: str, length: float, a: Mapping[str, Any]) -> Smoother:
    return Smoother(a[f"{name}_mean"], a[f"{name}_spread"], length, a[f"{name}_at"], a[f"{name}_weights"])


def check_environment(meta: Mapping[str, Any], env: Mapping[str, Any]) -> list[str]:
    """Compare a table with the machine it is about to serve; returns the soft differences after warning once of them.

    What `env` does not name is not compared.

    Raises:
        TableMismatch: another GPU.
    """
    made, env, kernel = meta["env"], flat(env), meta["kernel"]["name"]
    for name in HARD:
        if name in env and env[name] != made.get(name, env[name]):
            raise TableMismatch(f"the {kernel} table is for {name} = {made[name]}, this machine has {env[name]}; "
                                "carry one over: `load_table(..., transfer=True)`", field=name)  # fmt: skip
    drift = [f"{name} {made[name]} → {env[name]}" for name in SOFT
             if env.get(name) is not None and env[name] != made.get(name, env[name])]  # fmt: skip
    if drift and kernel not in _warned:
        _warned.add(kernel)
        warnings.warn(f"{kernel} table: {', '.join(drift)}; it was measured before",
                      stacklevel=2)  # fmt: skip
    return drift
