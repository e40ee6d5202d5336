"""Which jobs to run and in which order, so that a run cut short is still balanced over families."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipewave.errors import BadFile, BadInput
from pipewave.measure.job import Job
from pipewave.measure.plans import attention, gemm, moe, pointwise, ragged

Rng = np.random.Generator
SEED = 20261121
BATCH = 60
DEFAULT_IMPL = {"gemm": "cublas", "attention": "fa3", "fused_moe": "triton"}


@dataclass(frozen=True, slots=True)
class Size:
    """How much a built-in plan measures; the counts of repeats are over all families together."""

    random_pairs: int
    per_pair: int
    per_layout: int
    per_moe: int
    per_pointwise: int
    graph: int
    noise: int
    read_flush: int
    keep: float = 1.0


SIZES = {
    "quick": Size(20, 6, 6, 5, 4, 40, 40, 20, keep=0.06),
    "standard": Size(60, 12, 24, 12, 10, 500, 200, 50, keep=0.4),
    "full": Size(130, 17, 52, 18, 18, 2000, 500, 100),
}
FAMILIES: dict[str, Callable[[Rng, Size], Iterator[Job]]] = {
    "gemm": lambda rng, s: gemm.jobs(rng, random_pairs=s.random_pairs, per_pair=s.per_pair),
    "attention": lambda rng, s: attention.jobs(rng, per_layout=s.per_layout),
    "fused_moe": lambda rng, s: moe.jobs(rng, per_shape=s.per_moe),
    "rmsnorm": lambda rng, s: pointwise.rmsnorm(rng, s.per_pointwise),
    "silu_and_mul": lambda rng, s: pointwise.silu_and_mul(rng, s.per_pointwise),
    "rope": lambda rng, s: pointwise.rope(rng, s.per_pointwise),
    "kv_write": lambda rng, s: pointwise.kv_write(rng, s.per_pointwise),
}
# These came later: they have no part in the draw of the variants, which stay those that were measured.
LATER: dict[str, Callable[[Rng, Size], Iterator[Job]]] = {
    "fused_moe": lambda rng, s: moe.quantized(rng, per_shape=s.per_moe),
}


NAMES = (*SIZES, "ragged")


def built_in(name: str, *, families: Sequence[str] = (), protocol: str | None = None) -> list[Job]:
    """Jobs of the plan `quick`, `standard`, `full` or `ragged`; `protocol` keeps one protocol's jobs only."""
    if name not in NAMES:
        raise BadInput(f"plan: {name!r} is none of {', '.join(NAMES)}", field="plan")
    if name == "ragged":
        return _uneven(families, protocol)
    chosen = list(families) or list(FAMILIES)
    if unknown := set(chosen) - set(FAMILIES):
        raise BadInput(f"families: {sorted(unknown)} are none of {', '.join(FAMILIES)}", field="families")
    size = SIZES[name]
    # Variants are drawn over the whole plan, whichever families are wanted, so that they are the same ones every time.
    jobs = [job for family in FAMILIES for job in _family(FAMILIES, family, size)]
    later = [job for family in LATER for job in _family(LATER, family, size)]
    found = [job for job in (*later, *jobs, *_variants(jobs, size)) if protocol in (None, job.protocol)]
    return sorted((job for job in found if job.family in chosen), key=lambda job: chosen.index(job.family))


def _uneven(families: Sequence[str], protocol: str | None) -> list[Job]:
    """Attention alone, over batches of unequal requests, each call once."""
    if families and "attention" not in families:
        return []
    jobs = {job.key: job for job in ragged.jobs(np.random.default_rng([SEED, len(FAMILIES)]))}
    return [job for job in jobs.values() if protocol in (None, job.protocol)]


