"""The serve view under traffic: percentiles, what happens over time, and what the figures are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from pipewave.errors import BadInput
from pipewave.published.answers import deploy, served
from pipewave.published.unstated import Stated
from pipewave.simulate.arrival_files import read_trace
from pipewave.simulate.latency_breakdown import latency_breakdown
from pipewave.simulate.pools import Side
from pipewave.simulate.report import limits_of, over_time
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.speculative import of as speculative_of
from pipewave.simulate.traffic import Traffic, synthetic
from pipewave.web import limits
from pipewave.web.forms import Form, Gpu, Model, Name, WhatIf, cache_dtype, gpu_of, model_of, name_of, query_command

Count = Annotated[int, Field(ge=1, le=limits.TRAFFIC_REQUESTS)]
Engines = Annotated[int, Field(ge=0, le=limits.ENGINES)]
POINTS = 240  # of a timeline
SETTINGS = ("tp", "pp", "ep", "dp", "max_num_batched_tokens", "max_num_seqs")  # named as those of `Setup`
SPLIT = ("tp", "ep", "dp")


class TraceFile(Form):
    """The text of a trace of requests, CSV or JSON lines, and the name of its file."""

    file: Name
    text: Annotated[str, Field(min_length=1, max_length=limits.TRAFFIC_BYTES)]


class TrafficQuery(Form):
    """A deployment and the requests that come to it: at a rate, at a concurrency, as a trace says, or all at once.

    dp: ranks of attention data parallelism. prefill_engines, decode_engines: of a disaggregated deployment; prefill_tp
    to decode_dp: the split of one pool's engines, None as the other's words say. speculative: as `pipewave serve
    --speculative` takes it; a draft model is one that ships with the library.
    settled: figures of the requests of the middle alone, without those that find it empty or leave it so.
    """

    model: Model
    gpu: Gpu
    what_if: WhatIf
    tp: limits.Degree = 1
    pp: limits.Degree = 1
    ep: limits.Degree = 1
    dp: limits.Degree = 1
    prefill_engines: Engines = 0
    decode_engines: Engines = 0
    prefill_tp: limits.Degree | None = None
    prefill_ep: limits.Degree | None = None
    prefill_dp: limits.Degree | None = None
    decode_tp: limits.Degree | None = None
    decode_ep: limits.Degree | None = None
    decode_dp: limits.Degree | None = None
    speculative: Name | None = None
    engine: Name = "vllm"
    kv_cache_dtype: Name | None = None
    max_num_batched_tokens: limits.StepTokens | None = None
    max_num_seqs: limits.StepTokens | None = None
    input_len: limits.InputLen = 1024
    output_len: limits.OutputLen = 128
    requests: Count = 500
    rate: Annotated[float, Field(gt=0, lt=1e6)] | None = None
    concurrency: Count | None = None
    spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    trace: TraceFile | None = None
    settled: bool = False
    ttft_ms: limits.Limit | None = None
    tpot_ms: limits.Limit | None = None
    e2e_ms: limits.Limit | None = None


def traffic_answer(query: TrafficQuery) -> dict[str, Any]:
    """The figures of `pipewave serve --json` with their intervals, the timeline, and the parts of TTFT and TPOT.

    Raises what reading a trace and building a server raise, and BadInput for a run of too many steps.
    """
    traffic = _traffic(query)
    limits.at_most("requests", len(traffic), limits.TRAFFIC_REQUESTS, "requests")
    ready = deploy(_stated(query), traffic)
    asked = limits_of(ttft_ms=query.ttft_ms, tpot_ms=query.tpot_ms, e2e_ms=query.e2e_ms)
    found = served(ready, asked, steady=query.settled, keep_steps=True, most_steps=limits.TRAFFIC_STEPS)
    kept = ready.window(found.record, steady=query.settled)
    return {
        "schema_version": 1,
        "good_share": 1.0,  # without limits
        **found.to_dict(),
        "figures_of": len(traffic) if kept is None else int(kept.sum()),
        "where": latency_breakdown(ready.engines, found.record, traffic, kept),
        "timeline": over_time(found.record, ready.engines.pages, ready.engines.powered, POINTS),
        "basis": {name: round(share, 4) for name, share in ready.engines.basis.items()},
        "notes": list(dict.fromkeys(ready.all_notes)),
        # None for a trace, which is no shell word.
        "command": None if query.trace is not None else query_command("traffic", query),
    }


def _traffic(query: TrafficQuery) -> Traffic:
    pace: dict[str, Any] = {"rate": query.rate, "concurrency": query.concurrency}
    if query.trace is not None:
        return read_trace(query.trace.file, query.trace.text, requests=query.requests, **pace)
    sizes = {"input_len": query.input_len, "output_len": query.output_len}
    return synthetic(query.requests, **sizes, spread=query.spread, seed=query.seed, **pace)


def _stated(query: TrafficQuery) -> Stated:
    """The deployment as the form states it."""
    named: dict[str, Any] = {name: getattr(query, name) for name in SETTINGS}
    setup = Setup(**named, speculative=_drafts(query.speculative), kv_dtype=cache_dtype(query.kv_cache_dtype))
    said = frozenset(["kv_dtype"] if query.kv_cache_dtype else [])
    gpu = gpu_of(query.gpu, query.what_if)
    return Stated(model_of(query.model), gpu, setup, query.engine, said=said, pools=_pools(query))


def _pools(query: TrafficQuery) -> tuple[Side, Side] | None:
    """Both pools where the form has engines for either; what one does not say is as the deployment is split. Raises
    BadInput for a split of a pool without any.
    """
    own = {side: {name: value for name in SPLIT if (value := getattr(query, f"{side}_{name}")) is not None}
           for side in ("prefill", "decode")}  # fmt: skip
    said = [f"{side}_{name}" for side, split in own.items() for name in split]
    workers = {"prefill": query.prefill_engines, "decode": query.decode_engines}
    missing = [f"{side}_engines" for side in own if not workers[side]]
    if len(missing) == len(own) and not said:
        return None
    if missing and said:
        raise BadInput(f"{said[0]} splits engines of a pool: {missing[0]} must be 1 or more", field=missing[0])
    if missing:
        raise BadInput("disaggregation needs at least one prefill and one decode engine", field="prefill")
    usual = {name: getattr(query, name) for name in SPLIT}
    prefill, decode = (Side(workers=workers[side], pp=query.pp, **usual | split) for side, split in own.items())
    return prefill, decode


def _drafts(said: str | None) -> Speculative | None:
    """How tokens are drafted; a draft model by its name, never by a path."""
    if said is None:
        return None
    how = speculative_of(said)
    return replace(how, model=name_of(how.model)) if how.model else how
