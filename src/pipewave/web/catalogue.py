"""Lists that the page offers (GPUs, models, kernels), and the views of a user's own GPU or model."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import cache
from typing import Any

from pipewave.calls.fields import defaults, required, rules
from pipewave.gpus import GPU
from pipewave.gpus.registry import all_gpus
from pipewave.kernels import Family, registered
from pipewave.models import load, names
from pipewave.models.shard import Parallel
from pipewave.models.summary import blocks, summary
from pipewave.planning.prices import prices
from pipewave.web import limits
from pipewave.web.forms import Form, GpuFile, Model, model_of, query_command
from pipewave.web.kernel import sweepable


@cache
def gpus() -> list[dict[str, Any]]:
    """Every shipped GPU with all its numbers, and its price where one is known."""
    rents = {name: price.usd_per_hour for name, price in prices().items()}
    return [numbers(gpu) | {"usd_per_hour": rents.get(gpu.name)} for gpu in all_gpus()]


@cache
def models() -> list[dict[str, Any]]:
    """Every built-in model with its size."""
    kept = ("model_type", "layers", "hidden", "parameters", "active_parameters", "kv_dtype")
    sizes = {"weights_gib": "weights_gib_per_gpu", "kv_bytes_per_token": "kv_bytes_per_token_per_gpu"}
    rows = []
    for name in names():
        spec = load(name)
        found = summary(spec)
        row = {field: found[field] for field in kept} | {ours: found[theirs] for ours, theirs in sizes.items()}
        rows.append({"name": name, **row, "max_length": spec.max_length})
    return rows


def kernels() -> list[dict[str, Any]]:
    """Every family with its fields, what may be swept, and a first example."""
    rows = []
    for family in registered():
        page, told = family.page, " ".join((family.call.__doc__ or "").split())
        example = {"case": dict(page.case), "sweep": dict(page.sweep)} if page else None
        rows.append({"kernel": family.name, "help": told, "fields": _fields(family), "sweeps": sweepable(family.name),
                     "example": example})  # fmt: skip
    return rows


def _fields(family: Family) -> list[dict[str, Any]]:
    """Fields of a call; of operand types only those that the family has kernels of."""
    needed, default = required(family.call), defaults(family.call)
    choices = {name: list((name == "dtype" and family.dtypes) or rule.choices) or None
               for name, rule in rules(family.call).items()}  # fmt: skip
    return [{"name": name, "type": rule.kind, "required": name in needed, "default": default.get(name),
             "choices": choices[name], "low": rule.low, "high": rule.high, "optional": rule.optional}
            for name, rule in rules(family.call).items()]  # fmt: skip


class GpuQuery(Form):
    """A spec file."""

    gpu: GpuFile


def gpu_answer(query: GpuQuery) -> dict[str, Any]:
    """Every number of the GPU and where it comes from. Raises BadFile, BadInput or a subclass naming the field."""
    gpu = query.gpu.read()
    return numbers(gpu) | {
        "sources": {name: {"kind": source.kind, "note": source.note} for name, source in gpu.sources.items()},
        "command": query_command("gpu", query),
    }


def numbers(gpu: GPU) -> dict[str, Any]:
    """All fields of a GPU but for its sources."""
    return {field.name: getattr(gpu, field.name) for field in fields(GPU) if field.name not in ("origin", "sources")}


class ModelQuery(Form):
    """A built-in model or the content of a config.json, as one rank of a split holds it."""

    model: Model
    tp: limits.Degree = 1
    pp: limits.Degree = 1
    ep: limits.Degree = 1


def model_answer(query: ModelQuery) -> dict[str, Any]:
    """Totals, the pattern of layers, and the parts of each kind. Raises what `load` raises, and CannotShard."""
    spec, parallel = model_of(query.model), Parallel(query.tp, query.pp, query.ep)
    return summary(spec, parallel) | asdict(blocks(spec, parallel)) | {"command": query_command("model", query)}
