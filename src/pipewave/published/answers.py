"""A case answered: its deployment worked out once and kept, its requests simulated, the means a client would see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pipewave.calls.dtypes import cache_type
from pipewave.errors import CannotShard, MissingField
from pipewave.gpus import find as find_gpu
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import ALONE, Parallel
from pipewave.published.cases import Case
from pipewave.published.infer_pools import matched
from pipewave.published.public_launches import engine_of_dynamo
from pipewave.published.published_parallelism import is_disaggregated, read
from pipewave.published.published_pools import launched
from pipewave.published.recipes import Recipe, Requests, assumed_version, release_after
from pipewave.published.recipes import find as recipe_of
from pipewave.simulate.disaggregated import Disaggregated
from pipewave.simulate.estimate import STEP_TOKENS, static_estimate
from pipewave.simulate.interval import hull, sides
from pipewave.simulate.kv_budget import traffic_notes
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.simulation import MOST_STEPS, Record
from pipewave.simulate.speculative import NONE, Speculative
from pipewave.simulate.speculative import of as speculative_of
from pipewave.simulate.static_batch import StaticBatch
from pipewave.simulate.traffic import Traffic
from pipewave.software.engine import names_known_version, numbered
from pipewave.software.front import INSIDE, Front
from pipewave.step import find_engine
from pipewave.step.setting import setting_of

DIGITS = 4
AFFORDED = 0.7  # of the most steps of a run, for those in which engines decode; prompts and requests take others
V0 = "V0"
NIM_ENGINE = "0.17.0"  # of TensorRT-LLM: what the NIMs of early 2025 ran, whose own versions are 1.x
OLD_ENGINES = {"vllm": "0.6.0", "trtllm": "0.12.0"}  # what 2024's runs under that name were
# What a recipe leaves alone, and the field that says it.
SAID = {
    "max_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "kv_dtype": "kv_dtype",
    "gpu_memory_utilization": "memory_fraction",
    "speculative": "speculative",
}
FIELDS = {"max_batched_tokens": "max_num_batched_tokens"}  # of a recipe, as Setup names them
METHOD = "speculative"  # of a recipe: what drafts; the launch of pools says it for them
DRAFTS = "drafts"  # of a recipe: tokens that MTP heads draft where a case names the method alone


def answer(case: Case, front: Front | None = None) -> dict[str, Any]:
    """The answer of the contract, less its id. Raises what building the deployment raises.

    `front`: another front end than the engine's own.
    """
    traffic = case.traffic()
    setup, assumed = setup_of(case, traffic, front)
    if _is_static(case):
        return _static_answer(case, setup, traffic, assumed)
    pools, server = _pools(case, setup, traffic, assumed)
    traffic = _affordable(traffic, pools, assumed)
    together = _together(setup, server)

    def times(scale: float = 1.0) -> dict[str, float]:
        record = pools.record(traffic, scale=scale)
        return _batch(record, traffic) if case.mode == "estimate" else client(record, traffic, together)

    uncertain = replace(pools.uncertain, version_given=version_known(case))
    seen = times()
    intervals = sides(seen, uncertain)
    if case.mode == "serve":
        intervals = hull(intervals, *map(times, uncertain.tried(traffic.concurrency)))
    return {
        **{name: round(value, DIGITS) for name, value in (seen | intervals).items()},
        "kv_tokens": server.memory.kv_tokens,
        "basis": {name: round(share, DIGITS) for name, share in server.table.basis.items()},
        "notes": [*server.notes, *traffic_notes(server.runner, server.kv, traffic), *assumed, uncertain.note()],
    }


def _is_static(case: Case) -> bool:
    """Whether a case is a static batch of equal requests, as `estimate` answers it."""
    alike = case.arrivals is None and not case.spread and not case.prefix_share
    return case.mode == "estimate" and alike and not _disaggregated(case)


def _static_answer(case: Case, setup: Setup, traffic: Traffic, assumed: list[str]) -> dict[str, Any]:
    """What `estimate` says of the batch, in the names of a case's answer."""
    budget = case.max_num_batched_tokens or STEP_TOKENS
    batch = StaticBatch(len(traffic), int(traffic.input_len[0]), int(traffic.output_len[0]), budget)
    gpu, given = find_gpu(case.gpu), version_given(case)
    found = static_estimate(load(case.model), gpu, setup, batch, version_given=given)
    tokens = 1e3 * float(traffic.output_len.sum())
    times: dict[str, float] = {}
    for side, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        ttft, tpot, e2e = (getattr(found, f"{name}_ms{side}") for name in ("prefill", "tpot", "e2e"))
        times |= {f"ttft_ms{side}": ttft, f"tpot_ms{side}": tpot, f"e2e_ms{side}": e2e}
        times[f"output_tokens_per_s{other}"] = tokens / e2e
    times |= {"ttft_p99_ms": found.prefill_ms, "tpot_p99_ms": found.tpot_ms}
    if case.osl is not None and batch.output_len == 1:  # nobody sees a time between tokens
        times = {name: value for name, value in times.items() if not name.startswith("tpot")}
    return {
        **{name: round(value, DIGITS) for name, value in times.items()},
        "kv_tokens": int(found.memory_gib["kv_tokens"]),
        "basis": {name: round(share, DIGITS) for name, share in found.basis.items()},
        "notes": [*found.notes, *assumed],
    }


