"""How profiles show collectives: names of kernels, and the sizes that recent PyTorch records with them."""

from __future__ import annotations

from pipewave.calls.families import CLASSES
from pipewave.kernels.faces import KernelName, Profile
from pipewave.kernels.launched import Given, Launched, Shaped, Step

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


def _read(launched: Launched, step: Step | None, given: Given) -> Shaped | None:
    head, family = launched.head, str(launched.family)
    world, dtype = head.arg("Group size"), str(head.arg("dtype"))
    count = head.arg("Out msg nelems" if family == "all_gather" else "In msg nelems")
    if not isinstance(world, int) or not isinstance(count, int):
        return None
    sizes = {"bytes": count * WIDTHS.get(dtype, 2), "world": world}
    return Shaped(launched.role, CLASSES[family](**sizes, impl=launched.impl))  # type: ignore[call-arg]


def profile_of(op: str) -> Profile:
    """The profile of one collective."""
    return Profile(NAMES[op], group=_read, anchors=(op,) if op in ANCHORS else ())
