"""What is asked of a plan, and the deployments that it may choose from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from pipewave.calls.fields import check_whole, is_number
from pipewave.errors import BadInput, PipewaveError
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.kernels.collective.fabric import joined
from pipewave.models import ModelSpec
from pipewave.models.shard import Parallel, copies_of_keys, stage_bytes
from pipewave.physics.power import limited
from pipewave.planning.manifests import platform_of
from pipewave.published.unstated import default_engine, newest
from pipewave.simulate.report import Limit, limits_of
from pipewave.simulate.traffic import Traffic, check_spread, synthetic
from pipewave.software.engine import parts
from pipewave.software.engine_rules import NAMES as ENGINE_NAMES
from pipewave.step import find_engine
from pipewave.step.memory import GIB

SPREAD = 0.5  # of lengths over their mean, where no file of arrivals says them
DEGREES = (1, 2, 4, 8)  # of a node; ranks of attention data parallelism go on while NVLink joins the GPUs
WIDEST = 32  # GPUs of one engine that the default search tries, in an NVLink rack or where a node does not do
DRAFTS = ("method=mtp,tokens=1", "method=mtp,tokens=3")  # of a model that has heads for them
OWN = ("budgets", "batches")  # lists that hold None for the engine's own
USUAL = ("tps", "pps", "dps", "engines", "speculative")  # lists in whose place None stands for the usual ones
WEIGHTS = 0.85  # of a GPU's memory, beyond which weights leave no cache worth having


@dataclass(frozen=True, slots=True)
class Question:
    """What is served: mean lengths of requests, and limits on their times (None: any).

    A limit in ms is one on the mean; `p99=2000` one on a percentile over requests.
    """

    input_len: int
    output_len: int
    ttft_ms: float | str | None = None
    tpot_ms: float | str | None = None
    e2e_ms: float | str | None = None
    prefix_share: float = 0.0  # of each prompt, found in the prefix cache
    spread: float = SPREAD  # lengths are uniform within ± this share
    recorded: Traffic | None = None  # requests whose lengths are drawn instead

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            check_whole(name, getattr(self, name), high=1 << 22)
        if not (is_number(self.prefix_share) and 0 <= self.prefix_share <= 1):
            raise BadInput(f"prefix_share = {self.prefix_share!r}: must be from 0 to 1", field="prefix_share")
        check_spread(self.spread)
        assert self.limits is not None  # read them once: BadInput names a wrong one

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that were given."""
        return limits_of(ttft_ms=self.ttft_ms, tpot_ms=self.tpot_ms, e2e_ms=self.e2e_ms)

    def limit(self, metric: str) -> Limit | None:
        """The limit on a metric."""
        return next((one for one in self.limits if one.metric == metric), None)

    @property
    def longest_prompt(self) -> int:
        """Most tokens of a prompt."""
        if self.recorded is not None:
            return int(self.recorded.input_len.max())
        return int(self.input_len * (1 + self.spread))

    @property
    def longest(self) -> int:
        """Most tokens of a request, prompt and output."""
        if self.recorded is not None:
            return self.recorded.longest
        return int((self.input_len + self.output_len) * (1 + self.spread))

    def traffic(self, requests: int, rate: float, seed: int = 0) -> Traffic:
        """Poisson arrivals of such requests."""
        sizes = {"input_len": self.input_len, "output_len": self.output_len}
        drawn = synthetic(requests, **sizes, rate=rate, spread=self.spread, seed=seed)
        if self.recorded is not None:
            from numpy.random import default_rng

            which = default_rng(seed).integers(0, len(self.recorded), requests)
            prompts, outputs = self.recorded.input_len[which], self.recorded.output_len[which]
            drawn = replace(drawn, input_len=prompts, output_len=outputs)
        return drawn.with_prefix(self.prefix_share) if self.prefix_share else drawn


