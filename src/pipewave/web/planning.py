"""The plan view: which GPU, which split, which settings, and what every other design would have been."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pipewave.errors import BadInput
from pipewave.gpus import names
from pipewave.gpus.registry import knowing
from pipewave.planning import Demand, Owned, Question, Space, plan
from pipewave.step import find_engine
from pipewave.web import limits
from pipewave.web.forms import PLAN, Form, Gpu, GpuFile, Model, Name, cache_dtype, gpu_of, line, model_of, query_command

Degrees = Annotated[list[limits.Degree], Field(min_length=1, max_length=16)]
Sizes = Annotated[list[limits.StepTokens], Field(min_length=1, max_length=64)]

# Lists to try as `Space` calls them, and other fields as options of the command do.
LISTS, NAMED = PLAN["lists"], PLAN["options"]


class PlanQuery(Form):
    """The fields of `pipewave plan`."""

    model: Model
    gpus: Annotated[list[Gpu], Field(min_length=1, max_length=64)] | Literal["all"]
    input_len: limits.InputLen
    output_len: limits.OutputLen
    ttft_ms: limits.Limit | None = None
    tpot_ms: limits.Limit | None = None
    rate: Annotated[float, Field(gt=0, lt=1e6)] | None = None
    users: Annotated[float, Field(gt=0, lt=1e9)] | None = None
    think_s: Annotated[float, Field(ge=0, lt=1e6)] = 0.0
    budget: limits.Limit | None = None
    prefix_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    tp: Degrees | None = None
    pp: Degrees | None = None
    dp: Degrees | None = None
    engines: Annotated[list[Name], Field(min_length=1, max_length=4)] | None = None
    disaggregated: bool = True
    kv_cache_dtypes: Annotated[list[Name], Field(min_length=1, max_length=4)] = Field(default=["auto"])
    max_num_seqs: Sizes | None = None
    max_num_batched_tokens: Sizes | None = None
    max_gpus: limits.Degree = 64
    prices: Annotated[dict[Name, Annotated[float, Field(gt=0, lt=1e6)]], Field(default_factory=dict)]
    owned: Annotated[dict[Name, float], Field(min_length=1, max_length=64)] | None = None
    grid_g_per_kwh: Annotated[float, Field(ge=0, le=5000)] | None = None
    power_limits: Annotated[list[limits.Limit], Field(min_length=1, max_length=8)] | None = None
    rack_w: limits.Limit | None = None
    gpus_per_rack: limits.Degree | None = None
    rows: Annotated[int, Field(ge=1, le=200)] = 20


def plan_answer(query: PlanQuery) -> dict[str, Any]:
    """`pipewave plan --json`, a launch command for each design of the front, and a thinned cloud of all designs."""
    with knowing([gpu.read() for gpu in query.gpus if isinstance(gpu, GpuFile)]):
        spec, space = model_of(query.model), _space(query)
        splits = sum(1 for gpu in space.gpus for _ in space.splits(spec, gpu))
        settings = sum(1 for _ in space.settings())
        limits.at_most("splits (gpus × tp × pp × dp × engines × cache types)", splits, limits.PLAN_SPLITS, "gpus")
        limits.at_most("designs", splits * settings, limits.PLAN_DESIGNS, "max_num_seqs")
        limit = {name: getattr(query, name) for name in ("ttft_ms", "tpot_ms", "prefix_share")}
        question = Question(query.input_len, query.output_len, **limit)
        demand = Demand(query.rate, users=query.users, think_s=query.think_s, budget=query.budget)
        bill: dict[str, Any] = {"owned": Owned.of(query.owned), "grid_g_per_kwh": query.grid_g_per_kwh}
        found = plan(spec, question, space, demand=demand, own_prices=query.prices, **bill)
        launches = [found.launch(design) for design in found.front[: query.rows]]
        cloud = [row | {"meets": True} for row in found.rows()[: limits.PLAN_POINTS]]  # for a scatter
        return {"schema_version": 1, **found.to_dict(query.rows), "launches": launches, "all": cloud,
                "command": plan_command(query)}  # fmt: skip


def _space(query: PlanQuery) -> Space:
    for engine in query.engines or ():
        find_engine(engine)
    if query.gpus != "all" and not all(gpu.strip() for gpu in query.gpus if isinstance(gpu, str)):
        raise BadInput("gpus: a name is empty", field="gpus")
    lists: dict[str, Any] = {name: tuple(value) for name, asked in LISTS.items() if (value := getattr(query, asked))}
    return Space(
        names() if query.gpus == "all" else tuple(gpu_of(gpu, {}).name for gpu in query.gpus),
        kv_dtypes=tuple(cache_dtype(word) for word in query.kv_cache_dtypes),
        gpus_most=query.max_gpus,
        disaggregated=query.disaggregated,
        rack_w=query.rack_w,
        gpus_per_rack=query.gpus_per_rack,
        **lists,
    )


def plan_command(query: PlanQuery) -> str:
    """`pipewave plan ...`, or `pipewave query` for a model of one's own."""
    if not isinstance(query.model, str) or any(isinstance(gpu, GpuFile) for gpu in query.gpus):
        return query_command("plan", query)
    given = {NAMED.get(name, name): value for name, value in query.given().items()}
    prices = [f"--price={gpu}={usd:g}" for gpu, usd in given.pop("prices", {}).items()]
    if owned := given.pop("owned", None):
        given["owned"] = [f"{name}={value:g}" for name, value in owned.items()]
    return line(["pipewave", "plan", "--json", *prices], given)
