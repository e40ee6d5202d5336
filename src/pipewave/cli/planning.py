"""`pipewave plan`: which GPU, which split, which settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pipewave.cli import options as opt
from pipewave.cli.command import Option
from pipewave.cli.options import Number, Text
from pipewave.cli.streams import bar, give
from pipewave.errors import BadInput

FORMS = ("shell", "docker", "kubernetes", "dynamo")
APART = ("--disaggregated/--no-disaggregated",)
LIMIT = "ms on the mean; on a percentile over requests: p99=2000 (p50, p90, p95, p99)."


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(name: str, kind: type, text: str) -> tuple[Any, ...]:
    try:
        return tuple(kind(word) for word in _words(text))
    except ValueError as problem:
        wanted = "integers" if kind is int else "numbers"
        raise BadInput(f"{name} = {text!r}: must be {wanted} separated by commas", field=name) from problem


def _listed(*spellings: str, kind: type = int, help: str) -> Option:
    """An option of numbers separated by commas."""
    return Option(*spellings, help=help, parser=partial(_numbers, spellings[0].strip("-").replace("-", "_"), kind))


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Requests, and the limits that they are held to."""

    input_len: Annotated[int | None, Option(*opt.ISL, help="Prompt tokens; else those of --arrivals.")] = None
    output_len: Annotated[int | None, Option(*opt.OSL, help="Generated tokens; else those of --arrivals.")] = None
    ttft_ms: Annotated[Text, Option("--ttft", help=f"Limit on time to first token, {LIMIT}")] = None
    tpot_ms: Annotated[Text, Option("--tpot", help=f"Limit on time per later token, {LIMIT}")] = None
    e2e_ms: Annotated[Text, Option("--request-latency", help=f"Limit end to end, {LIMIT}")] = None
    prefix_share: Annotated[float, Option("--prefix-share", help="Share of each prompt that the cache holds.")] = 0.0


@dataclass(frozen=True, slots=True)
class DemandOptions:
    """How much comes, and what may be spent; without any, one replica at its largest rate."""

    rate: Annotated[Number, Option("--rate", "--request-rate", "--qps", help="Requests a second.")] = None
    tokens_per_s: Annotated[Number, Option("--tokens-per-s", help="Output tokens a second instead.")] = None
    users: Annotated[Number, Option("--users", help="Users who each wait for an answer and think.")] = None
    think_s: Annotated[float, Option("--think-s", help="Seconds from an answer to the user's next request.")] = 0.0
    arrivals: Annotated[Text, Option("--arrivals", "--trace", help="File of requests, as `serve` reads them.")] = None
    budget: Annotated[Number, Option("--budget", help="USD a month; alone: of as many replicas as it pays.")] = None
    scale_delay_s: Annotated[float, Option("--scale-delay-s", help="Until an autoscaler's replica serves.")] = 300.0


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    """What to try, lists separated by commas; the default search chooses where nothing is said."""

    tps: Annotated[Text, _listed(*opt.TP, help="Degrees of tensor parallelism.")] = None
    pps: Annotated[Text, _listed(*opt.PP, help="Pipeline stages.")] = None
    dps: Annotated[Text, _listed(*opt.DP, help="Ranks of attention data parallelism.")] = None
    speculative: Annotated[
        tuple[str, ...], Option(help="Drafts to try beside none: method=mtp,tokens=1; repeatable.")
    ] = ()
    disaggregated: Annotated[bool, Option(*APART, help="Also prefill and decode engines apart.")] = True
    engines: Annotated[Text, Option("--engine", parser=_words, help="Such as vllm,sglang:0.5.9; else all.")] = None
    kv_dtypes: Annotated[Text, Option("--kv-cache-dtype", parser=_words, help="auto, fp8 or both.")] = None
    quantize: Annotated[
        str, Option(parser=_words, help="Other weights: fp8 (while loading), awq, a repository, published.")
    ] = ""
    batches: Annotated[Text, _listed(*opt.SEQUENCES, help="Requests at once; else the engine's own.")] = None
    budgets: Annotated[Text, _listed(*opt.STEP_TOKENS, help="Step budgets; else its own.")] = None
    gpus_most: Annotated[int, Option("--max-gpus", help="Most GPUs of one replica.")] = 64
    power_limits: Annotated[Text, _listed("--power-limit", kind=float, help="Of each board, W; else its own.")] = None

    def given(self) -> dict[str, Any]:
        """As arguments of `pw.plan`."""
        from pipewave.calls.dtypes import cache_type

        types = self.kv_dtypes and tuple(map(cache_type, self.kv_dtypes))
        drafts = (None, *self.speculative) if self.speculative else None
        return asdict(self) | {"kv_dtypes": types, "speculative": drafts}


