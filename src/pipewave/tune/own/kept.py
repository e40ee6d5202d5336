"""What is kept of kernels of the user's own: measured launches in an append-only store, fitted tables in sealed files.

Both lie under the user's cache, named by GPU and by the kernel's source; every record names configurations, driver and
Triton, so that what was measured otherwise is not read. Several processes append to one store; a table is replaced in
one step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from pipewave.errors import BadFile
from pipewave.files import sealed
from pipewave.files.store import Store, read
from pipewave.tune.own.anchors import Floats
from pipewave.tune.own.described import Described, Kind, config_hash
from pipewave.tune.own.device import Built
from pipewave.tune.own.likeness import Likeness
from pipewave.tune.own.model import Beside, Model, Pooled
from pipewave.tune.own.peaks import Peaks
from pipewave.tune.smooth import Smoother
from pipewave.tune.table import TableMismatch, slug

SCHEMA = 1
NOT_BUILT = 2  # in place of an error
LIKENESS = "mean", "spread", "alike", "sizes", "marks", "config", "weights", "twos"  # its arrays
ENVIRONMENT = ("gpu", "driver", "triton")
Record = Mapping[str, Any]
Fitted = Mapping[Kind, tuple[Model, Sequence[Any]]]  # kind → its model, numbers of launches like those to choose for


def folder() -> Path:
    """Where stores and tables of the user's own kernels lie."""
    return Path(platformdirs.user_cache_dir("pipewave")) / "own"


def stem(of: Described, gpu: str, base: Path | None = None) -> Path:
    """Path of a kernel's files on a GPU, without suffix."""
    return (base or folder()) / slug(gpu) / f"{of.name}-{of.source_sha256[:16]}"


def append(path: Path, of: Described, env: Mapping[str, Any], kind: Kind, numbers: Mapping[str, Any], counts: Floats,
           us: Floats, built: Sequence[Sequence[int]], seconds: float) -> None:  # fmt: skip
    """Add a measured launch. OSError where the disk is full."""
    record = {"t": "launch", "schema": SCHEMA, "configs": config_hash(of.configs), "env": _environment(env),
              "kind": [list(pair) for pair in kind], "numbers": dict(numbers), "counts": counts.tolist(),
              "us": [None if np.isnan(value) else float(value) for value in us], "built": [list(one) for one in built],
              "seconds": seconds}  # fmt: skip
    with Store(path.with_suffix(".launches")) as store:
        store.append(record)


def _environment(env: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(env.get(name, "")) for name in ENVIRONMENT}


def launches(path: Path, of: Described, env: Mapping[str, Any] | None) -> list[Record]:
    """Launches measured with these configurations, driver and Triton; `env` None takes any GPU's."""
    wanted = config_hash(of.configs), None if env is None else _environment(env)
    return [record for record in read(path.with_suffix(".launches")).of("launch")
            if record["schema"] == SCHEMA and record["configs"] == wanted[0]
            and wanted[1] in (None, record["env"])]  # fmt: skip


def numbers_of(record: Record) -> tuple[Kind, Mapping[str, Any], Floats, Floats]:
    """Kind, numbers, counts [c, 6] and µs [c] of a record."""
    kind = tuple((name, text) for name, text in record["kind"])
    us = np.array([np.nan if value is None else value for value in record["us"]], float)
    return kind, record["numbers"], np.array(record["counts"], float), us


def built_of(record: Record) -> dict[int, Built]:
    """What the compiler said of the configurations that were compiled by then."""
    errors = "", "did not compile"
    return {i: Built(smem, registers, errors[error]) for i, (smem, registers, error) in enumerate(record["built"])
            if error < NOT_BUILT}  # fmt: skip


def write_table(path: Path, of: Described, env: Mapping[str, Any], models: Fitted, sizes: Mapping[Kind, Sequence[str]],
                canary: Sequence[Any] = ()) -> Path:  # fmt: skip
    """Write fitted kinds of a kernel as one sealed file, whole or not at all. `sizes`: what launches are placed by."""
    card: dict[str, Any] = {"schema": SCHEMA, "kernel": {"name": of.name, "source_sha256": of.source_sha256,
                            "configs_sha256": config_hash(of.configs), "key": list(of.key)},
                            "env": {**env}, "kinds": [], "canary": list(canary)}  # fmt: skip
    arrays: dict[str, Any] = {}
    for i, (kind, (model, seen)) in enumerate(models.items()):
        arrays |= _arrays(str(i), model)
        card["kinds"].append({"kind": [list(pair) for pair in kind], "launches": [dict(one) for one in seen],
                              "sizes": list(sizes[kind])} | _card(model))  # fmt: skip
    target = path.with_suffix(".safetensors")
    sealed.write(target, card, arrays)
    return target


