"""Questions beyond one kernel, as functions: what `pipewave serve`, `plan` and `trace` answer on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipewave.gpus import GPU, find
from pipewave.models import ModelSpec, load
from pipewave.simulate.estimate import estimate
from pipewave.simulate.step_time import step_time

if TYPE_CHECKING:
    from pipewave.planning import Plan
    from pipewave.traces import Report

__all__ = ["Model", "estimate", "load_model", "plan", "serve", "step_time", "trace"]

Model = ModelSpec


def load_model(model: str | Path | Mapping[str, Any]) -> ModelSpec:
    """A model from its configuration. Nothing is downloaded.

    Args:
        model: built-in name, Hugging Face name in the local cache, a `config.json` or a folder with one, or its parsed
            content.

    Returns:
        The model as layers and their parts; widths in elements.

    Raises:
        UnknownModel: no model of that name.
        UnsupportedModel: a field changes the computation and is not modelled.
        BadFile: the file cannot be read.
    """
    return load(model)


def serve(model: str | Path, gpu: str, **case: Any) -> dict[str, Any]:
    """A deployment under requests, as a client on the same host sees it.

    Args:
        model: as in `load_model`, by name or path.
        gpu: name or spec file.
        **case: the other fields of `serve --cases`: engine, version, tp, pp, ep, mode (`serve`, `estimate`, `offline`),
            isl and osl (mean tokens), spread, concurrency, requests, rate (requests a second), arrivals ([seconds,
            prompt tokens, output tokens] a request), and the engine's limits.

    Returns:
        Means over requests, each with `_low` and `_high` of its 90 % interval: `ttft_ms`, `tpot_ms`, `e2e_ms` (ms),
        `output_tokens_per_s`; besides `ttft_p99_ms`, `tpot_p99_ms`, `kv_tokens`, `basis` and `notes`.

    Raises:
        UnknownGPU, UnknownModel: no such GPU or model.
        CannotShard: heads, experts or layers do not divide.
        DoesNotFit: weights and one request exceed the memory.
        MissingField, UnknownField, BadInput: a field that cannot be.

    Source: the engine's scheduler, step by step; time of a step as in docs/how-it-works.md.
    """
    from pipewave.published.answers import answer
    from pipewave.published.cases import from_dict

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
    """The cheapest designs that serve requests within limits.

    Args:
        model: as in `load_model`.
        gpus: names of GPUs to choose among.
        isl: prompt tokens of a request.
        osl: output tokens of a request.
        ttft_ms: limit on the mean time to the first token, ms.
        tpot_ms: limit on the mean time of an output token, ms.
        prices: USD a GPU-hour by GPU, over the shipped ones.
        **space: what to try, as fields of `pipewave.planning.Space`: tps, pps, engines, kv_dtypes, budgets (tokens a
            step), batches (requests), gpus_most (GPUs of a replica).

    Returns:
        All designs, which meet the limits, and the cheapest. A split that cannot be is a reason in it, not an error.

    Raises:
        UnknownGPU, UnknownModel: no such GPU or model.
        BadInput: a length, limit or list that cannot be.

    Source: each design is answered as by `estimate`; cost is GPU-hours times price over output tokens.
    """
    from pipewave.planning import Question, Space
    from pipewave.planning import plan as search

    tried = Space((gpus,) if isinstance(gpus, str) else tuple(gpus), **space)
    return search(load(model), Question(isl, osl, ttft_ms, tpot_ms), tried, own_prices=prices)


def trace(file: str | Path, *, gpu: str | GPU | None = None, protocol: str | None = None, **known: Any) -> Report:
    """Measured, predicted and reachable time of every kernel call of a profile.

    Args:
        file: a trace of torch.profiler (`.json`, `.json.gz`) or a table of `ncu --csv`.
        gpu: name, spec file or `GPU`; the trace's own by default.
        protocol: `serving` by default; `cold` for a table of ncu.
        **known: what a trace may not say, as fields of `pipewave.traces.Workload`: deployment, given (lengths of
            requests), engine.

    Returns:
        One entry a call, ranked by recoverable time; times in µs.

    Raises:
        BadFile: the file is no profile.
        UnknownGPU, MissingField: the trace names no GPU that is known.

    Source: recoverable = calls · max(measured − ceiling, 0) (docs/trace.md).
    """
    from pipewave.traces import Workload, explain_trace

    spec = None if gpu is None else find(gpu)
    return explain_trace(file, gpu=spec, protocol=protocol, workload=Workload(**known))
