"""`pipewave tell`: result files of benchmarks, what they say of a deployment, and a name to keep them under."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from pipewave.cli.command import Argument, Option
from pipewave.cli.options import AsJson, Split

Also = Annotated[
    list[str], Option("--also", help="A field of a case that a file leaves out: concurrency=32; repeatable.")
]


def tell_command(
    files: Annotated[list[str], Argument(help="Results of a benchmark, or metrics of a server.")],
    split: Split,
    model: Annotated[str | None, Option("--model", "-m", help="As of `estimate`.")] = None,
    gpu: Annotated[str | None, Option("--gpu", help="GPU name or spec file.")] = None,
    engine: Annotated[
        str | None, Option("--engine", help="vllm, sglang, trtllm; with a version: sglang:0.5.9.")
    ] = None,
    also: Also = [],  # noqa: B006
    name: Annotated[str | None, Option("--name", help="Keep them for `--told NAME` of serve and estimate.")] = None,
    as_json: AsJson = False,
) -> None:
    """What benchmark results say of a deployment, kept to correct other answers about it.

    Reads `vllm bench serve`, SGLang's bench_serving, trtllm-bench, AIPerf and genai-perf (JSON, CSV), GuideLLM,
    InferenceX, and metrics of vLLM and SGLang (Prometheus text).

    `pipewave tell result.json --model Llama-3.1-8B --gpu H200 --name mine`
    """
    from pipewave.cli.streams import print_json, say, show
    from pipewave.told.tell import keep, tell

    degrees = {each: value for each, value in asdict(split).items() if value > 1}
    found = tell(files, also=_fields(also), model=model, gpu=gpu, engine=engine, **degrees)
    if as_json:
        print_json(found.to_dict())
    else:
        for one in found.results:
            say(f"{one.path}: {one.tool}, {len(one.runs)} runs")
        show(found.rows(), "table", title="Measured, and over what is predicted")
        print(*found.notes, sep="\n")
    if name:
        say(f"kept as {keep(found, name)}")


def _fields(words: list[str]) -> dict[str, Any]:
    """NAME=VALUE words, values as JSON where they are some. Raises BadInput."""
    import json

    from pipewave.errors import BadInput

    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadInput(f"--also {word}: must be NAME=VALUE, such as concurrency=32", field="also")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
