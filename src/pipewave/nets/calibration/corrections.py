"""The calibrations that predictions pick up: one file a GPU in the user's data folder, off where there is none.

`PIPEWAVE_CALIBRATION` is `off`, a calibration file, or a folder of them. A file is read once a process.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipewave.errors import BadInput

if TYPE_CHECKING:
    from pipewave.gpus import GPU
    from pipewave.kernels.base import Context
    from pipewave.nets.calibration.correction import Correction

VARIABLE = "PIPEWAVE_CALIBRATION"
OFF = "off"
SHIPPED = Path(__file__).resolve().parents[2] / "data" / "corrections"
SUFFIX = ".safetensors"
LONGEST = 120  # characters

_suspended: ContextVar[bool] = ContextVar("calibration_suspended", default=False)


@dataclass(frozen=True, slots=True, eq=False)  # distinguished by identity: what is worked out of one is cached by it
class InForce:
    """The corrections of a GPU, by net and protocol."""

    known: Mapping[tuple[str, str], Correction]

    def of(self, ctx: Context, net: str) -> Correction | None:
        """The correction for calls of that context, or None; rows of other software say nothing about it."""
        found = self.known.get((net, "cold" if ctx.protocol == "serving" else ctx.protocol))
        return found if found and (ctx.stack, ctx.impl) in found.settings else None


def of(gpu: GPU) -> InForce | None:
    """The corrections that predictions for a GPU pick up; None without any."""
    return None if _suspended.get() else _in_force(os.environ.get(VARIABLE, ""), gpu)


@contextmanager
def suspended() -> Iterator[None]:
    """Predict without any calibration inside."""
    token = _suspended.set(True)
    try:
        yield
    finally:
        _suspended.reset(token)


def forget() -> None:
    """Read files again: one was written."""
    _in_force.cache_clear()
    _known.cache_clear()


@lru_cache(maxsize=64)
def _in_force(setting: str, gpu: GPU) -> InForce | None:
    found = _known(setting, gpu.name) or _known(setting, gpu.base_gpu) or _shipped(gpu.architecture)
    return InForce(found) if found else None


@lru_cache(maxsize=64)
def _known(setting: str, gpu: str) -> Mapping[tuple[str, str], Correction]:
    path = _path(setting, gpu)
    if path is None or not path.is_file():
        return {}
    from pipewave.nets.calibration.file import load

    saved = load(path)
    return saved.corrections if saved.gpu == gpu else {}


@cache
def _shipped(architecture: str) -> Mapping[tuple[str, str], Correction]:
    """The corrections that come with the package for GPUs of an architecture on which no net was trained."""
    path = SHIPPED / file_name(architecture)
    if not path.is_file():
        return {}
    from pipewave.nets.calibration.file import load

    return load(path).corrections


def _path(setting: str, gpu: str) -> Path | None:
    if setting.lower() == OFF:
        return None
    given = Path(setting) if setting else folder()
    return given if given.is_file() else given / file_name(gpu)


def state(gpu: str) -> tuple[str, int]:
    """What tells the calibrations in force for a GPU apart: the setting, and when the file was written.

    Whoever keeps predictions keeps this with them.
    """
    chosen = os.environ.get(VARIABLE, "")
    path = _path(chosen, gpu)
    return chosen, path.stat().st_mtime_ns if path is not None and path.is_file() else 0


def target(gpu: str) -> Path:
    """Where the calibration of a GPU is read from, and so where it is written to. BadInput when it is turned off."""
    path = _path(os.environ.get(VARIABLE, ""), gpu)
    if path is None:
        raise BadInput(
            f"{VARIABLE}=off: predictions would not use it; unset it, or name a file with --out", field="out"
        )
    return path


def saved() -> list[Path]:
    """Files of all calibrations that predictions would find."""
    chosen = os.environ.get(VARIABLE, "")
    given = folder() if not chosen or chosen.lower() == OFF else Path(chosen)
    return [given] if given.is_file() else sorted(given.glob(f"*{SUFFIX}"))


def folder() -> Path:
    """Where calibrations lie when nothing else is said."""
    from platformdirs import user_data_path

    return user_data_path("pipewave") / "calibrations"


def file_name(gpu: str) -> str:
    """`rtx_4090.safetensors` of `RTX 4090`; what would be too long for a file's name ends in a checksum."""
    plain = re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_")
    if len(plain) > LONGEST:
        plain = f"{plain[:LONGEST]}_{hashlib.sha256(gpu.encode()).hexdigest()[:16]}"
    return plain + SUFFIX
