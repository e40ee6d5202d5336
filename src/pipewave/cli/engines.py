"""`pipewave engines`: versions of serving engines, their days, and their defaults on a GPU."""

from __future__ import annotations

from typing import Annotated, Any

from pipewave.cli.command import Argument, Option

HEADING = "defaults of a dense model on one {gpu}; rows: whose measured kernels answer"


def engines(
    name: Annotated[str | None, Argument(help="Only this engine.")] = None,
    gpu: Annotated[str, Option(help="GPU whose defaults are shown.")] = "H200",
    format: Annotated[str, Option(help="table, json or csv.")] = "table",
) -> None:
    """List versions of serving engines with their days and defaults (`pipewave engines vllm`)."""
    from pipewave.cli.streams import check_format, show
    from pipewave.gpus import find as find_gpu
    from pipewave.software import engine, engine_rules
    from pipewave.software.engine_parts import DeploymentFacts

    form, card = check_format(format), find_gpu(gpu)
    facts = DeploymentFacts(gpu=card.name, vendor=card.vendor, mma=card.traits.mma, gib=card.dram_gib)
    rows: list[dict[str, Any]] = []
    for one in [engine.find(name).name] if name else engine_rules.names():
        days = engine_rules.releases(one)["versions"]
        for version in engine_rules.read(one)["known_versions"]:
            found = engine.resolve(one, version, facts)
            rows.append({
                "engine": one, "version": version, "released": days.get(version), "rows": found.stack,
                "tokens a step": found.scheduler.max_batched_tokens, "requests": found.scheduler.max_requests,
                "largest graph": found.graphs.graph_limit, "memory share": found.memory.memory_share,
            })  # fmt: skip
    show(rows, form, title=HEADING.format(gpu=card.name), schema="engines")
