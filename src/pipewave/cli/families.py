"""`pipewave predict FAMILY`: a command for each kernel family, made from the fields of its calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pipewave.calls.base import Call
from pipewave.calls.fields import Rule, defaults, required, rules
from pipewave.calls.lists import integers
from pipewave.cli.sizes import in_order
from pipewave.kernels import Family, family_of

GPU_HELP = "GPU name or spec file; several separated by commas, or all, are compared."


class Kernel(TyperCommand):
    """A command that takes `-1` for the size it is, to be refused by the field's name, not for an unknown option; and
    sizes by their names (`m=64 n=4096 k=4096`) as well as in their order."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        asks_help = any(word in ctx.help_option_names for word in args)
        words = args if asks_help else in_order(args, self.params)
        ctx.ignore_unknown_options = any(word[:1] == "-" and word[1:2].isdigit() for word in words)
        return super().parse_args(ctx, words)


def command(name: str) -> Any:
    """The command of a family."""
    family, alone = family_of(name), typer.Typer(rich_markup_mode="markdown", add_completion=False)
    alone.command(family.name, cls=Kernel, help=_help(family))(_command(family.call))
    return typer.main.get_command(alone)


def _help(family: Family) -> str:
    first = (family.call.__doc__ or "").strip()
    return first + (f"\n\nExample: `{family.example}`" if family.example else "")


def _command(cls: type[Call]) -> Callable[..., None]:
    """A command whose arguments are the required fields of the family, its options the others."""

    def run(**given: Any) -> None:
        from pipewave.cli.side_by_side import compare

        gpus, protocol, form = given.pop("gpu"), given.pop("protocol"), given.pop("format")
        fields = {name: _value(rules(cls)[name], value) for name, value in given.items() if value is not None}
        raise typer.Exit(compare(cls(**fields), gpus, protocol, form))

    parameters = [_parameter(cls, name, rule) for name, rule in rules(cls).items()]
    parameters += [
        _option("gpu", str, GPU_HELP, "H200"),
        _option("protocol", str, "How the latency would be measured: cold, serving, graph, profiler_warm.", "cold"),
        _option("format", str, "table, json or csv.", "table"),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameter(cls: type[Call], name: str, rule: Rule) -> inspect.Parameter:
    kind: Any = {"int": int, "float": float, "bool": bool}.get(rule.kind, str)
    read = {"parser": _whole, "metavar": "<int>"} if rule.kind == "int" else {}
    if name in required(cls):
        shown = Annotated[kind, typer.Argument(help=_wanted(rule), show_default=False, parser=read.get("parser"))]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=shown)
    return _option(name, kind, _wanted(rule), defaults(cls)[name], **read)


def _option(name: str, kind: type, text: str, default: Any, **reading: Any) -> inspect.Parameter:
    nullable: Any = kind | None if default is None else kind
    annotation: Any = Annotated[nullable, typer.Option(help=text, **reading)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


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
