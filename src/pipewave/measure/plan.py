"""What to measure: cases of the public contract, each with an implementation and a protocol; in which order, so that a
run cut short is still balanced over families.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadFile, BadInput
from pipewave.files import whole
from pipewave.kernels import rows_of
from pipewave.measure.row_files import from_columns, unpack

Case = Mapping[str, Any]
RANDOM = "random"  # where the pages of a cache lie unless said
PAGE_ORDERS = ("scattered", RANDOM, "in_order")
FAKE_GPU = "fake"  # what the environment of the rehearsing device calls its GPU
# What `rough_us` takes a GPU to reach.
FLOPS = {"bf16": 500e12, "fp16": 500e12, "fp8": 900e12, "fp8_block": 700e12, "int8": 900e12}
DRAM_BYTES_PER_S = 2.5e12
LAUNCH_S = 3e-6
SEED = 20261121
BATCH = 60
NAMES = ("quick", "standard", "full")
FOLDER = Path(__file__).parents[1] / "data" / "plans"  # as `python -m lab.plans.built_in` packs them


@dataclass(frozen=True, slots=True)
class Job:
    """`case` holds contract fields only; `repeat` tells re-measurements apart; `flush` is how L2 is emptied.

    `pages` is where the pages of a paged cache lie: `random` is a random order within a cache that just holds them,
    `in_order` one behind the other, `scattered` a random choice within a cache of 20 GB, as a server's fills up.
    """

    case: Case = field(hash=False)
    impl: str
    protocol: str = "cold"
    repeat: int = 0
    flush: str = "write"
    pages: str = RANDOM

    @property
    def family(self) -> str:
        """The kernel family, `gemm`, `attention`, ..."""
        return str(self.case["kernel"])

    @property
    def key(self) -> str:
        """Sixteen hex digits that identify the job across runs and machines."""
        identity = [dict(self.case), self.impl, self.protocol, self.repeat, self.flush]
        identity += [self.pages] if self.pages != RANDOM else []  # keys of rows from before there was a choice hold
        canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def fields(self) -> dict[str, Any]:
        """What a stored row says about the job."""
        usual = {"repeat": 0, "flush": "write", "pages": RANDOM}
        own = {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}
        return {"key": self.key, "case": dict(self.case), "impl": self.impl, "protocol": self.protocol} | own


def rough_us(case: Case) -> float:
    """Order-of-magnitude latency of a case in microseconds, for skipping long ones and for the ETA."""
    rows = rows_of().get(str(case["kernel"]))
    flops, bytes_moved = rows.work(case) if rows and rows.work else (0.0, float(case.get("bytes", 0)))
    seconds = max(flops / FLOPS[case.get("dtype", "bf16")], bytes_moved / DRAM_BYTES_PER_S)
    return (seconds + LAUNCH_S) * 1e6


def built_in(name: str, *, families: Sequence[str] = ()) -> list[Job]:
    """Jobs of a plan of `NAMES`, those of `families` in their order."""
    if name not in NAMES:
        raise BadInput(f"plan: {name!r} is none of {', '.join(NAMES)}", field="plan")
    jobs = [Job(**row) for row in from_columns(unpack(FOLDER / f"{name}.json.gz")["rows"])]
    known = list(dict.fromkeys(job.family for job in jobs))
    chosen = list(families) or known
    if unknown := set(chosen) - set(known):
        raise BadInput(f"families: {sorted(unknown)} are none of {', '.join(known)}", field="families")
    return sorted((job for job in jobs if job.family in chosen), key=lambda job: chosen.index(job.family))


def from_file(path: str | Path, protocol: str = "cold") -> list[Job]:
    """Jobs of a contract cases file (JSON lines): `protocol`, `impl` and `pages` of a case win over the defaults."""
    if not Path(path).is_file():
        raise BadFile(f"plan: {str(path)!r} is none of {', '.join(NAMES)}, and no file of cases", field="plan")
    lines = enumerate(whole.read(Path(path), "plan").splitlines(), 1)
    return [_job_of_line(line, f"{path}:{number}", protocol) for number, line in lines if line.strip()]


def _job_of_line(line: str, where: str, protocol: str) -> Job:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON ({error})") from error
    if not isinstance(fields, dict) or "kernel" not in fields:
        raise BadInput(f"{where}: a case is an object with a kernel", field="kernel")
    for outside in ("id", "gpu", "stack"):
        fields.pop(outside, None)
    rows = rows_of().get(str(fields["kernel"]))
    usual = rows.usual if rows else {}
    impl = fields.pop("impl", None) or usual.get(str(fields.get("dtype", "bf16"))) or usual.get("", "vllm")
    pages = str(fields.pop("pages", RANDOM))
    if pages not in PAGE_ORDERS:
        raise BadInput(f"{where}: pages {pages!r} are none of {', '.join(PAGE_ORDERS)}", field="pages")
    return Job(fields, impl, fields.pop("protocol", None) or protocol, pages=pages)


def batches(jobs: Iterable[Job], size: int = BATCH, *, in_order: bool = False) -> list[list[Job]]:
    """Group jobs into batches of one kind and interleave kinds in proportion, so any prefix is balanced. `in_order`
    ends one kind before the next begins, in the order in which `jobs` first names them.
    """
    groups: dict[tuple[str, ...], list[Job]] = defaultdict(list)
    for job in jobs:
        dtype = str(job.case["dtype"]) if _together(job) else ""
        groups[job.family, job.protocol, job.flush, str(job.repeat), dtype].append(job)
    placed = []
    for rank, (kind, members) in enumerate(groups.items() if in_order else sorted(groups.items())):
        cut = _cut(members, size)
        placed += [((i + 0.5) / len(cut) + rank * in_order, kind, part) for i, part in enumerate(cut)]
    return [part for _, _, part in sorted(placed, key=lambda item: item[:2])]


def _together(job: Job) -> Sequence[str]:
    """Fields of jobs that stay in one batch."""
    rows = rows_of().get(job.family)
    return rows.together if rows else ()


def _cut(jobs: list[Job], size: int) -> list[list[Job]]:
    """Jobs of one kind in parts, in random order; each part holds one shape where the family keeps shapes together."""
    rng, together = np.random.default_rng(SEED), _together(jobs[0])
    if not together:
        order = [jobs[i] for i in rng.permutation(len(jobs))]
        return [order[i : i + size] for i in range(0, len(order), size)]
    shapes: dict[tuple[object, ...], list[Job]] = defaultdict(list)
    for job in jobs:
        shapes[tuple(job.case[name] for name in together)].append(job)
    parts = [part[i : i + size] for part in shapes.values() for i in range(0, len(part), size)]
    return [parts[i] for i in rng.permutation(len(parts))]
