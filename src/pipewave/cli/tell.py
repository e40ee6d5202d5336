"""`pipewave tell` and `check`: result files of benchmarks, kept to correct answers or held against earlier ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

from pipewave.cli.command import Argument, Option
from pipewave.cli.options import AsJson, GpuName, ModelName, Split
from pipewave.cli.streams import print_json, put, say, show
from pipewave.errors import BadInput

Also = Annotated[
    list[str], Option("--also", help="A field of a case that a file leaves out: concurrency=32; repeatable.")
]
Engine = Annotated[str | None, Option("--engine", help="vllm, sglang or trtllm; with a version: sglang:0.5.9.")]


def tell_command(
    files: Annotated[list[str], Argument(help="Results of a benchmark, or metrics of a server.")],
    split: Split,
    model: ModelName = None,
    gpu: GpuName = None,
    engine: Engine = None,
    also: Also = [],  # noqa: B006
    name: Annotated[str | None, Option("--name", help="Keep them for `--told NAME` of serve and estimate.")] = None,
    next_: Annotated[bool, Option("--next", help="Also the three loads whose measurement would narrow most.")] = False,
    as_json: AsJson = False,
) -> None:
    """What benchmark results say of a deployment, kept to correct other answers about it.

    Reads `vllm bench serve`, SGLang's bench_serving, trtllm-bench, AIPerf and genai-perf (JSON, CSV), GuideLLM,
    InferenceX, and metrics of vLLM and SGLang (Prometheus text).

    `pipewave tell result.json --model Llama-3.1-8B --gpu H200 --name mine`
    """
    from pipewave.told.tell import keep, next_loads, tell

    degrees = {each: value for each, value in asdict(split).items() if value > 1}
    found = tell(files, also=_fields(also), model=model, gpu=gpu, engine=engine, **degrees)
    proposed = next_loads(found) if next_ else []
    if as_json:
        print_json(found.to_dict() | ({"next": proposed} if next_ else {}))
    else:
        for one in found.results:
            say(f"{one.path}: {one.tool}, {len(one.runs)} runs")
        show(found.rows(), "table", title="Measured, and over what is predicted")
        print(*found.notes, sep="\n")
        if proposed:
            show(proposed, "table", title="Measure next, and half the interval that is then left of other loads")
    if name:
        say(f"kept as {keep(found, name)}")


def _fields(words: list[str]) -> dict[str, Any]:
    """NAME=VALUE words, values as JSON where they are some. Raises BadInput."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadInput(f"--also {word}: must be NAME=VALUE, such as concurrency=32", field="also")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found


def check_command(
    files: Annotated[list[str], Argument(help="Results of a benchmark, as `tell` reads them.")],
    split: Split,
    baseline: Annotated[list[str], Option(help="Earlier results, or a name of `tell`; repeatable.")],
    model: Annotated[str | None, Option("--model", "-m", help="With --gpu: other loads are compared, too.")] = None,
    gpu: GpuName = None,
    engine: Engine = None,
    markdown: Annotated[str | None, Option(help="Write a summary for a pull request here.")] = None,
    as_json: AsJson = False,
) -> int:
    """Whether a server is slower than it was: exit status 1 where it is by more than identical runs differ.

    `pipewave check new.json --baseline old.json --markdown summary.md`
    """
    from pipewave.told.check import check

    degrees = {each: value for each, value in asdict(split).items() if value > 1}
    found = check(files, baseline, model=model, gpu=gpu, engine=engine, **degrees)
    if markdown:
        put(found.markdown(), markdown, *files, *baseline)
    if as_json:
        print_json(found.to_dict())
    else:
        show([one.row() for one in found.changes], "table", title="Against the baseline")
        for note in found.notes:
            say(note)
    return 1 if found.slower else 0
