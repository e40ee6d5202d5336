"""`pipewave plan`: which GPU, which split, which settings."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from pipewave.errors import BadInput

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
DROPPABLE = tuple(INTERVALS.values())
HIDDEN = ("e2e_ms", *(f"{name}_{side}" for name in INTERVALS for side in ("low", "high")))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan_command)


def plan_command(
    model: Annotated[str, typer.Option("--model", help="config.json, a directory with one, or a built-in name.")],
    gpus: Annotated[str, typer.Option("--gpus", "--gpu", help="GPU names separated by commas, or all.")],
    isl: Annotated[int, typer.Option("--isl", "--input-len", help="Prompt tokens of a request.")],
    osl: Annotated[int, typer.Option("--osl", "--output-len", help="Generated tokens of a request.")],
    ttft: Annotated[float | None, typer.Option(help="Limit on mean time to first token, ms.")] = None,
    tpot: Annotated[float | None, typer.Option(help="Limit on mean time per later token, ms.")] = None,
    tp: Annotated[str, typer.Option("--tp", "--tp-size", "--tensor-parallel-size", help="Degrees to try.")] = "1,2,4,8",
    pp: Annotated[str, typer.Option("--pp", "--pp-size", "--pipeline-parallel-size", help="Degrees to try.")] = "1",
    dp: Annotated[
        str, typer.Option("--dp", "--dp-size", "--data-parallel-size", help="Ranks of data-parallel attention to try.")
    ] = "1",
    speculative: Annotated[
        list[str], typer.Option("--speculative", help="Drafts to try beside none: method=mtp,tokens=1; repeatable.")
    ] = [],  # noqa: B006
    disaggregated: Annotated[bool, typer.Option(help="Also prefill and decode engines apart, rates matched.")] = False,
    engine: Annotated[str, typer.Option("--engine", help="vllm, sglang, trtllm, or several.")] = "vllm",
    kv_cache_dtype: Annotated[str, typer.Option("--kv-cache-dtype", help="auto, fp8 or both.")] = "auto",
    max_num_seqs: Annotated[
        str | None, typer.Option("--max-num-seqs", "--max-running-requests", help="Batch sizes to try.")
    ] = None,
    max_num_batched_tokens: Annotated[
        str | None, typer.Option("--max-num-batched-tokens", "--chunked-prefill-size", help="Step budgets to try.")
    ] = None,
    most: Annotated[int, typer.Option("--max-gpus", help="Most GPUs of one replica.")] = 64,
    price: Annotated[list[str], typer.Option(help="Your own price, such as H100=2.5 (USD an hour); repeatable.")] = [],  # noqa: B006
    executor: Annotated[str | None, typer.Option(help="processes://N or dask://HOST:PORT.")] = None,
    launch_as: Annotated[
        str, typer.Option("--launch-as", help="How to print the winner: shell, docker, kubernetes or dynamo.")
    ] = "shell",
    rows: Annotated[int, typer.Option(help="Rows of the Pareto front to show.")] = 20,
    ignore: Annotated[list[str], typer.Option("--ignore-field", help="Config field known to change nothing.")] = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """The cheapest way to serve a model within limits: Pareto front, cost, what does not fit, what would help."""
    from pipewave.calls.dtypes import cache_type
    from pipewave.gpus import names
    from pipewave.models import load
    from pipewave.planning import Question, Space, plan
    from pipewave.planning.executors import executor as open_executor
    from pipewave.planning.space import BATCHES, BUDGETS

    space = Space(
        tuple(names()) if gpus == "all" else _words(gpus),
        tps=_numbers("tp", tp),
        pps=_numbers("pp", pp),
        dps=_numbers("dp", dp),
        speculative=(None, *speculative),
        disaggregated=disaggregated,
        engines=_words(engine),
        kv_dtypes=tuple(cache_type(word) for word in _words(kv_cache_dtype)),
        budgets=_numbers("max_num_batched_tokens", max_num_batched_tokens) if max_num_batched_tokens else BUDGETS,
        batches=_numbers("max_num_seqs", max_num_seqs) if max_num_seqs else BATCHES,
        gpus_most=most,
    )
    with open_executor(executor) as pool:
        spec, question = load(model, ignore=tuple(ignore)), Question(isl, osl, ttft, tpot)
        answer = plan(spec, question, space, own_prices=_prices(price), executor=pool).to_dict(rows, launch_as)
    if as_json:
        print(json.dumps({"schema_version": 1, **answer}))
    else:
        _show(answer)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError as problem:
        raise BadInput(f"{name} = {text!r}: must be integers separated by commas", field=name) from problem


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
    alike = {name for name in SAME_HIDDEN if len({str(row[name]) for row in designs}) == 1}
    gone = alike.union(HIDDEN)
    shown = map(_with_interval, designs)
    return [{HEADINGS.get(name, name): value for name, value in row.items() if name not in gone} for row in shown]


def _with_interval(row: dict[str, Any]) -> dict[str, Any]:
    """A design with the 90 % intervals of its times right after them."""
    ends = {name: f"{row[f'{name}_low']:.4g} – {row[f'{name}_high']:.4g}" for name in INTERVALS}
    return {k: v for name, value in row.items() for k, v in _named(name, value, ends)}


def _named(name: str, value: Any, ends: dict[str, str]) -> tuple[tuple[str, Any], ...]:
    return ((name, value), (INTERVALS[name], ends[name])) if name in INTERVALS else ((name, value),)


def _show(answer: dict[str, Any]) -> None:
    from pipewave.cli.render import table

    print(f"{answer['designs']:,} designs of {answer['model']}, {answer['meet_the_limits']:,} meet the limits")
    if answer["front"]:
        table(_front(answer["front"]), title="Pareto front, cheapest first", droppable=DROPPABLE)
        if len(answer["best_by_gpu"]) > 1:
            title = "best of each GPU, by tokens a second and GPU"
            table(_front(answer["best_by_gpu"]), title=title, droppable=DROPPABLE)
        if any(row["sure"] == "perhaps" for row in answer["front"]):
            print("perhaps: the 90 % interval of TTFT or TPOT straddles its limit")
        changes = [{HEADINGS.get(name, name): value for name, value in row.items()} for row in answer["elasticities"]]
        table(changes, title="what would move the winner: change in %")
        lines = str(answer["launch"]).split("\n")
        print("launch: " + lines[0] if len(lines) == 1 else "launch:\n" + "\n".join(lines))
    elif shortest := answer["shortest"]:
        first, later = shortest["ttft_ms"], shortest["tpot_ms"]
        print(f"the shortest first token takes {first:.4g} ms, the shortest later token {later:.4g} ms")
    for refusal in answer["does_not_fit"]:
        print(f"not possible ({', '.join(refusal['splits'])}): {refusal['why']}")
    if answer["without_price"]:
        print(f"no price known, so not ranked: {', '.join(answer['without_price'])} (give one with --price)")
    for note in answer["notes"]:
        print(f"note: {note}")
    for price in answer["prices"]:
        verified = "" if price["verified"] else ", not verified"
        print(f"price: {price['gpu']} {price['usd_per_hour']} USD/h, {price['provider']} {price['date']}{verified}")
