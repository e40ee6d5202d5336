"""The calibrations that predictions pick up: one sealed file a GPU in the user's data folder, off where there is none.

`PIPEWAVE_CALIBRATION` is `off`, a calibration file, or a folder of them. A file is read once a process.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipewave.errors import BadFile, BadInput
from pipewave.nets.calibration.correction import Correction, Frame, Scales
from pipewave.nets.nets import trained
from pipewave.physics.cache import measured_protocol
from pipewave.physics.demand import Array

if TYPE_CHECKING:
    from pipewave.gpus import GPU
    from pipewave.kernels.base import Context

VARIABLE = "PIPEWAVE_CALIBRATION"
OFF = "off"
SHIPPED = Path(__file__).resolve().parents[2] / "data" / "corrections"
SUFFIX = ".safetensors"
LONGEST = 120  # characters

_suspended: ContextVar[bool] = ContextVar("calibration_suspended", default=False)
SCHEMA = 4  # 4: sealed by a checksum
HINT = "calibrate again, or set PIPEWAVE_CALIBRATION=off"
ARRAYS = ("middle", "spread", "points", "weights")


@dataclass(frozen=True, slots=True, eq=False)  # distinguished by identity: what is worked out of one is cached by it
class InForce:
    """The corrections of a GPU, by net and protocol."""

    known: Mapping[tuple[str, str], Correction]

    def of(self, ctx: Context, net: str) -> Correction | None:
        """The correction for calls of that context, or None; rows of other software say nothing about it."""
        found = self.known.get((net, measured_protocol(ctx.protocol)))
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
    saved = load(path)
    return saved.corrections if saved.gpu == gpu else {}


@cache
def _shipped(architecture: str) -> Mapping[tuple[str, str], Correction]:
    """The corrections that come with the package for GPUs of an architecture on which no net was trained."""
    path = SHIPPED / file_name(architecture)
    return load(path).corrections if path.is_file() else {}


def _path(setting: str, gpu: str) -> Path | None:
    if setting.lower() == OFF:
        return None
    given = Path(setting) if setting else folder()
    return given if given.is_file() else given / file_name(gpu)


def state(gpu: str) -> tuple[str, int]:
    """What tells the calibrations in force for a GPU apart: the setting, and when the file was written."""
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


@dataclass(frozen=True, slots=True)
class Saved:
    """The corrections of one GPU."""

    gpu: str
    corrections: Mapping[tuple[str, str], Correction]  # by net and protocol
    environments: tuple[Mapping[str, Any], ...] = ()  # that the rows were measured in


def save(saved: Saved, path: Path) -> None:
    """Write the file whole or not at all. BadFile if it cannot."""
    from pipewave.files import sealed  # predictions of most GPUs read none

    arrays: dict[str, Array] = {}
    cards = []
    for number, ((net, protocol), found) in enumerate(saved.corrections.items()):
        parts = (found.frame.middle, found.frame.spread, found.points, found.weights)
        arrays |= {f"{number}/{name}": part for name, part in zip(ARRAYS, parts, strict=True)}
        cards.append({"net": net, "protocol": protocol, "settings": sorted(found.settings), "width": found.width})
        cards[-1]["origin"] = found.origin
        cards[-1]["weights"] = _weights(net)
        cards[-1] |= {"names": found.frame.names, "scales": asdict(found.scales)}
    card = {"schema": SCHEMA, "gpu": saved.gpu, "corrections": cards, "environments": list(saved.environments)}
    sealed.write(path, card, arrays)


def load(path: Path) -> Saved:
    """Read what `save` wrote. BadFile when it is not that, and how to go on without it."""
    from pipewave.files import sealed

    try:
        card, arrays = sealed.read(path, "calibration")
        if card["schema"] != SCHEMA:
            raise ValueError(f"schema {card['schema']}, this version reads {SCHEMA}")
        return _parsed(card, arrays)
    except BadFile as error:
        raise BadFile(f"{error.message}; {HINT}", field="calibration") from error
    except (ValueError, KeyError, TypeError) as error:  # sealed by another program: parts missing or of another type
        raise BadFile(f"{path}: not a calibration ({error}); {HINT}", field="calibration") from error


def _weights(net: str) -> str:
    """Which weights a correction is of: it corrects their answers, by what their hidden layers say."""
    learned = trained(net)
    return learned.sha256 if learned else ""


def _parsed(card: Mapping[str, Any], arrays: Mapping[str, Array]) -> Saved:
    found = {}
    for number, one in enumerate(card["corrections"]):
        if one["weights"] != _weights(one["net"]):
            raise ValueError(f"fitted to other weights of {one['net']}")
        middle, spread, points, weights = (arrays[f"{number}/{name}"] for name in ARRAYS)
        found[(one["net"], one["protocol"])] = Correction(
            frame=Frame(tuple(one["names"]), middle, spread),
            scales=Scales(**one["scales"]),
            points=points,
            weights=weights,
            settings=frozenset((stack, impl) for stack, impl in one["settings"]),
            width=float(one["width"]),
            origin=str(one.get("origin", "")),
        )
    return Saved(card["gpu"], found, tuple(card["environments"]))
