"""Questions beyond one kernel, as functions: what `pipewave serve`, `plan` and `trace` answer on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipewave.gpus import GPU, find
from pipewave.models import ModelSpec, load
from pipewave.serving.estimate import estimate

if TYPE_CHECKING:
    from pipewave.planning import Plan
    from pipewave.traces import Report

__all__ = ["Model", "estimate", "load_model", "plan", "serve", "trace"]

Model = ModelSpec


def load_model(model: str | Path | Mapping[str, Any]) -> ModelSpec:
    """A model by built-in name, Hugging Face name in the local cache, config.json or its parsed content.

    Raises UnknownModel, UnsupportedModel or BadFile. Nothing is downloaded.
    """
    return load(model)


def serve(model: str | Path, gpu: str, **case: Any) -> dict[str, Any]:
    """A deployment under requests, as a client on the same host sees it.

    `case` holds the other fields of `serve --cases`: engine, version, tp, pp, ep, mode (serve, estimate, offline), isl
    and osl (mean tokens), spread, concurrency, requests, rate (a second), arrivals ([seconds, prompt tokens, output
    tokens] a request) and the engine's limits. Returns means over requests with 90 % intervals: `ttft_ms`, `tpot_ms`,
    `e2e_ms`, `output_tokens_per_s`, their `_low` and `_high`, `ttft_p99_ms`, `tpot_p99_ms`, `kv_tokens`, `basis` and
    `notes`.

    Raises UnknownGPU, UnknownModel, CannotShard, DoesNotFit, MissingField, UnknownField or BadInput.
    """
    from pipewave.serving.answers import answer
    from pipewave.serving.cases import from_dict

    return answer(from_dict({"model": str(model), "gpu": gpu, **case}))


def plan(
    model: str | Path | Mapping[str, Any] | ModelSpec,
    gpus: str | Sequence[str],
    *,
    isl: int,
    osl: int,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    prices: Mapping[str, float] | None = None,
    **space: Any,
) -> Plan:
    """The cheapest designs that serve requests of `isl` prompt and `osl` output tokens within limits on means in ms.

    `prices`: USD a GPU-hour by GPU, over the shipped ones. `space` holds fields of `pipewave.planning.Space`: tps, pps,
    engines, kv_dtypes, budgets (tokens a step), batches (requests), gpus_most. Raises UnknownGPU, UnknownModel or
    BadInput; a split that cannot be is a reason in the answer.
    """
    from pipewave.planning import Question, Space
    from pipewave.planning import plan as search

    tried = Space((gpus,) if isinstance(gpus, str) else tuple(gpus), **space)
    return search(load(model), Question(isl, osl, ttft_ms, tpot_ms), tried, own_prices=prices)


def trace(file: str | Path, *, gpu: str | GPU | None = None, protocol: str | None = None, **known: Any) -> Report:
    """Measured, predicted and reachable time of every kernel call of a profile (torch.profiler or `ncu --csv`).

    `gpu` defaults to the trace's own. `known` holds what a trace may not say, as fields of
    `pipewave.traces.Workload`: deployment, given (lengths of requests), engine. Raises BadFile, UnknownGPU or
    MissingField.
    """
    from pipewave.traces import Workload, explain_trace

    card = None if gpu is None else find(gpu)
    return explain_trace(file, gpu=card, protocol=protocol, workload=Workload(**known))
