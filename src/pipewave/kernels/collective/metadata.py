"""Collectives: names of kernels in profiles, the sizes PyTorch records with them, measured rows, pages."""

from __future__ import annotations

from typing import Any

from pipewave.calls.collective import COLLECTIVES
from pipewave.calls.families import CLASSES
from pipewave.kernels.family_metadata import (
    FamilyMetadata,
    Measurements,
    Page,
    Profile,
    Runner,
    names_of,
)
from pipewave.kernels.profiler import Given, Launched, Shaped, Step

ANCHORS = ("all_reduce", "all_gather", "send_recv")
WIDTHS = {"BFloat16": 2, "Half": 2, "Float": 4, "Byte": 1}


def _read(launched: Launched, _step: Step | None, _given: Given) -> Shaped | None:
    head, family = launched.head, str(launched.family)
    world, dtype = head.arg("Group size"), str(head.arg("dtype"))
    count = head.arg("Out msg nelems" if family == "all_gather" else "In msg nelems")
    if not isinstance(world, int) or not isinstance(count, int):
        return None
    sizes: dict[str, Any] = {"bytes": count * WIDTHS.get(dtype, 2), "world": world}
    return Shaped(launched.role, CLASSES[family](**sizes, impl=launched.impl))


# Several processes measure them together (`lab.collectives`).
RUNNERS = {"nccl": Runner("", "", "torch"), "custom": Runner("", "", "vllm")}


SWEEP = {"field": "bytes", "from": 1024, "to": 1 << 28, "scale": "log"}


def _metadata(op: str) -> FamilyMetadata:
    profile = Profile(names_of(op), group=_read, anchors=(op,) if op in ANCHORS else ())
    rows = Measurements(runners=RUNNERS, usual={"": "nccl"}, group=("bytes",))
    return FamilyMetadata(profile, {op: rows}, Page({"world": 2 if op == "send_recv" else 8}, SWEEP))


METADATA = {call.kernel: _metadata(call.kernel) for call in COLLECTIVES}