def _pools(case: Case, setup: Setup, traffic: Traffic, assumed: list[str]) -> tuple[Server | Disaggregated, Server]:
    """What serves the requests, and the server that makes most of their tokens; notes on what was assumed."""
    if case.prefill or case.decode:
        if not (case.prefill and case.decode):
            raise MissingField(
                "disaggregation needs both pools, prefill and decode", field="decode" if case.prefill else "prefill"
            )
        pools = Disaggregated.of(case.model, case.gpu, setup, (case.prefill, case.decode), traffic.longest)
    elif is_disaggregated(case.engine, case.version) if case.disaggregated is None else case.disaggregated:
        known = launched(case.model, case.gpu, setup, case.version or "", case.tp, traffic)
        pools, note = known or matched(case.model, case.gpu, setup, case.tp, traffic)
        assumed.append(note)
    else:
        server = Server.of(case.model, case.gpu, setup, traffic.longest)
        return server, server
    return pools, pools.decode


def _affordable(traffic: Traffic, pools: Server | Disaggregated, assumed: list[str]) -> Traffic:
    """As many of a closed loop's requests as a run can simulate, two waves at least: later waves repeat the first ones.

    Engines side by side run at least the steps of their share of the tokens.
    """
    clients = traffic.concurrency
    if not clients or pools.decoders < 2:
        return traffic
    each = float(traffic.output_len.mean()) * pools.decoders / clients  # steps of a request
    count = max(int(AFFORDED * MOST_STEPS / (each + 1.0)), 2 * clients)
    if count >= len(traffic):
        return traffic
    assumed.append(f"{len(traffic):,} requests take too many steps: the first {count:,} are simulated")
    return traffic.first(count)


def setup_of(case: Case, traffic: Traffic, front: Front | None = None) -> tuple[Setup, list[str]]:
    """How a case's model is served, and what was assumed where it does not say."""
    degrees = read(case.engine, case.tp, case.ep, case.dp, case.gpus)
    version, unknown = _version(case)
    setup = Setup(
        tp=degrees.tp,
        pp=case.pp,
        ep=degrees.ep,
        dp=degrees.dp,
        engine=f"{case.engine}:{version}",
        max_num_batched_tokens=case.max_num_batched_tokens,
        max_num_seqs=case.max_num_seqs,
        gpu_memory_utilization=case.memory_fraction,
        kv_dtype=cache_type(case.kv_dtype),
        front=front if case.mode == "serve" else INSIDE,
    )
    recipe = _recipe(case, case.decode.of(setup) if case.decode else setup, traffic)
    chosen = {FIELDS.get(name, name): value for name, value in recipe.settings.items() if name not in (DRAFTS, METHOD)}
    if how := _drafting(case, recipe):
        chosen[METHOD] = how.drafting(recipe.settings[DRAFTS]) if DRAFTS in recipe.settings else how
        if setup.max_num_seqs is None:  # launches that draft raise an engine's limit for it
            chosen = {"max_num_seqs": find_engine(setup.engine).scheduler.max_requests} | chosen
    notes = [degrees.note] if degrees.note else []
    return replace(setup, **chosen), [*notes, *dict.fromkeys(recipe.notes.values()), *unknown]


def version_given(case: Case) -> bool:
    """Whether a case names its engine's version by number."""
    return bool(numbered(_named(case)))


def version_known(case: Case) -> bool:
    """Whether it names one that has rules or rows of its own."""
    return names_known_version(f"{case.engine}:{_named(case)}")


def _named(case: Case) -> str:
    """The version by number; runs of vLLM's first engine are dated, not numbered, and a NIM has a number of its own."""
    given = case.version or ""
    if is_disaggregated(case.engine, given):
        return engine_of_dynamo(given)
    return NIM_ENGINE if given.startswith("NIM") else OLD_ENGINES.get(case.engine, "") if V0 in given else given


