"""The one store: measured launches in append-only files, fitted tables in sealed ones, of any kernel.

Both are named by GPU and kernel; every record names the kernel's source, its configurations, driver and Triton, so that
what was measured otherwise is not read. Several processes append to one file; a table is replaced in one step.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from pipewave.errors import BadFile
from pipewave.files import sealed
from pipewave.files.store import Store, read
from pipewave.tune.chooser import Lists
from pipewave.tune.compiled_chooser import short
from pipewave.tune.law.anchors import Floats, Peaks
from pipewave.tune.law.gp_correction import GpCorrection
from pipewave.tune.law.margin import Base
from pipewave.tune.law.model import Model, Pooled, PooledPrediction
from pipewave.tune.law.smooth import Smoother
from pipewave.tune.user_kernels.device import Built
from pipewave.tune.user_kernels.kernel import KernelDescription, Kind, config_hash
from pipewave.tune.user_kernels.measuring import Timed

LAUNCHES, TABLE = 1, 8  # schemas
NOT_BUILT = 2  # in place of an error
PARTS = {"peaks": Peaks, "smooth": Smoother, "beside": PooledPrediction, "pooled": Pooled, "base": Base,
         "gp_correction": GpCorrection, "there": Model}  # of a model, by the fields that hold them  # fmt: skip
PACKAGED = Path(str(files("pipewave").joinpath("data", "tables")))
ENVIRONMENT = ("gpu", "driver", "triton")  # of a measured launch
HARD, SOFT = ("gpu", "sm_count", "cc"), ("triton", "cuda", "driver")  # of a table: refused, warned about once
NARROW = {"weights": np.float16, "alike": np.float16, "at": np.float32, "law": np.float32, "sizes": np.float32,
          "marks": np.float32, "sigma": np.float32, "config": np.int16}  # fmt: skip
Arrays = dict[str, Any]
_warned: set[str] = set()


class TableMismatch(BadFile):
    """A sound table that belongs to another GPU, kernel source or configuration space."""


@dataclass(frozen=True, slots=True)
class KindTable:
    """One kind of launch in a table."""

    model: Model
    launches: Sequence[Mapping[str, Any]]  # numbers of launches like those to choose for
    sizes: Sequence[str]  # the numbers that launches are placed by
    lists: Lists | None = None  # short lists by cell, where they were worked out ahead


@dataclass(frozen=True, slots=True)
class Measured:
    """A launch that was measured: its numbers, counts [c, 6] and times."""

    kind: Kind
    numbers: Mapping[str, Any]
    counts: Floats
    timed: Timed


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
                  "`tune explain --transfer`, `load_table(..., transfer=True)`", field="gpu")  # fmt: skip


def append(path: Path, of: KernelDescription, env: Mapping[str, Any], one: Measured) -> None:
    """Add a measured launch. OSError where the disk is full."""
    built = [one.timed.built.get(i) for i in range(len(of.configs))]
    record = {"t": "launch", "schema": LAUNCHES, "configs": config_hash(of.configs), "env": _environment(env),
              "kind": [list(pair) for pair in one.kind], "numbers": dict(one.numbers), "counts": one.counts.tolist(),
              "us": [None if np.isnan(value) else float(value) for value in one.timed.us],
              "built": [[each.smem_bytes, each.registers, int(bool(each.error))] if each else [0, 0, NOT_BUILT]
                        for each in built], "seconds": one.timed.seconds}  # fmt: skip
    with Store(path.with_suffix(".launches")) as store:
        store.append(record)


def _environment(env: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(env.get(name, "")) for name in ENVIRONMENT}


def launches(path: Path, of: KernelDescription, env: Mapping[str, Any]) -> list[Measured]:
    """Launches measured with these configurations on this GPU, with this driver and Triton."""
    found, errors = list[Measured](), ("", "did not compile")
    wanted = LAUNCHES, config_hash(of.configs), _environment(env)
    for one in read(path.with_suffix(".launches")).of("launch"):
        if (one["schema"], one["configs"], one["env"]) == wanted:
            us = np.array([np.nan if value is None else value for value in one["us"]], float)
            built = {i: Built(smem, registers, errors[error]) for i, (smem, registers, error) in enumerate(one["built"])
                     if error < NOT_BUILT}  # fmt: skip
            counts, timed = np.array(one["counts"], float), Timed(us, built, float(one["seconds"]))
            found.append(Measured(_kind(one), one["numbers"], counts, timed))
    return found


def write_table(path: Path, of: KernelDescription, env: Mapping[str, Any], kinds: Kinds) -> Path:
    """Write fitted kinds of a kernel as one sealed file, whole or not at all; returns its path."""
    card: dict[str, Any] = {"schema": TABLE, "kernel": {"name": of.name, "source_sha256": of.source_sha256,
                            "configs_sha256": config_hash(of.configs), "key": list(of.key),
                            "configs": [_plain(config) for config in of.configs]},
                            "env": dict(env), "kinds": []}  # fmt: skip
    arrays: Arrays = {}
    for i, (kind, one) in enumerate(kinds.items()):
        for level, lists in enumerate(one.lists or ()):
            arrays |= _list_arrays(f"{i}_cells{level}", lists)
        card["kinds"].append({"kind": [list(pair) for pair in kind], "launches": [dict(each) for each in one.launches],
                              "sizes": list(one.sizes), "levels": len(one.lists or ()),
                              "model": _packed(str(i), one.model, arrays)})  # fmt: skip
    target = path.with_suffix(".safetensors")
    sealed.write(target, card, arrays)
    return target


def read_table(path: Path, of: KernelDescription) -> tuple[dict[str, Any], dict[Kind, KindTable]]:
    """A table's description and its kinds. BadFile: damaged, of another version, or no such table. TableMismatch: of
    another kernel, source or configurations.
    """
    meta, arrays = sealed.read(path, "tuning table")
    if meta.get("schema") != TABLE or "kinds" not in meta:
        raise BadFile(f"{path} is no tuning table, or of another version; measure anew", field="table")
    if meta["kernel"]["name"] != of.name:
        raise TableMismatch(f"{path} holds a table of {meta['kernel']['name']}, not of {of.name}", field="kernel")
    for what, wanted in (("source_sha256", of.source_sha256), ("configs_sha256", config_hash(of.configs))):
        if meta["kernel"][what] != wanted:
            raise TableMismatch(f"{path} was made for another {what.partition('_')[0]} of {of.name}; measure anew",
                                field="table")  # fmt: skip
    return meta, {_kind(each): KindTable(
        _unpacked(each["model"], arrays, Model), each["launches"], each["sizes"],
        tuple(_read_lists(f"{i}_cells{level}", arrays) for level in range(each["levels"])) or None,
    ) for i, each in enumerate(meta["kinds"])}  # fmt: skip


def card(path: Path) -> dict[str, Any]:
    """A table's description. BadFile where it is none."""
    meta, _ = sealed.read(path, "tuning table")
    if not isinstance(meta.get("kernel"), dict):
        raise BadFile(f"{path} is no tuning table", field="table")
    return meta


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as JSON has it."""
    return {name: value if isinstance(value, int | float | str | None) else str(value)
            for name, value in config.items()}  # fmt: skip


def _kind(of: Mapping[str, Any]) -> Kind:
    return tuple((name, text) for name, text in of["kind"])


def _list_arrays(name: str, lists: Mapping[int, bytes]) -> Arrays:
    """Short lists with one factor for each configuration, as those of shipped tables are."""
    pairs = [np.frombuffer(one)[2:].reshape(2, -1).T for one in lists.values()]
    every = np.concatenate([np.zeros((0, 2)), *pairs])
    return {f"{name}_key": np.array(list(lists), np.int64), f"{name}_config": every[:, 0].astype(np.int16),
            f"{name}_length": np.array([len(one) for one in pairs], np.uint8),
            f"{name}_factor": every[:, 1].astype(np.float16)}  # fmt: skip


def _read_lists(name: str, a: Arrays) -> dict[int, bytes]:
    configs, factors = a[f"{name}_config"].astype(float), a[f"{name}_factor"].astype(float)
    ends = [0, *np.cumsum(a[f"{name}_length"]).tolist()]
    return {key: short(configs[start:end], factors[None, start:end])
            for key, start, end in zip(a[f"{name}_key"].tolist(), ends[:-1], ends[1:], strict=True)}  # fmt: skip


def _packed(name: str, value: Any, arrays: Arrays) -> Any:
    """A part of a model as JSON has it; its arrays stand in `arrays` under the names of their fields."""
    if isinstance(value, np.ndarray):
        wide = "_gp_correction_" in name and value.dtype.kind == "f"
        arrays[name] = value.astype(np.float32 if wide else NARROW.get(name.rpartition("_")[2], value.dtype))
        return {"array": name}
    if is_dataclass(value):
        return {one.name: _packed(f"{name}_{one.name}", getattr(value, one.name), arrays) for one in fields(value)}
    if isinstance(value, tuple):
        return [_packed(f"{name}_{i}", one, arrays) for i, one in enumerate(value)]
    return value


def _unpacked(value: Any, arrays: Arrays, kind: Any = None) -> Any:
    """The part of a model again; `kind`: its class, where it is no number or array."""
    if isinstance(value, list):
        return tuple(_unpacked(one, arrays, kind) for one in value)
    if not isinstance(value, dict):
        return value
    if "array" in value:
        found = arrays[value["array"]]
        return found.astype(np.float64 if found.dtype.kind == "f" else np.int64)
    return kind(**{name: _unpacked(one, arrays, PARTS.get(name)) for name, one in value.items()})


def check_environment(meta: Mapping[str, Any], env: Mapping[str, Any]) -> list[str]:
    """Soft differences of a table and what `env` names of the machine, warned of once. TableMismatch: another GPU."""
    made, kernel = meta["env"], meta["kernel"]["name"]
    for name in HARD:
        if name in env and env[name] != made.get(name, env[name]):
            raise TableMismatch(f"the {kernel} table is for {name} = {made[name]}, this machine has {env[name]}; "
                                "carry one over: `load_table(..., transfer=True)`", field=name)  # fmt: skip
    drift = [f"{name} {made[name]} → {env[name]}" for name in SOFT
             if env.get(name) is not None and env[name] != made.get(name, env[name])]  # fmt: skip
    if drift and kernel not in _warned:
        _warned.add(kernel)
        warnings.warn(f"{kernel} table: {', '.join(drift)}; it was measured before", stacklevel=2)
    return drift
