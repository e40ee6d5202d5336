"""`pipewave gpus`, `engines`, `model` and `accuracy`: known GPUs and engines, layers of a model, errors of the nets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from pipewave.cli.command import Argument, Option
from pipewave.cli.options import AsJson, Ep, Format, Ignore, Pp, Tp
from pipewave.cli.streams import print_json, show

if TYPE_CHECKING:
    from pipewave.models.summary import Blocks

AMD_FROM = 900
TITLED = ("model", "model_type")  # what the title of a model's table says
GPUS = "dense TFLOP/s by type; DRAM in GB and GB/s, L2 in MiB, link in GB/s one way"
ENGINES = "defaults of a dense model on one {gpu}; rows: whose measured kernels answer"
TITLES = {"own": "Our H200 rows, shapes never trained on", "public": "Public corpus, shapes never trained on"}


def gpus(
    name: Annotated[str | None, Argument(help="GPU name, alias or spec file.")] = None, format: Format = "table"
) -> None:
    """List the GPUs, or show one with the source of every field (`pipewave gpus H200`)."""
    from pipewave.gpus import find
    from pipewave.gpus.registry import field_rows, summary_rows

    if name:
        gpu = find(name)
        title = f"{gpu.name} (also {', '.join(gpu.aliases[:4])})" if gpu.aliases else gpu.name
        show(field_rows(name), format, title=title, schema="fields")
    elif format == "table":
        show([_short(row) for row in summary_rows()], format, title=GPUS)
    else:
        show(summary_rows(), format, schema="gpus")


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by which people tell GPUs apart, under headings that fit a terminal."""
    number, tflops = row["compute_capability"], {"16-bit": row["bf16_tflops"] or row["fp16_tflops"]}
    tflops |= {name: row[f"{name}_tflops"] for name in ("fp8", "fp4")}
    named = f"gfx{number}" if number > AMD_FROM else f"{number / 10:.1f}"  # AMD's digits are no tenths
    rounded = {name: None if value is None else round(value) for name, value in tflops.items()}
    others = {"DRAM": "dram_gb", "GB/s": "dram_gbps", "L2": "l2_mb", "link": "link_gbps", "W": "tdp_w"}
    return {"GPU": row["name"], "cc": named, "SMs": row["sms"]} | rounded | {k: row[v] for k, v in others.items()}


def engines(
    name: Annotated[str | None, Argument(help="Only this engine.")] = None,
    gpu: Annotated[str, Option(help="GPU whose defaults are shown.")] = "H200",
    format: Format = "table",
) -> None:
    """List versions of serving engines with their days and defaults (`pipewave engines vllm`)."""
    from pipewave.gpus import find as find_gpu
    from pipewave.software import engine, engine_rules
    from pipewave.software.engine_parts import DeploymentFacts

    card = find_gpu(gpu)
    facts = DeploymentFacts(gpu=card.name, vendor=card.vendor, mma=card.traits.mma, gib=card.dram_gib)
    rows: list[dict[str, Any]] = []
    for one in [engine.find(name).name] if name else engine_rules.NAMES:
        days = engine_rules.releases(one)["versions"]
        for version in engine_rules.read(one)["known_versions"]:
            found = engine.resolve(one, version, facts)
            rows.append({
                "engine": one, "version": version, "released": days.get(version), "rows": found.stack,
                "tokens a step": found.scheduler.max_batched_tokens, "requests": found.scheduler.max_requests,
                "largest graph": found.graphs.graph_limit, "memory share": found.memory.memory_share,
            })  # fmt: skip
    show(rows, format, title=ENGINES.format(gpu=card.name), schema="engines")


def model_command(
    model: Annotated[
        str, Argument(help="config.json, a directory with one, a repository of the hub cache, a built-in name.")
    ] = "",
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    matrices: Annotated[bool, Option("--matrices", help="Every matrix instead of blocks.")] = False,
    ignore: Ignore = (),
    as_json: AsJson = False,
) -> None:
    """Blocks, parameters, work and memory of a model; without a name, the built-in ones."""
    from pipewave.models import load, names
    from pipewave.models.shard import Parallel
    from pipewave.models.summary import blocks, rows, summary
    from pipewave.view.document import number

    if not model:
        print(json.dumps(list(names())) if as_json else "\n".join(names()))
        return
    spec, parallel = load(model, ignore=tuple(ignore)), Parallel(tp, pp, ep)
    totals, found = summary(spec, parallel), blocks(spec, parallel)
    if as_json:
        print_json({**totals, **asdict(found), "parts": rows(spec, parallel)})
        return
    title = f"{spec.name} ({spec.model_type}): {found.pattern}"
    lines = rows(spec, parallel) if matrices else list(_lines(found))
    show(lines, "table", title=title, droppable=("precision", "parameters M", "what"))
    known = {name: value for name, value in totals.items() if name not in TITLED and value not in ([], None)}
    width = max(28, *map(len, known))
    for name, value in known.items():
        print(f"{name:{width}} {number(value)}")


def _lines(found: Blocks) -> Iterator[dict[str, Any]]:
    """A line a part; what it takes is that of all its layers."""
    from pipewave.models.summary import GIB

    for block in found.blocks:
        for number, part in enumerate(block.parts):
            yield {
                "block": block.letter if not number else "",
                "layers": f"{block.count} ({block.layers})" if not number else "",
                "part": part.name,
                "shape": part.shape,
                "precision": part.precision,
                "parameters M": block.count * part.parameters / 1e6,
                "GiB a GPU": block.count * part.weight_bytes / GIB,
                "MFLOP a token": block.count * part.flops / 1e6,
                "KV bytes a token": round(block.count * part.kv_bytes),
                "state MiB a sequence": block.count * part.state_bytes / 2**20,
                "what": part.detail,
            }


def accuracy(
    json: Annotated[bool, Option("--json", help="Print JSON, with every figure of every cell.")] = False,
) -> None:
    """Show how far the shipped weights are off on rows of shapes they never saw, without calibration."""
    from pipewave.files import packaged
    from pipewave.view.document import LABELS

    parts = packaged.document(packaged.ROOT / "data" / "accuracy" / "figures.json")["parts"]
    if json:
        show([{"part": part} | row for part, cells in parts.items() for row in cells], "json", schema="cells")
        return
    for part, cells in parts.items():
        rows = [{**row, "software": f"{row['stack']} {row['impl']}"} for row in cells]
        shown = [{head: row[name] for name, head in LABELS["accuracy"].items()} for row in rows]
        show(shown, "table", title=TITLES[part])