@dataclass(frozen=True, slots=True)
class PriceOptions:
    """Prices, power and carbon."""

    price: Annotated[tuple[str, ...], Option(help="Your own price: H100=2.5 (USD per GPU and hour); repeatable.")] = ()
    price_file: Annotated[Text, Option("--price-file", help="JSON file of them: GPU to USD per hour.")] = None
    owned: opt.OwnedWords = None
    grid_g_per_kwh: opt.Grid = None
    rack_w: Annotated[Number, Option("--max-power-per-rack", help="W of the boards of a rack together.")] = None
    gpus_per_rack: Annotated[int | None, Option("--gpus-per-rack", help="Of --max-power-per-rack.")] = None

    def given(self, gpus: Sequence[str]) -> dict[str, Any]:
        """As arguments of `pw.plan` of some GPUs. Raises BadFile, UnknownGPU and BadInput."""
        from pipewave.gpus import find
        from pipewave.models.load import read_json
        from pipewave.planning.prices import number

        rents, asked = dict(number(word, "price") for word in self.price), {find(gpu).name for gpu in gpus}
        if other := next((name for name in rents if find(name).name not in asked), None):
            raise BadInput(f"--price {other}: the plan is of {', '.join(gpus)} alone", field="price")
        own = read_json(Path(self.price_file), "price_file") if self.price_file else {}
        said = {name: value for name, value in asdict(self).items() if name not in ("price", "price_file")}
        return said | {"prices": own | rents}


def plan_command(
    model: opt.Model,
    gpus: Annotated[str, Option("--gpus", "--gpu", help="Names separated by commas, or all.")],
    asked: RequestOptions,
    coming: DemandOptions,
    tried: SpaceOptions,
    bill: PriceOptions,
    executor: Annotated[Text, Option(help="processes://N or dask://HOST:PORT; else one process a core.")] = None,
    launch_as: Annotated[str, Option(help=f"How to print the winner: {', '.join(FORMS)}.", choices=FORMS)] = "shell",
    rows: Annotated[int, Option("--rows", help="Designs to show.")] = 12,
    csv: Annotated[Text, Option("--csv", help="Also write every design that was served to this file.")] = None,
    ignore: opt.Ignore = (),
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> None:
    """The cheapest way to serve requests within limits: replicas, GPUs and cost, each design as `serve` answers it.

    `pipewave plan --model Llama-3.1-70B --gpus H100,H200 --isl 2000 --osl 200 --ttft p99=2000 --tpot 40 --rate 20`
    """
    from pipewave.face import plan
    from pipewave.files.whole import write
    from pipewave.gpus import names
    from pipewave.published.stream import executor as open_executor
    from pipewave.published.stream import one_a_core

    where = names() if gpus == "all" else _words(gpus)
    given = asdict(asked) | asdict(coming) | tried.given() | bill.given(where)
    said = {name: value for name, value in given.items() if value is not None}
    with open_executor(executor or one_a_core()) as pool, bar("designs") as tell:
        found = plan(model, where, **said, ignore=ignore, executor=pool, progress=tell)
    if csv:
        write(Path(csv), found.csv().encode())
    give(found.to_dict(rows, launch_as), as_json, verbose=verbose)
