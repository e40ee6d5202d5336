"""`pipewave plan`: which GPU, which split, which settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pipewave.cli.bars import bar
from pipewave.cli.command import Option
from pipewave.cli.options import (
    DP,
    PP,
    SEQUENCES,
    STEP_TOKENS,
    TP,
    AsJson,
    Ignore,
    Isl,
    Model,
    Osl,
    Tpot,
    Ttft,
    Verbose,
    cache_word,
)
from pipewave.cli.streams import give
from pipewave.errors import BadInput

if TYPE_CHECKING:
    from pipewave.planning.space import Space


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests, and the limits that they are held to."""

    isl: Isl
    osl: Osl
    ttft: Ttft = None
    tpot: Tpot = None


@dataclass(frozen=True, slots=True)
class Tried:
    """What to try: lists separated by commas."""

    tp: Annotated[str, Option(*TP, help="Degrees of tensor parallelism.")] = "1,2,4,8"
    pp: Annotated[str, Option(*PP, help="Pipeline stages.")] = "1"
    dp: Annotated[str, Option(*DP, help="Ranks of attention data parallelism.")] = "1"
    speculative: Annotated[
        list[str], Option("--speculative", help="Drafts to try beside none: method=mtp,tokens=1; repeatable.")
    ] = field(default_factory=list)
    disaggregated: Annotated[bool, Option(help="Also prefill and decode engines apart, rates matched.")] = False
    engine: Annotated[
        str | None, Option("--engine", help="vllm, sglang, trtllm, or several; with versions. Else the newest vLLM.")
    ] = None
    kv_cache_dtype: Annotated[str, Option("--kv-cache-dtype", help="auto, fp8 or both.")] = "auto"
    max_num_seqs: Annotated[str | None, Option(*SEQUENCES, help="Batch sizes.")] = None
    max_num_batched_tokens: Annotated[str | None, Option(*STEP_TOKENS, help="Step budgets.")] = None
    max_gpus: Annotated[int, Option("--max-gpus", help="Most GPUs of one replica.")] = 64

    def space(self, gpus: tuple[str, ...]) -> Space:
        """All designs of these GPUs."""
        from pipewave.planning.space import BATCHES, BUDGETS, Space
        from pipewave.published.unstated import default_engine

        return Space(
            gpus,
            tps=_numbers("tp", self.tp),
            pps=_numbers("pp", self.pp),
            dps=_numbers("dp", self.dp),
            speculative=(None, *self.speculative),
            disaggregated=self.disaggregated,
            engines=_words(self.engine or default_engine()),
            kv_dtypes=tuple(cache_word(word) for word in _words(self.kv_cache_dtype)),
            budgets=_given("max_num_batched_tokens", self.max_num_batched_tokens) or BUDGETS,
            batches=_given("max_num_seqs", self.max_num_seqs) or BATCHES,
            gpus_most=self.max_gpus,
        )


def plan_command(
    model: Model,
    gpus: Annotated[str, Option("--gpus", "--gpu", help="GPU names separated by commas, or all.")],
    asked: Asked,
    tried: Tried,
    price: Annotated[list[str], Option(help="Your own price, such as H100=2.5 (USD an hour); repeatable.")] = [],  # noqa: B006
    executor: Annotated[str | None, Option(help="processes://N or dask://HOST:PORT.")] = None,
    launch_as: Annotated[
        str, Option("--launch-as", help="How to print the winner: shell, docker, kubernetes or dynamo.")
    ] = "shell",
    rows: Annotated[int, Option(help="Rows of the Pareto front to show.")] = 20,
    ignore: Ignore = [],  # noqa: B006
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """The cheapest way to serve a model within limits: Pareto front, cost, what does not fit, what would help."""
    from pipewave.gpus import names
    from pipewave.models import load
    from pipewave.planning import Question, plan
    from pipewave.planning.executors import executor as open_executor

    space = tried.space(tuple(names()) if gpus == "all" else _words(gpus))
    question = Question(asked.isl, asked.osl, asked.ttft, asked.tpot)
    with open_executor(executor) as pool, bar("splits") as tell:
        spec = load(model, ignore=tuple(ignore))
        found = plan(spec, question, space, own_prices=_prices(price), executor=pool, progress=tell)
    answer = found.to_dict(rows, launch_as)
    give(answer, as_json, verbose=verbose)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError as problem:
        raise BadInput(f"{name} = {text!r}: must be integers separated by commas", field=name) from problem


def _given(name: str, text: str | None) -> tuple[int, ...]:
    """The numbers of an option, none where it is not given."""
    return _numbers(name, text) if text else ()


def _prices(given: list[str]) -> dict[str, float]:
    out = {}
    for item in given:
        gpu, _, usd = item.partition("=")
        try:
            out[gpu] = float(usd)
        except ValueError as problem:
            raise BadInput(f"price = {item!r}: must look like H100=2.5", field="price") from problem
    return out
