"""`pipewave plan`: which GPU, which split, which settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
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
    Verbose,
    cache_word,
)
from pipewave.cli.streams import give
from pipewave.errors import BadInput

if TYPE_CHECKING:
    from pipewave.planning.space import Space


LIMIT = "ms on the mean; on a percentile over requests: p99=2000 (p50, p90, p95, p99)."


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests, and the limits that they are held to."""

    isl: Isl
    osl: Osl
    ttft: Annotated[str | None, Option("--ttft", help=f"Limit on time to first token, {LIMIT}")] = None
    tpot: Annotated[str | None, Option("--tpot", help=f"Limit on time per later token, {LIMIT}")] = None
    prefix_share: Annotated[
        float, Option("--prefix-share", help="Share of each prompt that the prefix cache holds.")
    ] = 0.0


@dataclass(frozen=True, slots=True)
class Coming:
    """How much comes, and what may be spent; without any, one replica at its largest rate."""

    rate: Annotated[float | None, Option("--rate", "--request-rate", "--qps", help="Requests a second.")] = None
    tokens_per_s: Annotated[float | None, Option("--tokens-per-s", help="Output tokens a second instead.")] = None
    users: Annotated[float | None, Option("--users", help="Users who each wait for an answer and think.")] = None
    think_s: Annotated[float, Option("--think-s", help="Seconds from an answer to the user's next request.")] = 0.0
    arrivals: Annotated[
        str | None, Option("--arrivals", help="CSV, JSON-lines or parquet file of requests, such as a day of them.")
    ] = None
    budget: Annotated[float | None, Option("--budget", help="USD a month.")] = None
    scale_delay_s: Annotated[
        float, Option("--scale-delay-s", help="Of --arrivals: seconds until an autoscaler's replica serves.")
    ] = 300.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What to try, lists separated by commas; the default search chooses where nothing is said."""

    tp: Annotated[str | None, Option(*TP, help="Degrees of tensor parallelism.")] = None
    pp: Annotated[str | None, Option(*PP, help="Pipeline stages.")] = None
    dp: Annotated[str | None, Option(*DP, help="Ranks of attention data parallelism.")] = None
    speculative: Annotated[
        list[str], Option("--speculative", help="Drafts to try beside none: method=mtp,tokens=1; repeatable.")
    ] = field(default_factory=list)
    disaggregated: Annotated[
        bool, Option("--disaggregated/--no-disaggregated", help="Also prefill and decode engines apart.")
    ] = True
    engine: Annotated[
        str | None, Option("--engine", help="vllm, sglang, trtllm, or several; with versions. Else all that run there.")
    ] = None
    kv_cache_dtype: Annotated[str, Option("--kv-cache-dtype", help="auto, fp8 or both.")] = "auto"
    quantize: Annotated[
        str | None,
        Option("--quantize", help="Also other weights: fp8 (made while loading), awq, nvfp4, a repository, published."),
    ] = None
    max_num_seqs: Annotated[str | None, Option(*SEQUENCES, help="Requests at once; else the engine's own.")] = None
    max_num_batched_tokens: Annotated[str | None, Option(*STEP_TOKENS, help="Step budgets; else its own.")] = None
    max_gpus: Annotated[int, Option("--max-gpus", help="Most GPUs of one replica.")] = 64

    def space(self, gpus: tuple[str, ...], weights: Iterable[str]) -> Space:
        """All designs of these GPUs, the model as asked and with such weights."""
        from pipewave.planning.space import Space

        return Space(
            gpus,
            tps=_given("tp", self.tp),
            pps=_given("pp", self.pp),
            dps=_given("dp", self.dp),
            speculative=(None, *self.speculative) if self.speculative else None,
            disaggregated=self.disaggregated,
            engines=_words(self.engine) if self.engine else None,
            kv_dtypes=tuple(cache_word(word) for word in _words(self.kv_cache_dtype)),
            budgets=_given("max_num_batched_tokens", self.max_num_batched_tokens) or (None,),
            batches=_given("max_num_seqs", self.max_num_seqs) or (None,),
            gpus_most=self.max_gpus,
            weights=("", *weights),
        )


def plan_command(
    model: Model,
    gpus: Annotated[str, Option("--gpus", "--gpu", help="GPU names separated by commas, or all.")],
    asked: Asked,
    coming: Coming,
    tried: Tried,
    price: Annotated[list[str], Option(help="Your own price, such as H100=2.5 (USD an hour); repeatable.")] = [],  # noqa: B006
    price_file: Annotated[
        str | None, Option("--price-file", help="JSON file of your own prices: GPU to USD per GPU and hour.")
    ] = None,
    executor: Annotated[str | None, Option(help="processes://N or dask://HOST:PORT; else one process a core.")] = None,
    launch_as: Annotated[
        str, Option("--launch-as", help="How to print the winner: shell, docker, kubernetes or dynamo.")
    ] = "shell",
    rows: Annotated[int, Option("--rows", help="Designs to show.")] = 12,
    csv: Annotated[str | None, Option("--csv", help="Also write every design that was served to this file.")] = None,
    ignore: Ignore = [],  # noqa: B006
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """The cheapest way to serve requests within limits: replicas, GPUs and cost, each design as `serve` answers it.

    `pipewave plan --model Llama-3.1-70B --gpus H100,H200 --isl 2000 --osl 200 --ttft p99=2000 --tpot 40 --rate 20`
    """
    from pipewave.files.whole import write
    from pipewave.gpus import names
    from pipewave.models import load
    from pipewave.planning import Demand, Question, plan
    from pipewave.planning.checkpoints import quantised
    from pipewave.planning.executors import executor as open_executor
    from pipewave.planning.executors import one_a_core
    from pipewave.planning.prices import read_prices
    from pipewave.simulate.arrival_files import read_trace

    variants = quantised(model, _words(tried.quantize or ""), tuple(ignore))
    space = tried.space(tuple(names()) if gpus == "all" else _words(gpus), variants)
    recorded = read_trace(coming.arrivals) if coming.arrivals else None
    isl, osl = asked.isl, asked.osl
    if recorded is not None:
        isl, osl = round(float(recorded.input_len.mean())), round(float(recorded.output_len.mean()))
    question = Question(isl, osl, asked.ttft, asked.tpot, prefix_share=asked.prefix_share, recorded=recorded)
    demand = Demand(coming.rate, coming.tokens_per_s, coming.users, coming.think_s, recorded, coming.budget,
                    coming.scale_delay_s)  # fmt: skip
    own = (read_prices(price_file) if price_file else {}) | _prices(price)
    with open_executor(executor or one_a_core()) as pool, bar("designs") as tell:
        spec = load(model, ignore=tuple(ignore))
        found = plan(
            spec, question, space, demand=demand, variants=variants, own_prices=own, executor=pool, progress=tell
        )
    if csv:
        write(Path(csv), found.csv().encode())
    give(found.to_dict(rows, launch_as), as_json, verbose=verbose)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError as problem:
        raise BadInput(f"{name} = {text!r}: must be integers separated by commas", field=name) from problem


def _given(name: str, text: str | None) -> tuple[int, ...] | None:
    """The numbers of an option, None where it is not given."""
    return _numbers(name, text) if text else None


def _prices(given: list[str]) -> dict[str, float]:
    out = {}
    for item in given:
        gpu, _, usd = item.partition("=")
        try:
            out[gpu] = float(usd)
        except ValueError as problem:
            raise BadInput(f"price = {item!r}: must look like H100=2.5", field="price") from problem
    return out
