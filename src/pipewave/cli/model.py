"""`model`: a model as blocks, its totals, and, on request, every matrix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from pipewave.cli.command import Argument, Option
from pipewave.cli.options import AsJson, Ep, Ignore, Pp, Tp
from pipewave.cli.streams import print_json

if TYPE_CHECKING:
    from pipewave.models.summary import Blocks

GIB = 2**30


def model_command(
    model: Annotated[
        str, Argument(help="config.json, a directory with one, a repository of the hub cache, a built-in name.")
    ] = "",
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    matrices: Annotated[bool, Option("--matrices", help="Every matrix instead of blocks.")] = False,
    ignore: Ignore = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Blocks, parameters, work and memory of a model; without a name, the built-in ones."""
    from pipewave.models import load, names
    from pipewave.models.shard import Parallel
    from pipewave.models.summary import blocks, rows, summary

    if not model:
        print(json.dumps(list(names())) if as_json else "\n".join(names()))
        return
    spec, parallel = load(model, ignore=tuple(ignore)), Parallel(tp, pp, ep)
    totals, found = summary(spec, parallel), blocks(spec, parallel)
    if as_json:
        print_json({**totals, **asdict(found), "parts": rows(spec, parallel)})
        return
    from pipewave.cli.streams import facts, show

    title = f"{spec.name} ({spec.model_type}): {found.pattern}"
    lines = rows(spec, parallel) if matrices else list(_lines(found))
    show(lines, "table", title=title, droppable=("precision", "parameters M", "what"))
    facts({k: v for k, v in totals.items() if k not in ("model", "model_type")})


def _lines(found: Blocks) -> Iterator[dict[str, Any]]:
    """A line a part; what it takes is that of all its layers."""
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
