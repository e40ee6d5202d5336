"""From measured rows to samples: what the shipped model says of each row, and the coordinates it says it from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.calibrate.fit import Sample
from pipewave.calls.families import CLASSES, from_dict
from pipewave.calls.fields import rules
from pipewave.errors import PipewaveError
from pipewave.gpus import GPU
from pipewave.kernels import family_of, group_of
from pipewave.nets.calibration.correction import CODES
from pipewave.nets.calibration.corrections import suspended
from pipewave.physics.demand import Array
from pipewave.prediction.columns import columns, group_key
from pipewave.prediction.kernel_latency import US, answer, coordinates
from pipewave.prediction.resolve import codes_of

Row = Mapping[str, Any]
Key = tuple[str, str]  # net and protocol


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one context."""

    features: Mapping[str, Array]
    codes: Mapping[str, str]
    log_ratio: Array
    half_width: Array
    groups: list[str]


def samples(rows: Iterable[Row], gpu: GPU) -> tuple[dict[Key, Sample], int]:
    """Samples by net and protocol, and how many rows no prediction exists for (an unknown kernel, a bad field)."""
    contexts: dict[Any, list[tuple[dict[str, Any], float]]] = defaultdict(list)
    unusable = 0
    for row in rows:
        try:
            case = _case(row)
        except PipewaveError:
            unusable += 1
            continue
        key = (case["kernel"], row["protocol"], group_key(family_of(case["kernel"]), case))
        contexts[key].append((case, float(row["latency_us"])))
    parts: dict[Key, list[_Part]] = defaultdict(list)
    with suspended():
        for (kernel, protocol, key), members in contexts.items():
            net, part = _part(kernel, key, members, gpu, protocol)
            parts[net, protocol].append(part)
    return {key: _joined(found) for key, found in parts.items()}, unusable


def _case(row: Row) -> dict[str, Any]:
    """The call of a row with the software that ran it, every field filled in."""
    call = from_dict(dict(row["case"]) | {"stack": row["stack"], "impl": row["impl"]})
    return {name: getattr(call, name) for name in rules(CLASSES[call.kernel])} | {"kernel": call.kernel}


def _part(
    kernel: str, key: Sequence[Any], members: Sequence[tuple[dict[str, Any], float]], gpu: GPU, protocol: str
) -> tuple[str, _Part]:
    family, cases = family_of(kernel), [case for case, _ in members]
    found = answer(family, columns(family, cases), key, gpu, protocol)
    latency, _, high, *_ = found.seconds
    measured = np.array([latency_us for _, latency_us in members]) / US
    codes = codes_of(found.ctx, found.analysis.net)
    groups = [f"{kernel}:{group_of(case)}" for case in cases]
    ratio, half = np.log(measured / latency), np.maximum(np.log(high / latency), 1e-3)
    return found.analysis.net, _Part(coordinates(found.analysis, found.ctx), codes, ratio, half, groups)


def _joined(parts: Sequence[_Part]) -> Sample:
    codes = sorted({f"{name}={part.codes[name]}" for part in parts for name in CODES})
    shared = [name for name in parts[0].features if all(name in part.features for part in parts)]
    blocks = []
    for part in parts:
        features = [np.broadcast_to(part.features[name], len(part.groups)) for name in shared]
        indicators = [
            np.full(len(part.groups), float(part.codes[c.partition("=")[0]] == c.partition("=")[2])) for c in codes
        ]
        blocks.append(np.array([*features, *indicators], np.float64).T)
    _, group = np.unique(np.concatenate([part.groups for part in parts]), return_inverse=True)
    return Sample(
        names=(*shared, *codes),
        coordinates=np.concatenate(blocks),
        log_ratio=np.concatenate([part.log_ratio for part in parts]),
        half_width=np.concatenate([part.half_width for part in parts]),
        group=group.reshape(-1),
        settings=frozenset((part.codes["stack"], part.codes["impl"]) for part in parts),
    )
