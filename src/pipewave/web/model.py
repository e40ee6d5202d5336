"""A model as blocks: what `pipewave model --json` says of it, but for the list of matrices."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from pipewave.models.shard import Parallel
from pipewave.models.summary import blocks, summary
from pipewave.web.forms import Form, Model, model_of, query_command

Degree = Annotated[int, Field(ge=1, le=4096)]


class ModelQuery(Form):
    """A built-in model or the content of a config.json, as one rank of a split holds it."""

    model: Model
    tp: Degree = 1
    pp: Degree = 1
    ep: Degree = 1


def model_answer(query: ModelQuery) -> dict[str, Any]:
    """Totals, the pattern of layers, and the parts of each kind. Raises what `load` raises, and CannotShard."""
    spec, parallel = model_of(query.model), Parallel(query.tp, query.pp, query.ep)
    return summary(spec, parallel) | asdict(blocks(spec, parallel)) | {"command": query_command("model", query)}