def _version(case: Case) -> tuple[str, list[str]]:
    """The version a case is answered for, and a note where it names none."""
    if version_given(case):
        return _named(case), []
    if became := release_after(case.engine, case.version or ""):
        return became, [f"version {case.version!r} answered as {became}, what it became, and the interval is wider"]
    served = case.mode == "serve"
    version, why = assumed_version(case.engine, load(case.model).model_type) if served else ("", "")
    said = f"version {case.version!r} has no number" if case.version else "version not given"
    return version, [f"{said}: {why or 'its default is assumed'}, and the interval is wider"]


def _recipe(case: Case, setup: Setup, traffic: Traffic) -> Recipe:
    """What published deployments set of what the case leaves out."""
    engine = find_engine(setup.engine)
    spec = load(case.model)
    try:
        parallel = Parallel(setup.tp, setup.pp, setup.ep, setup.dp)
    except CannotShard:
        parallel = ALONE
    setting = setting_of(Deployment(spec, parallel), find_gpu(case.gpu))
    sizes = (
        int(traffic.input_len.max()),
        traffic.concurrency or engine.scheduler.max_requests,
        int(traffic.output_len.max()),
    )
    drafting = case.speculative not in (None, NONE)
    requests = Requests(case.mode, *sizes, version_given=version_given(case), drafting=drafting)
    found = recipe_of(engine.name, engine.version, setting, requests)
    said = {name for name, field in SAID.items() if getattr(case, field) is not None}
    found = found.without(frozenset(said | {METHOD} if _disaggregated(case) else said))
    drafts = _drafting(case, found)
    how = drafts.by(spec) if drafts else None
    return found if how and how.method == "mtp" and how.rates else found.without(frozenset([DRAFTS]))


def _drafting(case: Case, recipe: Recipe) -> Speculative | None:
    """How tokens are drafted: as the case says, else as deployments of its version do."""
    usual = speculative_of(recipe.settings[METHOD]) if METHOD in recipe.settings else None
    return None if case.speculative == NONE else case.speculative or usual


def _disaggregated(case: Case) -> bool:
    """Whether prompts have engines of their own."""
    said = bool(case.prefill or case.decode) if case.disaggregated is None else case.disaggregated
    return said or (case.disaggregated is None and is_disaggregated(case.engine, case.version))


def _together(setup: Setup, server: Server) -> int:
    """Tokens that clients see at once, the first ones too."""
    each = server.drafted.mean if server.drafted and server.runner.engine.scheduler.stream_interval_in_steps else 1.0
    return 1 + round((setup.stream_interval - 1) * each)


def client(record: Record, traffic: Traffic, together: int = 1) -> dict[str, float]:
    """Means over requests, and the slowest in a hundred. Requests of one token have no later ones.

    together: tokens that the server sends at once; the first are seen when the last of them is made. Where no request
    has more, nobody sees a time between tokens, and none is answered.
    """
    ttft, e2e = (1e3 * (when - record.arrival_s) for when in (record.first_s, record.done_s))
    later = traffic.output_len > 1
    held = np.minimum(together, traffic.output_len) - 1
    ttft = ttft + held * (e2e - ttft) / np.maximum(traffic.output_len - 1, 1)
    tpot = (e2e - ttft)[later] / (traffic.output_len[later] - 1)
    span = float(record.done_s.max() - record.arrival_s.min())
    seen = bool(tpot.any())
    slowest = {"tpot_p99_ms": float(np.percentile(tpot, 99))} if seen else {}
    return {
        "ttft_ms": float(ttft.mean()),
        **({"tpot_ms": float(tpot.mean())} if seen else {}),
        "e2e_ms": float(e2e.mean()),
        "output_tokens_per_s": float(traffic.output_len.sum()) / span,
        "ttft_p99_ms": float(np.percentile(ttft, 99)),
        **slowest,
    }


def _batch(record: Record, traffic: Traffic) -> dict[str, float]:
    """A static batch as one: until all have their first token, until all are done, and the tokens between."""
    first, done = 1e3 * float(record.first_s.max()), 1e3 * float(record.done_s.max())
    later = float(traffic.output_len.max()) - 1.0
    between = {"tpot_ms": (done - first) / later, "tpot_p99_ms": (done - first) / later} if later else {}
    rate = 1e3 * float(traffic.output_len.sum()) / done
    return {"ttft_ms": first, **between, "e2e_ms": done, "output_tokens_per_s": rate, "ttft_p99_ms": first}
