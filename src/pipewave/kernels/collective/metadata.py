"""Collectives: names of kernels in profiles, the sizes PyTorch records with them, measured rows, pages."""

from __future__ import annotations

from typing import Any

from pipewave.calls.families import CLASSES
from pipewave.kernels.family_metadata import (
    Case,
    FamilyMetadata,
    KernelName,
    Measurements,
    Page,
    Profile,
    Runner,
    table_case,
)
from pipewave.kernels.profiler import Given, Launched, Shaped, Step

# How profiles show collectives: names of kernels, and the sizes that recent PyTorch records with them.

NAMES: dict[str, tuple[KernelName, ...]] = {
    "all_reduce": (
        KernelName(30, r"nccl(Dev)?Kernel_AllReduce", "all_reduce", "nccl"),
        KernelName(
            30,
            r"cross_device_reduce|allreduce_fusion|multimem_all_reduce|(one|two)_shot_all_reduce",
            "all_reduce",
            "custom",
        ),
        KernelName(30, r"AllReduceKernel|lamport|customAllReduce", "all_reduce", "custom"),
    ),
    "all_gather": (KernelName(30, r"nccl(Dev)?Kernel_AllGather|multimem_all_gather", "all_gather", "nccl"),),
    "reduce_scatter": (KernelName(30, r"nccl(Dev)?Kernel_ReduceScatter", "reduce_scatter", "nccl"),),
    "all_to_all": (
        KernelName(30, r"nccl(Dev)?Kernel_AllToAll", "all_to_all", "nccl"),
        KernelName(30, r"deep_ep::.*(dispatch|combine)|moeAllToAll", "all_to_all", "custom"),
    ),
    "send_recv": (KernelName(30, r"nccl(Dev)?Kernel_SendRecv", "send_recv", "nccl"),),
}
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


def profile_of(op: str) -> Profile:
    """The profile of one collective."""
    return Profile(NAMES[op], group=_read, anchors=(op,) if op in ANCHORS else ())


# Measured rows of collectives: libraries, near duplicates, the corpus table that holds all of them.

# Several processes measure them together (`lab.collectives`).
RUNNERS = {"nccl": Runner("", "", "torch"), "custom": Runner("", "", "vllm")}


def _case(row: Case) -> dict[str, Any]:
    return table_case(str(row["op"]), "bytes", "world", "nodes")(row)


def rows_of(op: str) -> dict[str, Measurements]:
    """What is known of measured rows of one collective."""
    return {op: Measurements(runners=RUNNERS, usual={"": "nccl"}, group=("bytes",), table="collectives", case=_case)}


# What other rooms need to know of collectives.

SWEEP = {"field": "bytes", "from": 1024, "to": 1 << 28, "scale": "log"}


def _metadata(op: str) -> FamilyMetadata:
    world = 2 if op == "send_recv" else 8
    return FamilyMetadata(profile_of(op), rows_of(op), Page({"world": world}, SWEEP))


METADATA = {op: _metadata(op) for op in NAMES}
