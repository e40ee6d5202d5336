"""A calibration on disk: one safetensors file, its description in the header, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.calibrate.correction import Correction, Frame
from pipewave.calibrate.process import Scales
from pipewave.errors import BadFile
from pipewave.physics.demand import Array
from pipewave.residual.nets import trained

SCHEMA = 3
ARRAYS = ("middle", "spread", "points", "weights")


@dataclass(frozen=True, slots=True)
class Saved:
    """The corrections of one GPU by net and protocol, and the environments their rows were measured in."""

    gpu: str
    corrections: Mapping[tuple[str, str], Correction]
    environments: tuple[Mapping[str, Any], ...] = ()


def save(saved: Saved, path: Path) -> None:
    """Write beside `path` and move it there, so that readers see the old file or the new one. BadFile if it cannot."""
    from safetensors.numpy import save as to_bytes

    tensors: dict[str, Array] = {}
    cards = []
    for number, ((net, protocol), found) in enumerate(saved.corrections.items()):
        arrays = (found.frame.middle, found.frame.spread, found.points, found.weights)
        tensors |= {f"{number}/{name}": np.ascontiguousarray(a) for name, a in zip(ARRAYS, arrays, strict=True)}
        cards.append({"net": net, "protocol": protocol, "settings": sorted(found.settings), "width": found.width})
        cards[-1]["weights"] = _weights(net)
        cards[-1] |= {"names": found.frame.names, "scales": asdict(found.scales)}
    card = {"schema": SCHEMA, "gpu": saved.gpu, "corrections": cards, "environments": list(saved.environments)}
    _replace(path, to_bytes(tensors, metadata={"pipewave": json.dumps(card)}))


def _replace(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError as error:
        raise BadFile(f"{path}: cannot be written ({error.strerror})", field="out") from error


def load(path: Path) -> Saved:
    """Read what `save` wrote. BadFile when it is not that, and how to go on without it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            card = json.loads((file.metadata() or {})["pipewave"])
            if card["schema"] != SCHEMA:
                raise ValueError(f"schema {card['schema']}, this version reads {SCHEMA}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return _parsed(card, arrays)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        hint = "calibrate again, or set PIPEWAVE_CALIBRATION=off"
        raise BadFile(f"{path}: not a calibration ({error}); {hint}", field="calibration") from error


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
        )
    return Saved(card["gpu"], found, tuple(card["environments"]))