def _family(source: Mapping[str, Callable[[Rng, Size], Iterator[Job]]], family: str, size: Size) -> list[Job]:
    # A stream of its own for every family keeps its jobs the same whichever other families are asked for.
    rng = np.random.default_rng([SEED, sorted(FAMILIES).index(family)])
    jobs = list({job.key: job for job in source[family](rng, size)}.values())
    kept = max(1, round(size.keep * len(jobs)))
    return [jobs[i] for i in sorted(rng.permutation(len(jobs))[:kept])]


def _variants(jobs: Sequence[Job], size: Size) -> list[Job]:
    """Some of the jobs again: under `graph`, a second time for the noise floor, flushed by reading."""
    rng = np.random.default_rng(SEED)
    order = [jobs[i] for i in rng.permutation(len(jobs))]
    graph = [replace(job, protocol="graph") for job in order[: size.graph]]
    noise = [replace(job, repeat=1) for job in order[: size.noise]]
    read = [replace(job, flush="read") for job in order[: size.read_flush]]
    return graph + noise + read


def from_file(path: str | Path, protocol: str = "cold") -> list[Job]:
    """Jobs of a contract cases file (JSON lines): `protocol` and `impl` of a case win over the defaults."""
    if not Path(path).is_file():
        raise BadFile(f"plan: {str(path)!r} is none of {', '.join(NAMES)}, and no file of cases", field="plan")
    jobs = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            jobs.append(_job_of_line(line, f"{path}:{number}", protocol))
    return jobs


def _job_of_line(line: str, where: str, protocol: str) -> Job:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise BadInput(f"{where}: not JSON ({error})") from error
    if not isinstance(fields, dict) or "kernel" not in fields:
        raise BadInput(f"{where}: a case is an object with a kernel", field="kernel")
    for outside in ("id", "gpu", "stack"):
        fields.pop(outside, None)
    impl = fields.pop("impl", None) or _default_impl(fields)
    return Job(fields, impl, fields.pop("protocol", None) or protocol)


def _default_impl(case: dict[str, object]) -> str:
    if case["kernel"] == "gemm" and str(case.get("dtype", "bf16")).startswith("fp8"):
        return "cutlass"
    return DEFAULT_IMPL.get(str(case["kernel"]), "vllm")


def batches(jobs: Iterable[Job], size: int = BATCH, *, in_order: bool = False) -> list[list[Job]]:
    """Group jobs into batches of one kind and interleave kinds in proportion, so any prefix is balanced.

    `in_order` ends one kind before the next begins, in the order in which `jobs` first names them.
    """
    groups: dict[tuple[str, ...], list[Job]] = defaultdict(list)
    for job in jobs:
        groups[_kind(job)].append(job)
    placed = []
    for rank, (kind, members) in enumerate(groups.items() if in_order else sorted(groups.items())):
        # Experts' weights are laid out once per shape, so a shape's token counts stay together.
        cut = _by_shape(members, size) if kind[0] == "fused_moe" else _shuffled(members, size)
        placed += [((i + 0.5) / len(cut) + rank * in_order, kind, part) for i, part in enumerate(cut)]
    return [part for _, _, part in sorted(placed, key=lambda item: item[:2])]


def _kind(job: Job) -> tuple[str, ...]:
    dtype = str(job.case["dtype"]) if job.family == "fused_moe" else ""
    return (job.family, job.protocol, job.flush, str(job.repeat), dtype)


def _shuffled(jobs: list[Job], size: int) -> list[list[Job]]:
    order = [jobs[i] for i in np.random.default_rng(SEED).permutation(len(jobs))]
    return [order[i : i + size] for i in range(0, len(order), size)]


def _by_shape(jobs: list[Job], size: int) -> list[list[Job]]:
    shapes: dict[tuple[object, ...], list[Job]] = defaultdict(list)
    for job in jobs:
        shapes[tuple(job.case[name] for name in ("experts", "topk", "hidden", "inter", "tp"))].append(job)
    parts = [part[i : i + size] for part in shapes.values() for i in range(0, len(part), size)]
    return [parts[i] for i in np.random.default_rng(SEED).permutation(len(parts))]
