"""Collectives of 1 KB to 512 MB, sized as nccl-tests counts them."""

from __future__ import annotations

from pipewave.measure.job import Job

SMALLEST, LARGEST = 1 << 10, 512 << 20
CUSTOM_LARGEST = 32 << 20
FAMILIES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def sizes() -> list[int]:
    """Powers of two and the points half-way between, all multiples of 512 bytes."""
    powers = [SMALLEST << i for i in range((LARGEST // SMALLEST).bit_length())]
    return sorted({*powers, *(power * 3 // 2 for power in powers[:-1])})


def jobs(world: int) -> list[Job]:
    """Every family through NCCL, all_reduce also through vLLM's custom kernel; large and small sizes mixed."""
    out = []
    for size in sizes()[::2] + sizes()[1::2]:
        for family in FAMILIES:
            case = {"kernel": family, "bytes": size, "world": world, "dtype": "bf16"}
            out.append(Job(case, "nccl"))
            if family == "all_reduce" and size <= CUSTOM_LARGEST:
                out.append(Job(case, "custom"))
    return out
