"""`pipewave check`: results of a benchmark against earlier ones; for continuous integration."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from pipewave.cli.command import Argument, Option
from pipewave.cli.options import AsJson, Split
from pipewave.cli.streams import print_json, put, say, show


def check_command(
    files: Annotated[list[str], Argument(help="Results of a benchmark, as `tell` reads them.")],
    split: Split,
    baseline: Annotated[list[str], Option(help="Earlier results, or a name of `tell`; repeatable.")],
    model: Annotated[str | None, Option("--model", "-m", help="With --gpu: other loads are compared, too.")] = None,
    gpu: Annotated[str | None, Option("--gpu", help="GPU name or spec file.")] = None,
    engine: Annotated[str | None, Option("--engine", help="vllm, sglang or trtllm; a version: sglang:0.5.9.")] = None,
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
