"""`pipewave predict FAMILY`: a command for each kernel family, made from the fields of its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipewave.calls.base import Call
from pipewave.calls.fields import Rule, defaults, required, rules
from pipewave.calls.lists import integers
from pipewave.cli.command import Argument, Command, Option, Parameter
from pipewave.cli.sizes import in_order
from pipewave.kernels import Family, family_of

GPU_HELP = "GPU name or spec file; several separated by commas, or all, are compared."
PROTOCOL_HELP = "How the latency would be measured: cold, serving, graph, profiler_warm."


def command(name: str) -> Command:
    """The command of a family."""
    family = family_of(name)
    return Command(_run(family.call), _parameters(family.call), help=_help(family), arrange=in_order)


def _help(family: Family) -> str:
    first = (family.call.__doc__ or "").strip()
    return first + (f"\n\nExample: `{family.example}`" if family.example else "")


def _run(cls: type[Call]) -> Callable[..., int]:
    """What the command does: answers of all GPUs side by side."""

    def run(**given: Any) -> int:
        from pipewave.cli.side_by_side import compare

        gpus, protocol, form, verbose = (given.pop(name) for name in ("gpu", "protocol", "format", "verbose"))
        fields = {name: _value(rules(cls)[name], value) for name, value in given.items() if value is not None}
        return compare(cls(**fields), gpus, protocol, form, verbose=verbose)

    return run


def _parameters(cls: type[Call]) -> list[Parameter]:
    """The required fields of the family in their order, the others by their names."""
    return [
        *(_parameter(cls, name, rule) for name, rule in rules(cls).items()),
        Parameter("gpu", str, "H200", Option(help=GPU_HELP)),
        Parameter("protocol", str, "cold", Option(help=PROTOCOL_HELP)),
        Parameter("format", str, "table", Option(help="table, json or csv.")),
        Parameter("verbose", bool, False, Option("--verbose", "-v", help="Every note and detail below the answer.")),
    ]


def _parameter(cls: type[Call], name: str, rule: Rule) -> Parameter:
    kind: Any = {"int": int, "float": float, "bool": bool}.get(rule.kind, str)
    parser = _whole if rule.kind == "int" else None
    if name in required(cls):
        return Parameter(name, kind, None, Argument(_wanted(rule), parser=parser), required=True)
    return Parameter(name, kind, defaults(cls)[name], Option(help=_wanted(rule), parser=parser))


def _wanted(rule: Rule) -> str:
    if rule.kind == "ints":
        return "Integers separated by commas; 3500*8 repeats."
    return ", ".join(rule.choices) if rule.choices else ""


def _value(rule: Rule, value: Any) -> Any:
    if rule.kind == "ints" or (rule.kind == "routing" and value[:1].isdigit()):
        return integers(value)
    if rule.kind == "config":
        pairs = (part.partition("=") for part in value.split(","))
        return {key: _whole(number) for key, _, number in pairs}
    return value


def _whole(text: str | int) -> int | str:
    """The integer, or the text itself for the field's rule to refuse by name."""
    try:
        return int(text)
    except ValueError:
        return text
