"""Which layers route to experts: every rule that a config uses must agree."""

from __future__ import annotations

from collections.abc import Callable

from pipewave.models.fields import Fields

Rule = Callable[[Fields, int], list[bool] | None]


def sparse(fields: Fields, count: int) -> list[bool]:
    """True for layers with experts: every rule that a config uses must agree."""
    if not fields.has("experts") or False in (fields.get("enable_moe_block"), fields.get("is_moe")):
        return [False] * count
    rules = [made for rule in _ROUTING if (made := rule(fields, count)) is not None]
    return [all(rule[index] for rule in rules) for index in range(count)]


def _words_of_mlp(fields: Fields, count: int) -> list[bool] | None:
    words = fields.listed("mlp_layer_types", count)
    return None if words is None else [word != "dense" for word in words]


def _first_dense(fields: Fields, count: int) -> list[bool] | None:
    names = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "first_dense_layers")
    name = next((each for each in names if fields.get(each) is not None), None)
    if name is None or isinstance(fields.get(name), list):
        return None
    first = fields.integer(name, low=0)
    return [index >= first for index in range(count)]


def _last_sparse(fields: Fields, count: int) -> list[bool] | None:
    last = fields.get("moe_layer_end_index")
    if not isinstance(last, int) or last < 0:
        return None
    return [index <= last for index in range(count)]


def _every(name: str, first: int) -> Rule:
    """Every n-th layer; `first` is the number of the first layer."""

    def rule(fields: Fields, count: int) -> list[bool] | None:
        value = fields.get(name)
        if value is None:
            return None
        if isinstance(value, list):
            return [bool(flag) for flag in fields.listed(name, count) or []]
        step = fields.integer(name)
        return [(index + first) % step == 0 for index in range(count)]

    return rule


def _among(name: str, *, inside: bool) -> Rule:
    """Layers that a list of numbers (or a text of numbers) names, or all others."""

    def rule(fields: Fields, count: int) -> list[bool] | None:
        value = fields.get(name)
        if value is None or value == []:
            return None
        if isinstance(value, str):
            value = [int(each) for each in value.split(",") if each.strip().isdigit()]
        chosen = set(Fields({name: value}).ints(name))
        return [(index in chosen) == inside for index in range(count)]

    return rule


def _with_offset(fields: Fields, count: int) -> list[bool] | None:
    if not fields.has("expert_layer_period"):
        return None
    period, offset = fields.integer("expert_layer_period"), fields.integer("expert_layer_offset", 0, low=0)
    return [index % period == offset for index in range(count)]


_ROUTING: tuple[Rule, ...] = (
    _words_of_mlp,
    _first_dense,
    _last_sparse,
    _every("moe_layer_freq", 0),
    _every("moe_layer_interval", 0),
    _every("moe_every_n_layers", 0),
    _every("decoder_sparse_step", 1),  # Qwen counts layers from one here, DeepSeek from zero
    _every("interleave_moe_layer_step", 1),
    _every("is_moe_layer", 0),
    _among("mlp_only_layers", inside=False),
    _among("moe_layers_enum", inside=True),
    _among("moe_layers", inside=True),
    _with_offset,
)
