"""What a page offers to choose from, and a GPU or a model of one's own as it is read."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from pipewave.calls.families import KV_DTYPES
from pipewave.calls.fields import Rule, defaults, required, rules
from pipewave.gpus import GPU
from pipewave.gpus.limits import LIMITS
from pipewave.gpus.registry import all_gpus
from pipewave.kernels import Family, registered
from pipewave.models import load, names
from pipewave.models.shard import Parallel
from pipewave.models.summary import blocks, summary
from pipewave.planning.prices import prices
from pipewave.software import engine_rules, stacks
from pipewave.web import limits, tuner
from pipewave.web.forms import Form, GpuFile, Model, model_of, query_command
from pipewave.web.kernel import sweepable

ENGINES = engine_rules.names()


@cache
def gpus() -> list[dict[str, Any]]:
    """Every shipped GPU with all its numbers, its price where one is known, and the families tuned for it."""
    known = prices()
    return [numbers(gpu) | {"usd_per_hour": known[gpu.name].usd_per_hour if gpu.name in known else None,
                             "tuned": tuner.tuned(gpu.name)} for gpu in all_gpus()]  # fmt: skip


@cache
def models() -> list[dict[str, Any]]:
    """Every built-in model with its size."""
    return [_model(name) for name in names()]


def _model(name: str) -> dict[str, Any]:
    spec = load(name)
    found = summary(spec)
    kept = ("model_type", "layers", "hidden", "parameters", "active_parameters", "kv_dtype")
    return {"name": name} | {field: found[field] for field in kept} | {
        "weights_gib": found["weights_gib_per_gpu"],
        "kv_bytes_per_token": found["kv_bytes_per_token_per_gpu"],
        "max_length": spec.max_length,
    }  # fmt: skip


def kernels() -> list[dict[str, Any]]:
    """Every family with its fields, what may be swept, and a first example."""
    return [_kernel(family) for family in registered()]


def _kernel(family: Family) -> dict[str, Any]:
    page = family.page
    return {"kernel": family.name, "help": " ".join((family.call.__doc__ or "").split()), "fields": _fields(family),
            "sweeps": sweepable(family.name),
            "example": {"case": dict(page.case), "sweep": dict(page.sweep)} if page else None}  # fmt: skip


def _fields(family: Family) -> list[dict[str, Any]]:
    cls = family.call
    needed, default = required(cls), defaults(cls)
    return [{"name": name, "type": rule.kind, "required": name in needed, "default": default.get(name),
             "choices": _choices(family, name, rule), "low": rule.low, "high": rule.high, "optional": rule.optional}
            for name, rule in rules(cls).items()]  # fmt: skip


def _choices(family: Family, name: str, rule: Rule) -> list[str] | None:
    """What a field may be; of operand types only those that the family has kernels of."""
    exist = family.dtypes if name == "dtype" else ()
    return list(exist or rule.choices) or None


def bounds() -> dict[str, Any]:
    """Limits of a request, the words its fields accept, and the range of every GPU number a what-if may change."""
    changeable = {name: limit for name, limit in LIMITS.items() if name != "compute_capability"}
    return limits.table() | {
        "protocols": list(stacks.PROTOCOLS),
        "engines": list(ENGINES),
        "kv_cache_dtypes": ["auto", *KV_DTYPES],
        "what_if": {name: {"low": limit.low, "high": limit.high, "whole": limit.whole}
                    for name, limit in changeable.items()},
    }  # fmt: skip


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
