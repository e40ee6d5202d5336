"""Draws the built-in plans and packs them where the package keeps them: `python -m lab.plans.built_in`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lab.pack import to_columns
from lab.plans import Size, attention, layers, moe
from pipewave.files import whole
from pipewave.measure.plan import FOLDER, Job
from pipewave.measure.row_files import FORMAT

SEED = 20261121
SIZES = {
    "quick": Size(20, 6, 6, 5, 4, 40, 40, 20, keep=0.06),
    "standard": Size(60, 12, 24, 12, 10, 500, 200, 50, keep=0.4),
    "full": Size(130, 17, 52, 18, 18, 2000, 500, 100),
}


class Source(NamedTuple):
    """Where jobs of a family come from, and its own stream of random numbers, which keeps them the same whichever other
    families there are.

    `varied`: repeats and protocols are drawn over its jobs too. A later source would change the draw, so it is not.
    """

    family: str
    stream: int
    jobs: Callable[[np.random.Generator, Size], Iterator[Job]]
    varied: bool = True


SOURCES = (
    Source("gemm", 2, layers.jobs),
    Source("attention", 0, attention.jobs),
    Source("fused_moe", 1, moe.jobs),
    Source("fused_moe", 1, moe.quantized, varied=False),
    Source("rmsnorm", 4, layers.rmsnorm),
    Source("silu_and_mul", 6, layers.silu_and_mul),
    Source("rope", 5, layers.rope),
    Source("kv_write", 3, layers.kv_write),
)


def drawn(name: str) -> list[Job]:
    """Jobs of a plan, family by family."""
    size = SIZES[name]
    jobs, later = (
        [job for one in SOURCES if one.varied is varied for job in _kept(one, size)] for varied in (True, False)
    )
    families = list(dict.fromkeys(one.family for one in SOURCES))
    return sorted((*later, *jobs, *_variants(jobs, size)), key=lambda job: families.index(job.family))


def _kept(source: Source, size: Size) -> list[Job]:
    rng = np.random.default_rng([SEED, source.stream])
    jobs = list({job.key: job for job in source.jobs(rng, size)}.values())
    kept = max(1, round(size.keep * len(jobs)))
    return [jobs[i] for i in sorted(rng.permutation(len(jobs))[:kept])]


def _variants(jobs: Sequence[Job], size: Size) -> list[Job]:
    """Some of the jobs again: under `graph`, a second time for the noise floor, flushed by reading."""
    order = [jobs[i] for i in np.random.default_rng(SEED).permutation(len(jobs))]
    graph = [replace(job, protocol="graph") for job in order[: size.graph]]
    noise = [replace(job, repeat=1) for job in order[: size.noise]]
    read = [replace(job, flush="read") for job in order[: size.read_flush]]
    return graph + noise + read


def main() -> None:
    """Write every plan."""
    for name in SIZES:
        rows = [{field: value for field, value in job.fields().items() if field != "key"} for job in drawn(name)]
        body = {"format": FORMAT, "rows": to_columns(rows)}
        text = json.dumps(body, separators=(",", ":")).encode()
        whole.write(FOLDER / f"{name}.json.gz", gzip.compress(text, compresslevel=9, mtime=0))


if __name__ == "__main__":
    main()