@dataclass(frozen=True, slots=True)
class Split:
    """One way to deploy the model: GPUs, parallelism, engine and its settings (None: the engine's own)."""

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
    max_num_seqs: int | None = None  # of an engine's data-parallel rank
    max_num_batched_tokens: int | None = None
    weights: str = ""  # a quantised checkpoint of the model, by name; empty for the model as asked
    power_limit_w: float | None = None  # of each board; None: the part's own
    dcp: int = 1

    @property
    def card(self) -> GPU:
        """The GPU under its power limit."""
        return limited(find_gpu(self.gpu), self.power_limit_w)

    @property
    def board(self) -> tuple[str, float | None]:
        """What is compared first: a GPU under a power limit."""
        return self.gpu, self.power_limit_w

    @property
    def gpus(self) -> int:
        """GPUs of one replica, or of both pools."""
        return sum(self.by_gpu.values())

    @property
    def by_gpu(self) -> dict[str, int]:
        """GPUs of one replica by their name."""
        found = {self.gpu: self.workers[1] * self.parallel.world}
        if self.prefill:
            more = self.workers[0] * self.prefill.parallel.world
            found[self.prefill.gpu] = found.get(self.prefill.gpu, 0) + more
        return found

    @property
    def parallel(self) -> Parallel:
        """The split without the GPU."""
        return Parallel(self.tp, self.pp, self.ep, self.dp, self.dcp)

    @property
    def label(self) -> str:
        """A split in a few words."""
        wide = "".join(f" {name}{n}" for name, n in (("dp", self.dp), ("dcp", self.dcp)) if n > 1)
        limit = f" {self.power_limit_w:g} W" if self.power_limit_w else ""
        return f"{self.gpu}{limit} tp{self.tp} pp{self.pp} ep{self.ep}{wide} {self.engine}"


