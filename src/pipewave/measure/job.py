"""One thing to measure: a case of the public contract, an implementation and a protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipewave.kernels import rows_of

Case = Mapping[str, Any]
RANDOM = "random"  # where the pages of a cache lie unless said
PAGE_ORDERS = ("scattered", RANDOM, "in_order")
FAKE_GPU = "fake"  # what the environment of the rehearsing device calls its GPU


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
        out: dict[str, Any] = {"key": self.key, "case": dict(self.case), "impl": self.impl, "protocol": self.protocol}
        if self.repeat:
            out["repeat"] = self.repeat
        if self.flush != "write":
            out["flush"] = self.flush
        if self.pages != RANDOM:
            out["pages"] = self.pages
        return out


FLOPS = {"bf16": 500e12, "fp16": 500e12, "fp8": 900e12, "fp8_block": 700e12, "int8": 900e12}
DRAM_BYTES_PER_S = 2.5e12
LAUNCH_S = 3e-6


def rough_us(case: Case) -> float:
    """Order-of-magnitude latency of a case in microseconds, for skipping long ones and for the ETA."""
    rows = rows_of().get(str(case["kernel"]))
    flops, bytes_moved = rows.work(case) if rows and rows.work else (0.0, float(case.get("bytes", 0)))
    seconds = max(flops / FLOPS[case.get("dtype", "bf16")], bytes_moved / DRAM_BYTES_PER_S)
    return (seconds + LAUNCH_S) * 1e6
