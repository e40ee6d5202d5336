"""Questions beyond one kernel, as functions: what `pipewave serve`, `plan` and `trace` answer on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from pipewave.calls.fields import by_own_names, own_name
from pipewave.errors import BadInput, MissingField, UnknownField, meant_or_known
from pipewave.gpus import GPU, find
from pipewave.models import ModelSource, ModelSpec
from pipewave.models import load as load_model
from pipewave.models.load import quantised
from pipewave.simulate.estimate import Estimate
from pipewave.simulate.estimate import estimate as static_batch
from pipewave.simulate.step_time import step_time as time_of_steps

if TYPE_CHECKING:
    from pipewave.planning import Owned, Plan
    from pipewave.published.answers import Deployed
    from pipewave.published.find_rate import FoundRate
    from pipewave.told.answers import ServeAnswer
    from pipewave.told.tell import Told
    from pipewave.traces import Report

__all__ = ["Model", "estimate", "find_rate", "load_model", "plan", "serve", "step_time", "tell", "trace"]

Model = ModelSpec
LENGTHS = ("input_len", "output_len")
FOUND = ("rate", "concurrency", "arrivals", "requests", "told", "mode")  # fields that find_rate finds, or says itself


F = TypeVar("F", bound=Callable[..., Any])
# What annotations name; numbers and the package's own types are checked where they are used.
KINDS: Mapping[str, Any] = {"str": str, "Path": Path, "Sequence": Sequence, "Mapping": Mapping, "None": NoneType,
                            "Callable": Callable, "Executor": Executor}  # fmt: skip


def typed(function: F) -> F:
    """The function with BadInput for an argument that is of no type that its annotation names."""
    told = {name: re.sub(r"\[.*\]", "", said).split(" | ") for name, said in function.__annotations__.items()}
    kinds = {name: tuple(KINDS[word] for word in words) for name, words in told.items() if KINDS.keys() >= set(words)}
    taken = signature(function)

    @wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for name, value in taken.bind(*args, **given).arguments.items():
            if name in kinds and not isinstance(value, kinds[name]):
                raise BadInput(f"{name} = {value!r:.80}: must be {' or '.join(told[name])}", field=name)
        return function(*args, **given)

    return checked  # type: ignore[return-value]


step_time, static = typed(time_of_steps), typed(static_batch)


@wraps(static_batch)
def estimate(*args: Any, **given: Any) -> Estimate:
    """As `pipewave.simulate.estimate.estimate`; names that others have for its arguments (`isl`) are taken, too."""
    return static(*args, **by_own_names(given, static_batch.__annotations__))


@typed
def serve(model: str | Path, gpu: str, **case: Any) -> ServeAnswer:
    """A deployment under requests, as a client on the same host sees it.

        pw.serve("Llama-3.1-70B", "H200", tp=4, rate=3, input_len=1024, output_len=128).tpot_ms

    Args:
        model: as in `load_model`, by name or path.
        gpu: name or spec file.
        **case: the other fields of `serve --cases`: engine (with its version: `sglang:0.5.14`; the newest vLLM by
            default), tp, pp, ep, mode (`serve`, `estimate`, `offline`), input_len and output_len (mean tokens; the old
            names are isl and osl), spread, concurrency (requests in flight), requests, rate (requests a second),
            arrivals ([seconds, prompt tokens, output tokens] a request), steady (figures of the middle of the run),
            told (measured runs of this deployment or its siblings, which correct the answer), quantize (as of `plan`,
            one word), and the engine's limits.

    Returns:
        Means over requests, each with `_low` and `_high` of its 90 % interval: `ttft_ms`, `tpot_ms`, `e2e_ms` (ms),
        `output_tokens_per_s`; besides `ttft_p99_ms`, `tpot_p99_ms`, `kv_tokens`, `basis`, `traffic` and `notes`.

    Raises:
        UnknownGPU, UnknownModel: no such GPU or model.
        CannotShard: heads, experts or layers do not divide.
        DoesNotFit: weights and one request exceed the memory.
        MissingField, UnknownField, BadInput: a field that cannot be.

    Source: the engine's scheduler, step by step; time of a step as in docs/how-it-works.md.
    """
    from pipewave.published.cases import from_dict
    from pipewave.told.answers import ServeAnswer, answer

    return ServeAnswer.of(answer(from_dict({"model": str(model), "gpu": gpu, **case})))


@typed
def find_rate(
    model: str | Path,
    gpu: str,
    *,
    ttft_ms: float | str | None = None,
    tpot_ms: float | str | None = None,
    e2e_ms: float | str | None = None,
    **case: Any,
) -> FoundRate:
    """The largest rate of requests that a deployment serves within limits.

        pw.find_rate("Llama-3.1-8B", "H200", input_len=1024, output_len=128, ttft_ms="p99=1000", tpot_ms=30).rate_per_s

    Args:
        model: as in `load_model`, by name or path.
        gpu: name or spec file.
        ttft_ms: limit on the time to the first token, ms: on its mean, or on a percentile over requests (`p99=1000`).
        tpot_ms: the same on the time per later token.
        e2e_ms: the same on the whole request. Without any limit the deployment has to keep up only.
        **case: as of `serve`: engine, tp, input_len, output_len, spread and others, without rate, concurrency and told.

    Returns:
        Requests a second with a 90 % interval, what the deployment does at most, and a curve of rate against times.

    Raises:
        BadInput: a limit cannot be; and what `serve` raises.

    Source: runs of `serve` under Poisson arrivals, at rates until two are 1 % apart (docs/serve.md).
    """
    from pipewave.published.answers import deploy
    from pipewave.published.cases import from_dict
    from pipewave.published.find_rate import find_rate as search
    from pipewave.simulate.report import limits_of

    given = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "e2e_ms": e2e_ms}
    case = by_own_names(given | case, given)
    limits = {name: case.pop(name) for name in given}
    if said := next((name for name in case if own_name(name, FOUND) in FOUND), ""):
        raise BadInput(f"find_rate looks for a rate: leave out {said}", field=said)
    asked = from_dict({"model": str(model), "gpu": gpu, "rate": 1.0, "requests": 1, **case})

    def load(rate: float, count: int) -> Deployed:
        return deploy(asked.stated(), replace(asked, rate=rate, requests=count).traffic())

    return search(load, limits_of(**limits))


@typed
def tell(files: str | Path | Sequence[str | Path], *, also: Mapping[str, Any] | None = None, **case: Any) -> Told:
    """What result files say of a deployment.

        found = pw.tell(["result.json"], model="Llama-3.1-8B", gpu="H200")
        pw.serve("Llama-3.1-8B", "H200", input_len=1000, output_len=200, rate=5, told=found.runs)

    Args:
        files: results, by path, of `vllm bench serve`, SGLang's `bench_serving`, `trtllm-bench`, AIPerf, genai-perf,
            GuideLLM, InferenceX, or metrics of a vLLM or SGLang server; or what was told before.
        also: fields of a case that the files leave out, or have otherwise.
        **case: the deployment: model, gpu, engine, version, tp, pp, ep, dp, and other fields of `serve --cases`.

    Returns:
        Runs that `told` takes, and sentences on what they say.

    Raises:
        BadFile: no known tool wrote the file. MissingField: it lacks a load, lengths or every mean.
        UnknownField, BadInput: a field that cannot be.
    """
    from pipewave.told.tell import tell as told

    every = [files] if isinstance(files, (str, Path)) else files
    if not every:
        raise MissingField("files: name a result at least", field="files")
    if wrong := [one for one in every if not isinstance(one, (str, Path))]:
        raise BadInput(f"files: {wrong[0]!r:.80}: must be a path", field="files")
    return told(every, also=also, **case)


@typed
def plan(
    model: ModelSource,
    gpus: str | Sequence[str],
    *,
    arrivals: str | Path | None = None,
    quantize: Sequence[str] = (),
    prices: Mapping[str, float] | None = None,
    owned: Owned | str | Mapping[str, float] | None = None,
    grid_g_per_kwh: float | None = None,
    ignore: Sequence[str] = (),
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    **asked: Any,
) -> Plan:
    """The cheapest designs that serve requests within limits.

        found = pw.plan("Llama-3.1-70B", ["H200", "H100"], input_len=4000, output_len=400, ttft_ms=2000, tpot_ms=50)
        found.to_dict()["winner"]

    Args:
        model: as in `load_model`.
        gpus: names of GPUs to choose among.
        arrivals: file of requests, such as a day of them, whose busiest stretch is the peak; its lengths are used.
        quantize: other weights to try: `fp8`, made of 16-bit weights while they are loaded; `awq`, `nvfp4`, a
            repository, or `published` for all listed checkpoints of the model.
        prices: USD a GPU-hour by GPU, over the shipped ones.
        owned: bought GPUs instead of rented ones, as in `cost`.
        grid_g_per_kwh: grams of CO₂ that the grid emits for a kWh.
        ignore: fields of the model's configuration that are known to change nothing.
        executor: runs designs elsewhere, such as a `ProcessPoolExecutor`.
        progress: called with how many more designs are done, and how many there are.
        **asked: requests and limits, as fields of `pipewave.planning.Question`: input_len and output_len (mean tokens;
            the old names are isl and osl), ttft_ms, tpot_ms and e2e_ms (limits in ms on the mean, or on a percentile
            over requests: `"p99=2000"`), prefix_share. What comes, as those of `Demand`: rate, tokens_per_s, users,
            think_s, budget (USD a month), scale_delay_s; without any a design is one replica at the largest rate that
            it serves within the limits. What to try, as those of `Space`: tps, pps, dps, engines, speculative,
            disaggregated, kv_dtypes, budgets (tokens a step), batches (requests), gpus_most (GPUs of a replica),
            power_limits (W of each board), rack_w and gpus_per_rack.

    Returns:
        All designs, which meet the limits, and the cheapest. A split that cannot be is a reason in it, not an error.

    Raises:
        UnknownGPU, UnknownModel: no such GPU or model.
        MissingField, UnknownField, BadInput: a length, limit or list that is missing, unknown or cannot be.

    Source: a look at each design orders them; those that are named are served as `serve` does, with Poisson arrivals
    at the rate that is shown; cost is GPU-hours times price.
    """
    from pipewave.planning import Demand, Question, Space
    from pipewave.planning import plan as search
    from pipewave.planning.prices import Owned
    from pipewave.simulate.arrival_files import read_trace

    recorded = None if arrivals is None else read_trace(arrivals)
    usual = {} if recorded is None else {name: round(float(getattr(recorded, name).mean())) for name in LENGTHS}
    question, demand, space = _sorted(asked, usual, (Question, Demand, Space))
    variants = quantised(model, quantize, tuple(ignore))
    found = search(
        load_model(model, ignore=tuple(ignore)),
        Question(**question, recorded=recorded),
        Space((gpus,) if isinstance(gpus, str) else tuple(gpus), weights=("", *variants), **space),
        demand=Demand(**demand, arrivals=recorded),
        variants=variants,
        own_prices=prices,
        owned=Owned.of(owned),
        grid_g_per_kwh=grid_g_per_kwh,
        executor=executor,
        progress=progress,
    )
    named = isinstance(model, str) and "/" in model and not Path(model).exists()
    return replace(found, checkpoint=str(model)) if named else found


def _sorted(given: dict[str, Any], usual: Mapping[str, int], kinds: Sequence[Any]) -> list[dict[str, Any]]:
    """The arguments that are fields of each dataclass; `usual`: lengths of recorded requests. Raises UnknownField where
    one is of none, MissingField where a length is not known, and BadInput where it is twice.
    """
    known = [one.name for kind in kinds for one in fields(kind)]
    given = by_own_names(given, known)
    if unknown := next((name for name in given if name not in known), None):
        raise UnknownField(f"plan has no argument {unknown!r};{meant_or_known(unknown, known)}", field=unknown)
    for name in LENGTHS:
        if name in usual and given.get(name) is not None:
            raise BadInput(f"{name}: the file of arrivals says how long requests are; leave it out", field=name)
        if name not in usual and given.get(name) is None:
            raise MissingField(f"missing argument {name!r}: mean tokens of a request", field=name)
    given |= usual
    return [{one.name: given[one.name] for one in fields(kind) if one.name in given} for kind in kinds]


@typed
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