@dataclass(frozen=True, slots=True)
class Space:
    """Everything to try; None: what the default search tries of it.

    `gpus_most` bounds the GPUs of one replica. `dps`: ranks of data-parallel attention, of models with experts, which
    are then spread over all of them. `speculative`: ways to draft (None among them: no drafts). `weights`: quantised
    checkpoints of the model by name, the model itself as an empty name. `power_limits`: of each board, W (None: its
    own). `gpus_per_rack` boards may draw `rack_w` together, so each is held to its share.
    """

    gpus: tuple[str, ...]
    tps: tuple[int, ...] | None = None
    pps: tuple[int, ...] | None = None
    experts: bool = True
    kv_dtypes: tuple[str | None, ...] = (None,)
    engines: tuple[str, ...] | None = None
    budgets: tuple[int | None, ...] = (None,)
    batches: tuple[int | None, ...] = (None,)
    gpus_most: int = 64
    dps: tuple[int, ...] | None = None
    speculative: tuple[str | None, ...] | None = None
    disaggregated: bool = True
    weights: tuple[str, ...] = ("",)
    power_limits: tuple[float | None, ...] = (None,)
    rack_w: float | None = None
    gpus_per_rack: int | None = None

    def __post_init__(self) -> None:
        lists = ("gpus", "tps", "pps", "dps", "kv_dtypes", "engines", "budgets", "batches", "speculative", "weights",
                 "power_limits")  # fmt: skip
        for name in lists:
            value = getattr(self, name)
            if value is None and name in USUAL:
                continue
            if isinstance(value, str) or not isinstance(value, Sequence) or not value:
                raise BadInput(f"{name} = {value!r}: must be a list of what to try, not empty", field=name)
        for name in ("tps", "pps", "dps", "budgets", "batches"):
            for value in getattr(self, name) or ():
                if not (value is None and name in OWN):
                    check_whole(name, value)
        if wrong := [one for one in self.power_limits if not (one is None or (is_number(one) and 0 < one < 1e9))]:
            raise BadInput(f"power_limits = {wrong[0]!r}: must be W of a board", field="power_limits")
        check_whole("max_gpus", self.gpus_most)
        if (self.rack_w is None) != (self.gpus_per_rack is None):
            raise BadInput("max_power_per_rack and gpus_per_rack go together: say both", field="gpus_per_rack")
        if self.rack_w is not None:
            check_whole("gpus_per_rack", self.gpus_per_rack)
            if not 0 < self.rack_w < 1e9:
                raise BadInput(f"rack_w = {self.rack_w!r}: must be above 0 and below 1e9", field="rack_w")

    def limits_on(self, gpu: GPU) -> Iterator[float | None]:
        """Power limits to try on a GPU: none above its own or above its share of a rack's power."""
        share = self.rack_w / self.gpus_per_rack if self.rack_w and self.gpus_per_rack else math.inf
        for limit in dict.fromkeys(min(asked or gpu.tdp_w, gpu.tdp_w, share) for asked in self.power_limits):
            yield limit if limit < gpu.tdp_w else None

    def drafts(self, model: ModelSpec) -> tuple[str | None, ...]:
        """Ways to draft: by the model's own heads, where it has some."""
        if self.speculative is not None:
            return self.speculative
        return (None, *DRAFTS) if model.mtp_heads else (None,)

    def splits(self, model: ModelSpec, gpu: str, weights: str = "") -> Iterator[Split]:
        """Every split of a GPU worth a look, without drafts; whether it divides and fits is found out later.

        Engines that no node holds are tried over several: the default search adds pipeline stages and further ranks.
        """
        hardware = find_gpu(gpu)
        for engine, kv_dtype, limit in product(self.engines_on(gpu), self.kv_dtypes, self.limits_on(hardware)):
            for tp, pp, dp in self._degrees(model, hardware):
                eps = sorted({1, tp * dp} if dp == 1 else {tp * dp}) if self.experts and model.is_moe else [1]
                dcps = _parted(model, tp, engine, kv_dtype) if tp * pp * dp <= self.gpus_most else ()
                for ep, dcp in product(eps, dcps):
                    yield Split(gpu, tp, pp, ep, kv_dtype, engine, dp, weights=weights, power_limit_w=limit, dcp=dcp)

    def settings(self) -> Iterator[dict[str, Any]]:
        """Limits of the scheduler to try."""
        for budget, batch in product(self.budgets, self.batches):
            yield {"max_num_batched_tokens": budget, "max_num_seqs": batch}

    def engines_on(self, gpu: str) -> tuple[str, ...]:
        """The engines asked for, or all that run on a GPU; the newest version, which is launched, of those without."""
        if self.engines is not None:
            bare = {one: find_engine(one) for one in self.engines if not parts(one)[1]}
            return tuple(f"{bare[one].name}:{bare[one].version}" if one in bare else one for one in self.engines)
        found = []
        for name in ENGINE_NAMES:
            with suppress(PipewaveError):
                engine = f"{name}:{newest(name)}"
                platform_of(gpu, find_engine(engine).name)
                found.append(engine)
        return tuple(found)

    def _degrees(self, model: ModelSpec, gpu: GPU) -> Iterator[tuple[int, int, int]]:
        node = max(gpu.gpus_per_node, 1)
        wide = [n for n in (16, WIDEST) if n <= max(joined(gpu), node)]
        usual = [n for n in DEGREES if n <= max(node, joined(gpu))]
        tps, dps = self.tps or tuple(usual), self.dps
        for tp, pp in product(tps, self.pps or (1,)):
            yield from ((tp, pp, dp) for dp in dps or (1,) if dp == 1 or model.is_moe)
        if dps is None and model.is_moe and self.experts and 1 in tps:
            yield from ((1, pp, dp) for dp in (*usual[1:], *wide) for pp in self.pps or (1,))
        whole = Parallel(usual[-1], 1, usual[-1] if model.is_moe else 1)
        too_large = stage_bytes(model, whole, 0) / GIB > WEIGHTS * gpu.dram_gib  # for a node's GPUs
        if self.tps is None and self.pps is None and too_large:
            yield from ((usual[-1], pp, 1) for pp in (2, 4))
            if model.is_moe and self.experts and dps is None:
                yield from ((1, 1, dp) for dp in (16, WIDEST) if dp not in wide)


def _parted(model: ModelSpec, tp: int, engine: str, kv_dtype: str | None) -> Sequence[int]:
    """Degrees of decode context parallelism: none, or all ranks that hold the same keys, of 16 bits as vLLM asks."""
    with suppress(PipewaveError):  # a version that is none is refused when it is looked at
        if not kv_dtype and find_engine(engine).kernels.parts_caches:
            return sorted({1, copies_of_keys(model, tp)})
    return (1,)