def read_table(path: Path, of: Described) -> tuple[dict[str, Any], dict[Kind, tuple[Model, list[Any], list[str]]]]:
    """A table's description and its kinds.

    Raises:
        BadFile: damaged, or no such table. TableMismatch: of another kernel source or other configurations.
    """
    meta, arrays = sealed.read(path, "kernel table")
    if meta.get("schema") != SCHEMA or "kinds" not in meta:
        raise BadFile(f"{path} is no table of a kernel of one's own, or of another version", field="table")
    for what, wanted in (("source_sha256", of.source_sha256), ("configs_sha256", config_hash(of.configs))):
        if meta["kernel"][what] != wanted:
            raise TableMismatch(f"{path} was made for another {what.partition('_')[0]} of {of.name}; measure anew: "
                                f"`pipewave tune profile FILE.py:{of.name}`", field="table")  # fmt: skip
    return meta, {_kind(each): (_model(str(i), each, arrays), list(each["launches"]), list(each["sizes"]))
                  for i, each in enumerate(meta["kinds"])}  # fmt: skip


def _kind(of: Mapping[str, Any]) -> Kind:
    return tuple((name, text) for name, text in of["kind"])


def _card(model: Model) -> dict[str, Any]:
    """What of a model is no array."""
    found: dict[str, Any] = {"margin": model.margin, "measured": model.launches, "card": asdict(model.peaks),
                             "lengths": [each.length for each in model.smooth]}  # fmt: skip
    if (beside := model.beside) is not None:
        found |= {"beside_length": beside.smooth.length, "beside_share": beside.share}
    if model.likeness is not None:
        found |= {"likeness_level": model.likeness.level}
    return found if model.there is None else found | {"there": _card(model.there)}


def _arrays(name: str, model: Model) -> dict[str, Any]:
    found = {f"{name}_law": model.law, f"{name}_sigma": model.sigma, f"{name}_resident": model.resident}
    for j, each in enumerate(model.smooth):
        found |= _smooth_arrays(f"{name}_{j}", each)
    if (other := model.beside) is not None:
        found |= _smooth_arrays(f"{name}_beside", other.smooth)
        found |= {f"{name}_beside_law": other.pooled.law, f"{name}_beside_offset": other.pooled.offset}
    if (alike := model.likeness) is not None:
        found |= {f"{name}_likeness_{part}": getattr(alike, part) for part in LIKENESS}
    return found if model.there is None else found | _arrays(f"{name}_there", model.there)


def _model(name: str, of: Mapping[str, Any], a: Mapping[str, Any]) -> Model:
    smooth = tuple(_smoother(f"{name}_{j}", length, a) for j, length in enumerate(of["lengths"]))
    peaks, beside, alike = Peaks(**of["card"]), None, None
    if "beside_length" in of:
        beside = Beside(Pooled(peaks, a[f"{name}_beside_law"], a[f"{name}_beside_offset"]),
                        _smoother(f"{name}_beside", of["beside_length"], a), of["beside_share"])  # fmt: skip
    if "likeness_level" in of:
        known = {f"{name}_likeness_twos": np.zeros(0), **a}  # tables before 22 November 2026 have none
        alike = Likeness(**{part: known[f"{name}_likeness_{part}"] for part in LIKENESS}, level=of["likeness_level"])
    there = _model(f"{name}_there", of["there"], a) if "there" in of else None
    return Model(peaks, a[f"{name}_resident"], a[f"{name}_law"], smooth, a[f"{name}_sigma"], of["margin"],
                 of["measured"], beside, alike, there)  # fmt: skip


def _smooth_arrays(name: str, of: Smoother) -> dict[str, Any]:
    return {f"{name}_{part}": getattr(of, part) for part in ("mean", "spread", "at", "weights")}


def _smoother(name: str, length: float, a: Mapping[str, Any]) -> Smoother:
    return Smoother(a[f"{name}_mean"], a[f"{name}_spread"], length, a[f"{name}_at"], a[f"{name}_weights"])


def dumps(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, separators=(",", ":"), default=str)
