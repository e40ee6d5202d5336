"""The designs a plan may choose from: GPUs × splits × cache type, each with a grid of scheduler settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from pipewave.errors import BadInput
from pipewave.models import ModelSpec
from pipewave.models.shard import Parallel
from pipewave.published.unstated import default_engine

TPS = (1, 2, 4, 8)
BUDGETS = (1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)


@dataclass(frozen=True, slots=True)
class Question:
    """What must be served: request lengths, and limits in ms (None = any)."""

    input_len: int
    output_len: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 22:
                raise BadInput(f"{name} = {value!r}: must be an integer from 1 to {1 << 22}", field=name)
        for name in ("ttft_ms", "tpot_ms"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < 1e12:
                raise BadInput(f"{name} = {limit!r}: must be a positive number of ms", field=name)


@dataclass(frozen=True, slots=True)
class Split:
    """One way to put the model on GPUs; all scheduler settings of it are evaluated together."""

    gpu: str
    tp: int = 1
    pp: int = 1
    ep: int = 1
    kv_dtype: str | None = None
    engine: str = field(default_factory=default_engine)
    dp: int = 1
    speculative: str | None = None
    prefill: Split | None = None  # of the engines that run prompts, when this is that of the engines that decode
    workers: tuple[int, int] = (0, 1)  # prefill engines, decode engines

    @property
    def gpus(self) -> int:
        """GPUs of one replica, or of both pools."""
        prompts = self.prefill.parallel.world if self.prefill else 0
        return self.workers[0] * prompts + self.workers[1] * self.parallel.world

    @property
    def parallel(self) -> Parallel:
        """The split without the GPU."""
        return Parallel(self.tp, self.pp, self.ep, self.dp)


@dataclass(frozen=True, slots=True)
class Space:
    """Everything to try.

    `gpus_most` bounds the GPUs of one replica. `dps`: ranks of data-parallel attention, of models with experts, which
    are then spread over all of them. `speculative`: ways to draft (None: no drafts). `disaggregated`: also prefill and
    decode engines apart.
    """

    gpus: tuple[str, ...]
    tps: tuple[int, ...] = TPS
    pps: tuple[int, ...] = (1,)
    experts: bool = True
    kv_dtypes: tuple[str | None, ...] = (None,)
    engines: tuple[str, ...] = field(default_factory=lambda: (default_engine(),))
    budgets: tuple[int, ...] = BUDGETS
    batches: tuple[int, ...] = BATCHES
    gpus_most: int = 64
    dps: tuple[int, ...] = (1,)
    speculative: tuple[str | None, ...] = (None,)
    disaggregated: bool = False

    def __post_init__(self) -> None:
        for name in ("gpus", "tps", "pps", "dps", "kv_dtypes", "engines", "budgets", "batches", "speculative"):
            if not getattr(self, name):
                raise BadInput(f"{name}: must not be empty", field=name)
        for name in ("tps", "pps", "dps", "budgets", "batches"):
            wrong = [v for v in getattr(self, name) if isinstance(v, bool) or not isinstance(v, int) or v < 1]
            if wrong:
                raise BadInput(f"{name} = {wrong[0]!r}: must be positive integers", field=name)

    def splits(self, model: ModelSpec) -> Iterator[Split]:
        """Every split worth a look; whether it divides and fits is found out when it is evaluated."""
        for gpu, engine, kv_dtype, tp, pp in product(self.gpus, self.engines, self.kv_dtypes, self.tps, self.pps):
            for dp in self.dps if model.is_moe else (1,):
                if tp * pp * dp <= self.gpus_most:
                    for ep, drafts in product(self._eps(model, tp * dp), self.speculative):
                        yield Split(gpu, tp, pp, ep, kv_dtype, engine, dp, drafts)

    def _eps(self, model: ModelSpec, group: int) -> Sequence[int]:
        return sorted({1, group}) if self.experts and model.is_moe else (1,)

    def size(self, model: ModelSpec) -> int:
        """Designs in all."""
        return sum(1 for _ in self.splits(model)) * len(self.budgets) * len(self.batches)
