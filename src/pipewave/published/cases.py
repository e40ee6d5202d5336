"""One line of `serve --cases`: a deployment, its requests, and how they were sent; checked field by field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipewave.calls.dtypes import cache_type
from pipewave.calls.fields import Rule, by_own_names, check_names, of, own_name, rules
from pipewave.errors import BadInput, MissingField
from pipewave.gpus import find as find_gpu
from pipewave.models.load import load_as
from pipewave.physics.demand import Array
from pipewave.physics.power import limited
from pipewave.prediction.jsonl import check_id, json_object
from pipewave.published.unstated import Stated
from pipewave.simulate.pools import Side, side_of
from pipewave.simulate.setup import AS_PREDICTED, MOST, Pace, Setup
from pipewave.simulate.speculative import NONE, Speculative
from pipewave.simulate.speculative import of as speculative_of
from pipewave.simulate.traffic import LONGEST, Traffic, synthetic, usual_count
from pipewave.software.front import INSIDE, Front

MODES = ("serve", "estimate", "offline")
LONGEST_LINE = 64_000_000  # characters; a list of a million arrivals fits
DEGREE: dict[str, Any] = {"low": 1, "high": 4096}
COUNT: dict[str, Any] = {"low": 1, "high": 10_000_000}
ECHOED = frozenset({"id"})
MEASURED = ("ttft_ms", "tpot_ms", "output_tokens_per_s", "energy_j_per_output_token", "e2e_ms")  # what may be told
MOST_TOLD = 64  # runs; more say nothing new
PACE = ("concurrency", "rate")
LOAD = (*PACE, "isl", "osl", "spread", "requests")  # what a list of arrivals stands for
MEAN = Rule("float", low=1e-6, high=1e9)
ARRIVAL = (Rule("float", low=0, high=1e9), Rule("int", high=LONGEST), Rule("int", high=LONGEST))


@dataclass(frozen=True, slots=True)
class _Read:
    """The rule of a field that is neither number nor word: a function of its value and name, which raises BadInput."""

    read: Callable[[Any, str], Any]

    def check(self, name: str, value: Any) -> Any:
        """What the field holds."""
        return self.read(value, name)


def _arrivals(value: Any, name: str) -> tuple[tuple[float, int, int], ...]:
    """Rows of [seconds, prompt tokens, output tokens] in order of arrival."""
    if not isinstance(value, list) or not value:
        raise BadInput(f"{name}: must be a list of [seconds, prompt tokens, output tokens]", field=name)
    rows = []
    for i, row in enumerate(value):
        where = f"{name}[{i}]"
        if not isinstance(row, list) or len(row) != len(ARRIVAL):
            raise BadInput(f"{where} = {str(row)[:60]}: must be [seconds, prompt tokens, output tokens]", field=where)
        seconds, prompt, output = (rule.check(where, item) for rule, item in zip(ARRIVAL, row, strict=True))
        rows.append((seconds, prompt, output))
    return tuple(sorted(rows))


def _rate(value: Any, name: str) -> float:
    """Requests a second; `inf`: all at once, as clients of benchmarks write it."""
    if value == math.inf or (isinstance(value, str) and value.lower() in ("inf", "infinity")):
        return math.inf
    try:
        return float(MEAN.check(name, value))
    except BadInput as wrong:
        raise BadInput(f"{wrong.message}, or inf", field=name) from wrong


def _speculative(value: Any, _name: str) -> Speculative:
    """{method, tokens, acceptance}, or the same as text; method none: certainly nothing is drafted."""
    if value in (NONE.method, {"method": NONE.method}):
        return NONE
    try:
        return speculative_of(value)
    except BadInput as wrong:
        raise type(wrong)(f"{wrong.message}; or {NONE.method}: nothing is drafted", field=wrong.field) from wrong


def _told_runs(value: Any, name: str) -> list[Mapping[str, Any]]:
    """Objects that `_told` reads beside the case."""
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MOST_TOLD:
        raise BadInput(f"{name}: must be a list of 1 to {MOST_TOLD} measured runs", field=name)
    for i, row in enumerate(value):
        if not isinstance(row, Mapping):
            raise BadInput(f"{name}[{i}] = {str(row)[:60]}: must be an object of fields and means", field=name)
    return list(value)


@dataclass(frozen=True, slots=True)
class Case:
    """A deployment under requests, as the contract names the fields; None: unsaid (`published.unstated` fills it)."""

    model: str = of("str")
    gpu: str = of("str")
    engine: str | None = of("str", None)
    version: str | None = of("str", None)
    tp: int = of("int", 1, **DEGREE)
    pp: int = of("int", 1, **DEGREE)
    ep: int = of("int", 1, **DEGREE)
    dp: int = of("int", 1, **DEGREE)
    dcp: int = of("int", 1, **DEGREE)
    gpus: int | None = of("int", None, **DEGREE)  # of a replica, where tables leave open what they count twice
    mode: str = of("str", "serve", choices=MODES)
    isl: float | None = of("float", None, low=1, high=LONGEST)  # mean tokens, as osl
    osl: float | None = of("float", None, low=1, high=LONGEST)
    spread: float = of("float", 0.0, low=0, high=0.999)  # lengths are uniform within ± this share
    concurrency: int | None = of("int", None, low=1, high=1 << 20)
    requests: int | None = of("int", None, **COUNT)
    rate: float | None = field(
        default=None, metadata={"rule": _Read(_rate)}, kw_only=True
    )  # a second; inf: all at once
    steady: bool = of("bool", False)  # means of the middle of the run, where the load neither builds up nor drains
    max_num_seqs: int | None = of("int", None, low=1, high=MOST["max_num_seqs"])
    max_num_batched_tokens: int | None = of("int", None, low=1, high=1 << 20)
    memory_fraction: float | None = of("float", None, low=0.01, high=1)
    kv_dtype: str | None = of("str", None)
    quantize: str | None = of("str", None)  # other weights of the model, as `pipewave.models.load.load_as` takes them
    power_limit_w: float | None = of("float", None, low=1, high=1e5)  # of each board; None: the part's own
    prefix_share: float = of("float", 0.0, low=0, high=1)  # of a prompt, found in the cache
    arrivals: tuple[tuple[float, int, int], ...] | None = field(
        default=None, metadata={"rule": _Read(_arrivals)}, kw_only=True
    )
    disaggregated: bool | None = of("bool", None)  # prompts have engines of their own, which nothing tells
    prefill: Side | None = field(default=None, metadata={"rule": _Read(side_of)}, kw_only=True)
    decode: Side | None = field(default=None, metadata={"rule": _Read(side_of)}, kw_only=True)
    speculative: Speculative | None = field(default=None, metadata={"rule": _Read(_speculative)}, kw_only=True)
    told: tuple[Measured, ...] = field(default=(), metadata={"rule": _Read(_told_runs)}, kw_only=True)

    @property
    def deployment(self) -> tuple[Any, ...]:
        """What cases must share to share their step times."""
        split = (self.tp, self.pp, self.ep, self.dp, self.dcp, self.gpus)
        program = (self.engine, self.version, self.kv_dtype, self.max_num_batched_tokens, self.speculative)
        pools = (self.disaggregated, self.prefill, self.decode)
        return (self.model, self.quantize, self.gpu, self.power_limit_w, *split, *program, *pools)

    def stated(self, front: Front | None = None, pace: Pace = AS_PREDICTED) -> Stated:
        """The deployment; `front`: another front end than the engine's own; `pace`: of the machine. Raises what `load`
        raises.
        """
        names = ("tp", "pp", "ep", "dp", "dcp", "max_num_batched_tokens", "max_num_seqs", "speculative")
        setup = Setup(
            **{name: getattr(self, name) for name in names},
            gpu_memory_utilization=self.memory_fraction,
            kv_dtype=self.kv_dtype and cache_type(self.kv_dtype),
            front=front if self.mode == "serve" else INSIDE,
            pace=pace,
        )
        return Stated(
            load_as(self.model, self.quantize, self.engine),
            limited(find_gpu(self.gpu), self.power_limit_w) if self.power_limit_w else self.gpu,
            setup,
            self.engine,
            self.version,
            self.mode,
            frozenset() if self.kv_dtype is None else frozenset(["kv_dtype"]),
            self.gpus,
            (self.prefill, self.decode) if self.prefill or self.decode else None,
            self.disaggregated,
        )

    @property
    def unused(self) -> tuple[str, ...]:
        """A note where fields of the load change nothing beside others."""
        listed, queued = self.arrivals is not None, self.mode != "serve"
        idle = [name for name in LOAD if getattr(self, name) and (listed or (queued and name == "rate"))]
        said = f"without effect beside {'a list of arrivals' if listed else f'mode {self.mode}'}: {', '.join(idle)}"
        return (said,) if idle else ()

    def traffic(self, seed: int = 0) -> Traffic:
        """The requests: drawn, or as listed. Raises MissingField where nothing says how many or how long they are."""
        requests = self._drawn(seed) if self.arrivals is None else self._listed(self.arrivals)
        return requests.with_prefix(self.prefix_share) if self.prefix_share else requests

    def _listed(self, arrivals: tuple[tuple[float, int, int], ...]) -> Traffic:
        """Requests as listed; where their times do not count, all at once."""
        table = np.array(arrivals, float)
        times: Array = (table[:, 0] - table[0, 0]) * (self.mode == "serve")
        return Traffic(times, table[:, 1].astype(np.int64), table[:, 2].astype(np.int64))

    def _drawn(self, seed: int) -> Traffic:
        isl, osl = self._said("isl", "mean prompt tokens"), self._said("osl", "mean output tokens")
        sizes = {"input_len": max(round(isl), 1), "output_len": max(round(osl), 1)}
        if self.mode == "estimate":
            count = int(self._said("concurrency", "requests of the batch"))
        else:
            if self.rate is None:
                self._said("requests" if self.requests else "concurrency", "requests in flight, or give a rate")
            count = self.requests or usual_count(self.concurrency)
        paced = self.mode == "serve"  # with neither, as offline, all come at once
        pace: dict[str, Any] = {"concurrency": self.concurrency, "rate": None if self.rate == math.inf else self.rate}
        return synthetic(count, **sizes, **pace if paced else {}, spread=self.spread, seed=seed)

    def _said(self, name: str, what: str) -> float:
        value: float | None = getattr(self, name)
        if value is None:
            raise MissingField(f"missing field {name!r}: {what}", field=name)
        return value


@dataclass(frozen=True, slots=True)
class Measured:
    """A run that was measured: its deployment and requests, and its means by name (`MEASURED`)."""

    case: Case
    means: tuple[tuple[str, float], ...]


def parse(line: str) -> tuple[Any, Case | BadInput]:
    """(id, case) of a line, or (id, what is wrong with it); id is None where the line cannot be read at all."""
    try:
        given = json_object(line, LONGEST_LINE)
        check_id(given)
    except BadInput as problem:
        return None, problem
    try:
        return given.get("id"), from_dict(given)
    except BadInput as problem:
        return given.get("id"), problem


def from_dict(given: Mapping[str, Any]) -> Case:
    """A case from its decoded line; null counts as missing. Raises UnknownField, MissingField or BadInput."""
    said = {name: value for name, value in by_own_names(given, rules(Case)).items() if value is not None}
    check_names(Case, list(said), ECHOED)
    checked = {name: rule.check(name, said[name]) for name, rule in rules(Case).items() if name in said}
    rows = checked.pop("told", [])
    return Case(**checked, told=tuple(_told(f"told[{i}]", row, said) for i, row in enumerate(rows)))


def _told(where: str, row: Mapping[str, Any], said: Mapping[str, Any]) -> Measured:
    """A told run: its own fields, what it leaves out as the case says it (null: unsaid; a pace is one), and means."""
    means = {name: MEAN.check(f"{where}.{name}", row[name]) for name in MEASURED if row.get(name) is not None}
    if not means:
        raise MissingField(f"{where}: holds no measured mean; give one of {', '.join(MEASURED)}", field=where)
    own = {own_name(name, rules(Case)): value for name, value in row.items() if name not in MEASURED}
    given = {name for name in LOAD if own.get(name) is not None}
    left = {"told", *(("arrivals",) if given else ()), *(PACE if given & set(PACE) else ())}
    inherited = {name: value for name, value in said.items() if name not in left}
    try:
        return Measured(from_dict(inherited | own), tuple(means.items()))
    except BadInput as wrong:
        raise type(wrong)(f"{where}: {wrong.message}", field=f"{where}.{wrong.field}") from wrong
