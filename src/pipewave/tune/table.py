"""A fitted table as one file: safetensors arrays, with what it was measured on and a checksum in the header.

Loading refuses what cannot be right (another kernel source, another configuration space, another GPU) and warns once
about what may have drifted (driver, compiler): `tune check` then says by measurement.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from pipewave.errors import BadFile
from pipewave.files import sealed
from pipewave.tune.cells import Cells
from pipewave.tune.fitted import Fitted
from pipewave.tune.loads import Loads
from pipewave.tune.machine import flat
from pipewave.tune.shapes import family
from pipewave.tune.smooth import Smoother
from pipewave.tune.space import space
from pipewave.tune.wave import TERMS

# 2: laws have terms of the first wave; 3: cells end at powers of two; 4: loads, margins, cells for known loads;
# 5: the checksum covers types and shapes
SCHEMA = 6
HARD = ("gpu", "sm_count", "cc")
SOFT = ("triton", "cuda", "driver")
_SOURCES = {"gemm": "gemm.py", "moe": "grouped.py", "prefill": "prefill.py", "decode": "decode.py",
            "moe_up": "moe_experts.py", "moe_down": "moe_experts.py"}  # fmt: skip
_IDLE = re.compile(r"\s*(#|import |from )")  # lines that change nothing a kernel does
_warned: set[str] = set()


class TableMismatch(BadFile):
    """A sound table that belongs to another GPU, kernel source or configuration space."""

    code = "table_mismatch"


@dataclass(frozen=True, slots=True)
class Table:
    """A fitted kernel: laws, corrections, short lists (`known_load`: by load), `meta` (env, hashes, timing, fit)."""

    kernel: str
    fitted: Fitted
    cells: Cells
    known_load: Cells
    meta: dict[str, Any]

    @property
    def sha256(self) -> str:
        """Checksum of the contents; equal on every rank that loaded the same table."""
        return str(self.meta["sha256"])


def locate(kernel: str, gpu: str) -> Path:
    """Return the file of a kernel's table on a GPU: the user's own, else the shipped one.

    Raises:
        UnknownKernel: no such kernel. BadFile: neither exists.
    """
    of, folder = space(kernel).kernel, slug(gpu)
    shipped = Path(str(files("pipewave").joinpath("data", "tables")))
    for base in (user_tables(), shipped):
        path = base / folder / f"{of}.safetensors"
        if path.exists():
            return path
    known = ", ".join(sorted(found.name for found in shipped.glob("*"))) or "none"
    raise BadFile(f"no {of} table for GPU {gpu!r} (shipped: {known}); make one there: `pipewave tune profile {of}`, "
                  "or carry one over: `load_table(..., transfer=True)`", field="gpu")  # fmt: skip


def has_table(kernel: str, gpu: str) -> bool:
    """Whether a GPU has a table of a kernel, the user's own or a shipped one. UnknownKernel for no kernel."""
    try:
        locate(kernel, gpu)
    except BadFile:
        return False
    return True


def user_tables() -> Path:
    """Return the folder of the user's own tables."""
    return Path(platformdirs.user_data_dir("pipewave")) / "tables"


def slug(gpu: str) -> str:
    """Return a GPU's folder name: `NVIDIA H200` and `h200` are the same."""
    return gpu.lower().removeprefix("nvidia").strip(" _-").replace(" ", "_")


def source_hash(kernel: str) -> str:
    """Hash the kernel's code as shipped, imports and comments apart: a table of another version is refused."""
    text = files("pipewave.triton_kernels").joinpath(_SOURCES.get(kernel, _SOURCES[family(kernel)])).read_text()
    code = [line.rstrip() for line in text.splitlines() if line.strip() and not _IDLE.match(line)]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()


def space_hash(kernel: str) -> str:
    """Hash the configuration space in order: tables refer to its members by number."""
    of = space(kernel)
    return hashlib.sha256(json.dumps([of.names, of.configs]).encode()).hexdigest()


def make(
    fitted: Fitted, cells: tuple[Cells, Cells], recorded: Mapping[str, Any], canary: Sequence[Mapping[str, Any]] = ()
) -> Table:
    """Assemble a table from a fit, its short lists, the recording's meta, and the anchors `tune check` times again."""
    env = flat(recorded["env"])
    timing = {
        name: recorded[name] for name in ("method", "flush_mb", "empty_us", "timed_s", "seed") if name in recorded
    }
    meta = {"schema": SCHEMA, "env": env, "timing": timing, "fit": fitted.notes, "margins": list(fitted.margins),
            "canary": list(canary),
            "kernel": {"name": fitted.kernel, "source_sha256": source_hash(fitted.kernel),
                       "config_space_sha256": space_hash(fitted.kernel)}}  # fmt: skip
    return Table(fitted.kernel, fitted, *cells, meta | {"sha256": sealed.seal("", _arrays(fitted, *cells))})


