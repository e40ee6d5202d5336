"""`pipewave plan`: which GPU, which split, which settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

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
    cache_word,
)
from pipewave.cli.streams import print_json, print_notes
from pipewave.errors import BadInput

if TYPE_CHECKING:
    from pipewave.planning.space import Space

HEADINGS = {
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "budget",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "tokens_per_s_per_gpu": "tok/s/GPU",
    "tokens_per_s_per_user": "tok/s/user",
    "usd_per_million_tokens": "USD/M tok",
    "ttft_ms_change_percent": "TTFT",
    "tpot_ms_change_percent": "TPOT",
    "tokens_per_s_per_gpu_change_percent": "tok/s/GPU",
}
SAME_HIDDEN = (
    "engine",
    "kv_dtype",
    "tp",
    "pp",
    "ep",
    "dp",
    "drafts",
    "engines",
    "sure",
)  # shown where the designs differ in them
INTERVALS = {"ttft_ms": "TTFT 90 %", "tpot_ms": "TPOT 90 %"}
MOST_REFUSED = 8  # lines of what is not possible
DROPPABLE = tuple(INTERVALS.values())
HIDDEN = ("e2e_ms", *(f"{name}_{side}" for name in INTERVALS for side in ("low", "high")))


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
    engine: Annotated[str, Option("--engine", help="vllm, sglang, trtllm, or several.")] = "vllm"
    kv_cache_dtype: Annotated[str, Option("--kv-cache-dtype", help="auto, fp8 or both.")] = "auto"
    max_num_seqs: Annotated[str | None, Option(*SEQUENCES, help="Batch sizes.")] = None
    max_num_batched_tokens: Annotated[str | None, Option(*STEP_TOKENS, help="Step budgets.")] = None
    max_gpus: Annotated[int, Option("--max-gpus", help="Most GPUs of one replica.")] = 64

    def space(self, gpus: tuple[str, ...]) -> Space:
        """All designs of these GPUs."""
        from pipewave.planning.space import BATCHES, BUDGETS, Space

        return Space(
            gpus,
            tps=_numbers("tp", self.tp),
            pps=_numbers("pp", self.pp),
            dps=_numbers("dp", self.dp),
            speculative=(None, *self.speculative),
            disaggregated=self.disaggregated,
            engines=_words(self.engine),
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
    if as_json:
        print_json(answer)
    else:
        _show(answer)


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


def _front(designs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The designs as people read them: short headings, without what is alike in all of them."""
    alike = {
        name for name in SAME_HIDDEN if len({str(row[name]) for row in designs}) == 1 and not _doubtful(name, designs)
    }
    gone = alike.union(HIDDEN)
    shown = map(_with_interval, designs)
    return [{HEADINGS.get(name, name): value for name, value in row.items() if name not in gone} for row in shown]


def _doubtful(name: str, designs: list[dict[str, Any]]) -> bool:
    """Whether a column says of any design that it may miss a limit, which no reader must miss."""
    from pipewave.planning.search import PERHAPS

    return name == "sure" and any(row[name] == PERHAPS for row in designs)


def _with_interval(row: dict[str, Any]) -> dict[str, Any]:
    """A design with the 90 % intervals of its times right after them."""
    from pipewave.cli.render import ends

    sides = {name: ends(row[f"{name}_low"], row[f"{name}_high"]) for name in INTERVALS}
    return {k: v for name, value in row.items() for k, v in _named(name, value, sides)}


def _named(name: str, value: Any, ends: dict[str, str]) -> tuple[tuple[str, Any], ...]:
    return ((name, value), (INTERVALS[name], ends[name])) if name in INTERVALS else ((name, value),)


def _show(answer: dict[str, Any]) -> None:
    from pipewave.cli.render import table
    from pipewave.planning.search import PERHAPS, STRADDLES

    designs, met = answer["designs"], answer["meet_the_limits"]
    print(f"{designs:,} design{'s'[: designs != 1]} of {answer['model']}, {met:,} meet{'s'[: met == 1]} the limits")
    if answer["front"]:
        table(_front(answer["front"]), title="Pareto front, cheapest first", droppable=DROPPABLE)
        if len(answer["best_by_gpu"]) > 1:
            title = "best of each GPU, by tokens a second and GPU"
            table(_front(answer["best_by_gpu"]), title=title, droppable=DROPPABLE)
        if _doubtful("sure", [*answer["front"], *answer["best_by_gpu"]]):
            print(f"{PERHAPS}: {STRADDLES}")
        changes = [{HEADINGS.get(name, name): value for name, value in row.items()} for row in answer["elasticities"]]
        if changes:
            table(changes, title="what would move the winner: change in %")
        lines = str(answer["launch"]).split("\n")
        print("launch: " + lines[0] if len(lines) == 1 else "launch:\n" + "\n".join(lines))
    elif shortest := answer["shortest"]:
        first, later = shortest["ttft_ms"], shortest["tpot_ms"]
        print(f"the shortest first token takes {first:.4g} ms, the shortest later token {later:.4g} ms")
    _show_refused(answer["does_not_fit"], answer["impossible"])
    if answer["without_price"]:
        print(f"no price known, so not ranked: {', '.join(answer['without_price'])} (give one with --price)")
    print_notes(answer["notes"])
    for price in answer["prices"]:
        verified = "" if price["verified"] else ", not verified"
        print(f"price: {price['gpu']} {price['usd_per_hour']} USD/h, {price['provider']} {price['date']}{verified}")


def _show_refused(refusals: list[dict[str, Any]], impossible: dict[str, str]) -> None:
    """What is not possible and why; where that is long, the GPUs on which nothing is."""
    if len(refusals) <= MOST_REFUSED:
        for refusal in refusals:
            print(f"not possible ({', '.join(refusal['splits'])}): {refusal['why']}")
        return
    for gpu, why in impossible.items():
        print(f"not possible on {gpu}: {why}")
    splits = sum(len(refusal["splits"]) for refusal in refusals)
    print(f"not possible: {splits} splits in all; --json says why of each")
