"""What a page offers to choose from: GPUs, models, kernels, and the limits of what may be asked."""

from __future__ import annotations

from functools import cache
from typing import Any

from pipewave.calls.families import KV_DTYPES
from pipewave.calls.fields import Rule, defaults, required, rules
from pipewave.gpus.limits import LIMITS
from pipewave.gpus.registry import all_gpus
from pipewave.kernels import Family, registered
from pipewave.models import load, names
from pipewave.models.summary import summary
from pipewave.planning.prices import prices
from pipewave.software import engine_rules, stacks
from pipewave.web import limits, tuner
from pipewave.web.gpu import numbers
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
