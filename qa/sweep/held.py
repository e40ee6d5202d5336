"""What an answer is held against, and by how much it may differ where no rows decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from pipewave.gpus import find
from pipewave.prediction.answers import Prediction
from qa.sweep.asked import VERSIONS, Asked, shape

NEIGHBOURS = [f"{name}-{version}" for name, versions in VERSIONS.items() for version in versions]
# A GPU and the measured one that it is nearest to.
NEAREST = {
    "B300": "B200", "GB300": "GB200", "GB200": "B200", "H100": "H200", "H20": "H200", "H800": "H100", "GH200": "H200",
    "H100 NVL": "H100", "A800": "A100", "A10": "A100", "L20": "L40S", "L4": "L40S", "RTX 4090": "L40S",
    "RTX 5090": "RTX PRO 6000 Server", "DGX Spark": "RTX PRO 6000 Server",
}  # fmt: skip
# Narrow types do the work of the wide one on half of the bytes: slower by quantising alone.
NARROWER = {"fp16": "bf16", "fp8": "bf16", "fp8_block": "bf16", "int8": "bf16", "nvfp4": "fp8"}
MOST = {"version": 1.3, "type": 1.3, "cold below graph": 1.25, "graph of profiler": 1.5, "gpu": 1.15}


class Found(NamedTuple):
    """Two answers that differ by `ratio` of what they may. `apart`: their intervals share no time."""

    relation: str
    asked: Asked
    other: Asked
    ratio: float
    apart: bool
    text: str


def rows_decide(found: Prediction) -> bool:
    """Whether rows of this very software on this GPU were trained on."""
    return found.basis == "measured_gpu" and found.software == "measured"


def outliers(answers: Mapping[Asked, Prediction]) -> Iterator[Found]:
    """Pairs of answers that differ by more than they may, where rows do not decide both."""
    for asked, found in answers.items():
        for relation, other, ratio in _compared(asked, found, answers):
            beside = answers[other]
            if ratio > MOST[relation] and not (rows_decide(found) and rows_decide(beside)):
                apart = found.low_us > beside.high_us or beside.low_us > found.high_us
                yield Found(relation, asked, other, ratio / MOST[relation], apart, _text(asked, found, other, beside))


def pairs(answers: Mapping[Asked, Prediction]) -> Iterable[str]:
    """The relation of every pair that is compared."""
    return (relation for a, found in answers.items() for relation, _, _ in _compared(a, found, answers))


def _compared(
    asked: Asked, found: Prediction, answers: Mapping[Asked, Prediction]
) -> Iterator[tuple[str, Asked, float]]:
    for relation, other in _beside(asked):
        if other in answers:
            yield relation, other, _ratio(relation, asked, other, found.latency_us / answers[other].latency_us)


def _beside(asked: Asked) -> Iterator[tuple[str, Asked]]:
    """The answers that one is held against, and how."""
    if asked.stack in NEIGHBOURS[1:]:
        before = NEIGHBOURS[NEIGHBOURS.index(asked.stack) - 1]
        if before.partition("-")[0] == asked.stack.partition("-")[0]:
            yield "version", replace(asked, stack=before)
    if asked.dtype in NARROWER:
        yield "type", replace(asked, dtype=NARROWER[asked.dtype])
    if asked.protocol == "graph":
        yield "cold below graph", replace(asked, protocol="cold")
    if asked.protocol == "profiler_warm":
        yield "graph of profiler", replace(asked, protocol="graph")
    if asked.gpu in NEAREST:
        yield "gpu", replace(asked, gpu=NEAREST[asked.gpu])


def _ratio(relation: str, asked: Asked, other: Asked, times: float) -> float:
    """How far beyond what relates the two: a type or a cold call one way, versions either way, a GPU beyond what
    the ratios of its rates allow."""
    if relation == "type":  # some parts multiply a narrow type at a lower rate
        rates = (find(asked.gpu).peak_flops(one.dtype) for one in (other, asked))
        return times / max(1.0, next(rates) / next(rates))
    if relation == "gpu":
        slower = _slower(asked.gpu, other.gpu, asked.dtype)
        return max(times / max(slower), min(slower) / times)
    return max(times, 1 / times) if relation in ("version", "graph of profiler") else times


def _slower(gpu: str, other: str, dtype: str) -> tuple[float, ...]:
    """How many times longer each part of a kernel takes on a GPU than on another, what does not scale among them."""
    one, beside = find(gpu), find(other)
    rates = [(g.dram_peak_gbps, g.boost_clock_mhz, g.sms * g.boost_clock_mhz, g.tdp_w or 1.0) for g in (one, beside)]
    tensor = beside.peak_flops(dtype) / one.peak_flops(dtype)
    return (1.0, tensor, *(theirs / mine for mine, theirs in zip(*rates, strict=True)))


def _text(asked: Asked, found: Prediction, other: Asked, beside: Prediction) -> str:
    return f"{shape(asked)}: {_said(asked, found)}, beside {_said(other, beside)}"


def _said(asked: Asked, found: Prediction) -> str:
    times = f"{found.latency_us:.1f} µs ({found.low_us:.1f} to {found.high_us:.1f}, floor {found.floor_us:.1f})"
    where = f"{asked.gpu} {asked.dtype} {asked.stack or 'default'} {asked.protocol}"
    return f"{where} {times} {found.basis} {found.software} {found.impl}".rstrip()