def _arrays(fitted: Fitted, cells: Cells, known_load: Cells) -> dict[str, NDArray[Any]]:
    smooth, loads = fitted.smooth, fitted.loads
    assert smooth is not None
    arrays: dict[str, NDArray[Any]] = {
        "config": np.stack(list(fitted.config.values()), axis=1).astype(np.int32),
        "resident": fitted.resident.astype(np.int32),
        "law": fitted.law.astype(np.float32),
        "sigma": fitted.sigma.astype(np.float32),
        "anchor_mean": smooth.mean,
        "anchor_spread": smooth.spread,
        "anchor_at": smooth.at.astype(np.float32),
        "anchor_weights": smooth.weights.astype(np.float16),
        "cell_key": cells.key,
        **_cells("cell", cells),
    }
    if loads is None:
        return arrays
    return arrays | {
        "load_sizes": loads.sizes,
        "load_ratio": loads.ratio.astype(np.float32),
        **_cells("known_load", known_load),
    }


def _cells(name: str, of: Cells) -> dict[str, NDArray[Any]]:
    return {f"{name}_start": of.start.astype(np.int32), f"{name}_config": of.config, f"{name}_factor": of.factor}


def write(table: Table, path: Path) -> None:
    """Write the file whole or not at all. BadFile if it cannot."""
    sealed.write(path, table.meta, _arrays(table.fitted, table.cells, table.known_load))


def read(path: Path) -> Table:
    """Read and verify a table.

    Raises:
        BadFile: missing, truncated, corrupted, or not a table.
        TableMismatch: made for another kernel source or configuration space.
    """
    meta, arrays = sealed.read(path, "tuning table")
    if meta.get("schema") != SCHEMA:
        raise BadFile(f"{path} is of another version: schema {meta.get('schema')}, this one reads {SCHEMA}; "
                      "make it anew with `pipewave tune table`", field="path")  # fmt: skip
    _check_source(path, meta)
    return _assemble(meta, arrays)


def _check_source(path: Path, meta: Mapping[str, Any]) -> None:
    of = meta["kernel"]
    for what, found in (("source", source_hash(of["name"])), ("config_space", space_hash(of["name"]))):
        if of[f"{what}_sha256"] != found:
            raise TableMismatch(f"{path} was measured with another {what.replace('_', ' ')} of {of['name']}; "
                                f"profile it again: `pipewave tune profile {of['name']}`", field="path")  # fmt: skip


def _assemble(meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Table:
    kernel, a = meta["kernel"]["name"], arrays
    names = space(kernel).names
    smooth = Smoother(a["anchor_mean"], a["anchor_spread"], meta["fit"]["length"], a["anchor_at"].astype(float),
                      a["anchor_weights"].astype(float))  # fmt: skip
    config = {name: a["config"][:, i].astype(np.int64) for i, name in enumerate(names)}
    has_load = "load_ratio" in a
    loads = Loads(a["load_sizes"], a["load_ratio"].astype(float)) if has_load else None
    margins = meta["margins"][0], meta["margins"][1]
    fitted = Fitted(kernel, int(meta["env"]["sm_count"]), config, a["resident"].astype(np.int64),
                    _law(a["law"]), smooth, a["sigma"].astype(float), loads, margins, meta["fit"])  # fmt: skip
    cells = _read_cells("cell", a["cell_key"], a)
    known_load = _read_cells("known_load", cells.key, a) if has_load else cells
    return Table(kernel, fitted, cells, known_load, meta)


def _read_cells(name: str, key: NDArray[Any], a: Mapping[str, NDArray[Any]]) -> Cells:
    return Cells(key, a[f"{name}_start"], a[f"{name}_config"], a[f"{name}_factor"])


def _law(read: NDArray[Any]) -> NDArray[np.float64]:
    """Return laws [c, terms] with zeros for terms that came after the table was made."""
    law = np.zeros((len(read), len(TERMS)))
    law[:, : read.shape[1]] = read
    return law


def check_kernel(table: Table, kernel: str) -> None:
    """Refuse a table of another kernel; an empty name takes any.

    Raises:
        UnknownKernel: no such kernel. TableMismatch: the table is another's.
    """
    if kernel and table.kernel != space(kernel).kernel:
        raise TableMismatch(f"the file holds a table of {table.kernel}, not of {kernel}", field="kernel")


def check_environment(table: Table, env: Mapping[str, Any]) -> list[str]:
    """Compare a table with the machine it is about to serve; returns the soft differences after warning once of them.

    What `env` does not name is not compared.

    Raises:
        TableMismatch: another GPU.
    """
    made, env = table.meta["env"], flat(env)
    for name in HARD:
        if name in env and env[name] != made[name]:
            raise TableMismatch(f"the {table.kernel} table is for {name} = {made[name]}, this machine has {env[name]}; "
                                f"profile here: `pipewave tune profile {table.kernel}`", field=name)  # fmt: skip
    drift = [f"{name} {made[name]} → {env[name]}" for name in SOFT if env.get(name) not in (None, made.get(name))]
    if drift and table.sha256 not in _warned:
        _warned.add(table.sha256)
        warnings.warn(f"{table.kernel} table: {', '.join(drift)}; `pipewave tune check` tells whether it still holds",
                      stacklevel=2)  # fmt: skip
    return drift
