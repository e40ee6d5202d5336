"""A calibration on disk: one safetensors file, its description in the header, written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile
from pipewave.files import sealed
from pipewave.nets.calibration.correction import Correction, Frame
from pipewave.nets.calibration.process import Scales
from pipewave.nets.nets import trained
from pipewave.physics.demand import Array

SCHEMA = 4  # 4: sealed by a checksum
HINT = "calibrate again, or set PIPEWAVE_CALIBRATION=off"
ARRAYS = ("middle", "spread", "points", "weights")


@dataclass(frozen=True, slots=True)
class Saved:
    """The corrections of one GPU by net and protocol, and the environments their rows were measured in."""

    gpu: str
    corrections: Mapping[tuple[str, str], Correction]
    environments: tuple[Mapping[str, Any], ...] = ()


def save(saved: Saved, path: Path) -> None:
    """Write the file whole or not at all. BadFile if it cannot."""
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
    try:
        card, arrays = sealed.read(path, "calibration")
        if card["schema"] != SCHEMA:
            raise ValueError(f"schema {card['schema']}, this version reads {SCHEMA}")
        return _parsed(card, arrays)
    except BadFile as error:
        raise BadFile(f"{error.message}; {HINT}", field="calibration") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
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
