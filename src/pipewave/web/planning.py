"""The plan view: which GPU, which split, which settings, and what every other design would have been."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pipewave.errors import BadInput
from pipewave.gpus import names
from pipewave.gpus.registry import knowing
from pipewave.planning import Demand, Plan, Question, Space, plan
from pipewave.step import find_engine
from pipewave.web import limits
from pipewave.web.forms import Form, Gpu, GpuFile, Model, Name, cache_dtype, gpu_of, line, model_of, query_command

Degrees = Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=1, max_length=16)]
Sizes = Annotated[list[Annotated[int, Field(ge=1, le=limits.STEP_TOKENS)]], Field(min_length=1, max_length=64)]
Limit = Annotated[float, Field(gt=0, lt=1e12)]


class PlanQuery(Form):
    """The fields of `pipewave plan`."""

    model: Model
    gpus: Annotated[list[Gpu], Field(min_length=1, max_length=64)] | Literal["all"]
    input_len: Annotated[int, Field(ge=1, le=limits.INPUT_LEN)]
    output_len: Annotated[int, Field(ge=1, le=limits.OUTPUT_LEN)]
    ttft_ms: Limit | None = None
    tpot_ms: Limit | None = None
    rate: Annotated[float, Field(gt=0, lt=1e6)] | None = None
    users: Annotated[float, Field(gt=0, lt=1e9)] | None = None
    think_s: Annotated[float, Field(ge=0, lt=1e6)] = 0.0
    budget: Limit | None = None
    prefix_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    tp: Degrees | None = None
    pp: Degrees | None = None
    dp: Degrees | None = None
    engines: Annotated[list[Name], Field(min_length=1, max_length=4)] | None = None
    disaggregated: bool = True
    kv_cache_dtypes: Annotated[list[Name], Field(min_length=1, max_length=4)] = Field(default=["auto"])
    max_num_seqs: Sizes | None = None
    max_num_batched_tokens: Sizes | None = None
    max_gpus: Annotated[int, Field(ge=1, le=4096)] = 64
    prices: Annotated[dict[Name, Annotated[float, Field(gt=0, lt=1e6)]], Field(default_factory=dict)]
    rows: Annotated[int, Field(ge=1, le=200)] = 20


def plan_answer(query: PlanQuery) -> dict[str, Any]:
    """`pipewave plan --json`, a launch command for each design of the front, and a thinned cloud of all designs."""
    with knowing([gpu.read() for gpu in query.gpus if isinstance(gpu, GpuFile)]):
        return _answer(query)


def _answer(query: PlanQuery) -> dict[str, Any]:
    spec, space = model_of(query.model), _space(query)
    splits = sum(1 for gpu in space.gpus for _ in space.splits(spec, gpu))
    settings = sum(1 for _ in space.settings())
    limits.at_most("splits (gpus × tp × pp × dp × engines × cache types)", splits, limits.PLAN_SPLITS, "gpus")
    limits.at_most("designs", splits * settings, limits.PLAN_DESIGNS, "max_num_seqs")
    question = Question(
        query.input_len, query.output_len, query.ttft_ms, query.tpot_ms, prefix_share=query.prefix_share
    )
    demand = Demand(query.rate, users=query.users, think_s=query.think_s, budget=query.budget)
    found = plan(spec, question, space, demand=demand, own_prices=query.prices)
    launches = [found.launch(design) for design in found.front[: query.rows]]
    return {"schema_version": 1, **found.to_dict(query.rows), "launches": launches, "all": _cloud(found),
            "command": plan_command(query)}  # fmt: skip


def _space(query: PlanQuery) -> Space:
    for engine in query.engines or ():
        find_engine(engine)
    return Space(
        names() if query.gpus == "all" else tuple(_gpu(gpu) for gpu in query.gpus),
        tps=_tuple(query.tp),
        pps=_tuple(query.pp),
        dps=_tuple(query.dp),
        engines=tuple(query.engines) if query.engines else None,
        kv_dtypes=tuple(cache_dtype(word) for word in query.kv_cache_dtypes),
        budgets=_tuple(query.max_num_batched_tokens) or (None,),
        batches=_tuple(query.max_num_seqs) or (None,),
        gpus_most=query.max_gpus,
        disaggregated=query.disaggregated,
    )


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return tuple(values) if values else None


def _gpu(gpu: Gpu) -> str:
    if isinstance(gpu, str) and not gpu.strip():
        raise BadInput("gpus: a name is empty", field="gpus")
    return gpu_of(gpu, {}).name


def _cloud(found: Plan) -> list[dict[str, Any]]:
    """Every design that was served, for a scatter."""
    return [row | {"meets": True} for row in found.rows()[: limits.PLAN_POINTS]]


def plan_command(query: PlanQuery) -> str:
    """`pipewave plan ...`, or `pipewave query` for a model of one's own."""
    if not isinstance(query.model, str) or any(isinstance(gpu, GpuFile) for gpu in query.gpus):
        return query_command("plan", query)
    named = {"input_len": "isl", "output_len": "osl", "ttft_ms": "ttft", "tpot_ms": "tpot", "engines": "engine",
             "kv_cache_dtypes": "kv_cache_dtype"}  # fmt: skip
    given = {named.get(name, name): value for name, value in query.given().items()}
    prices = [f"--price={gpu}={usd:g}" for gpu, usd in given.pop("prices", {}).items()]
    return line(["pipewave", "plan", "--json", *prices], given)
