"""Which jobs to run and in which order, so that a run cut short is still balanced over families."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from pipewave.errors import BadFile, BadInput
from pipewave.kernels import rows_of
from pipewave.kernels.family_metadata import Plan
from pipewave.measure.job import PAGE_ORDERS, RANDOM, Job
from pipewave.measure.plans import SIZES, Size

SEED = 20261121
BATCH = 60
NAMES = tuple(SIZES)


def built_in(name: str, *, families: Sequence[str] = (), protocol: str | None = None) -> list[Job]:
    """Jobs of a plan of `NAMES`; `protocol` keeps one protocol's jobs only."""
    if name not in NAMES:
        raise BadInput(f"plan: {name!r} is none of {', '.join(NAMES)}", field="plan")
    known = [family for family, rows in rows_of().items() if rows.plans]
    chosen = list(families) or known
    if unknown := set(chosen) - set(known):
        raise BadInput(f"families: {sorted(unknown)} are none of {', '.join(known)}", field="families")
    size = SIZES[name]
    # Variants are drawn over the whole plan, whichever families are wanted, so that they are the same ones every time.
    jobs, later = _planned(size, varied=True), _planned(size, varied=False)
    found = [job for job in (*later, *jobs, *_variants(jobs, size)) if protocol in (None, job.protocol)]
    return sorted((job for job in found if job.family in chosen), key=lambda job: chosen.index(job.family))


def _planned(size: Size, *, varied: bool) -> list[Job]:
    """Jobs of the plans that variants are drawn over, or of the others."""
    return [
        job
        for rows in rows_of().values()
        for plan in rows.plans
        if plan.varied == varied
        for job in _kept(plan, rows.stream, size)
    ]


def _kept(plan: Plan, stream: int | None, size: Size) -> list[Job]:
    # A stream of its own for every family keeps its jobs the same whichever other families there are.
    rng = np.random.default_rng([SEED, stream or 0])
    source = getattr(import_module(plan.module), plan.jobs)
    jobs = list({job.key: job for job in source(rng, size)}.values())
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
    """Jobs of a contract cases file (JSON lines): `protocol` and `impl` of a case win over the defaults.

    `pages` of a case says where the pages of its cache lie, as in `Job`.
    """
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
    pages = str(fields.pop("pages", RANDOM))
    if pages not in PAGE_ORDERS:
        raise BadInput(f"{where}: pages {pages!r} are none of {', '.join(PAGE_ORDERS)}", field="pages")
    return Job(fields, impl, fields.pop("protocol", None) or protocol, pages=pages)


def _default_impl(case: dict[str, object]) -> str:
    rows = rows_of().get(str(case["kernel"]))
    usual = rows.usual if rows else {}
    return usual.get(str(case.get("dtype", "bf16"))) or usual.get("", "vllm")


def batches(jobs: Iterable[Job], size: int = BATCH, *, in_order: bool = False) -> list[list[Job]]:
    """Group jobs into batches of one kind and interleave kinds in proportion, so any prefix is balanced.

    `in_order` ends one kind before the next begins, in the order in which `jobs` first names them.
    """
    groups: dict[tuple[str, ...], list[Job]] = defaultdict(list)
    for job in jobs:
        groups[_kind(job)].append(job)
    placed = []
    for rank, (kind, members) in enumerate(groups.items() if in_order else sorted(groups.items())):
        together = _together(members[0])
        cut = _by_shape(members, together, size) if together else _shuffled(members, size)
        placed += [((i + 0.5) / len(cut) + rank * in_order, kind, part) for i, part in enumerate(cut)]
    return [part for _, _, part in sorted(placed, key=lambda item: item[:2])]


def _kind(job: Job) -> tuple[str, ...]:
    dtype = str(job.case["dtype"]) if _together(job) else ""
    return (job.family, job.protocol, job.flush, str(job.repeat), dtype)


def _together(job: Job) -> tuple[str, ...]:
    """Fields of jobs that stay in one batch."""
    rows = rows_of().get(job.family)
    return rows.together if rows else ()


def _shuffled(jobs: list[Job], size: int) -> list[list[Job]]:
    order = [jobs[i] for i in np.random.default_rng(SEED).permutation(len(jobs))]
    return [order[i : i + size] for i in range(0, len(order), size)]


def _by_shape(jobs: list[Job], together: Sequence[str], size: int) -> list[list[Job]]:
    shapes: dict[tuple[object, ...], list[Job]] = defaultdict(list)
    for job in jobs:
        shapes[tuple(job.case[name] for name in together)].append(job)
    parts = [part[i : i + size] for part in shapes.values() for i in range(0, len(part), size)]
    return [parts[i] for i in np.random.default_rng(SEED).permutation(len(parts))]
