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
from pipewave.cli.streams import print_notes
from pipewave.kernels import Family, family_of

GPU_HELP = "GPU name or spec file; several separated by commas are compared."
# What a narrow terminal goes without, in order.
DROPPABLE = ("impl", "stack", "software", "bound", "basis", "ceiling", "floor")


class Kernel(TyperCommand):
    """A command that takes `-1` for the size it is, to be refused by the field's name, not for an unknown option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        ctx.ignore_unknown_options = any(word[:1] == "-" and word[1:2].isdigit() for word in args)
        return super().parse_args(ctx, args)


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
        gpus, protocol, form = given.pop("gpu"), given.pop("protocol"), given.pop("format")
        fields = {name: _value(rules(cls)[name], value) for name, value in given.items() if value is not None}
        _compare(cls(**fields), gpus.split(","), protocol, form)

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


def _compare(call: Call, gpus: list[str], protocol: str, form: str) -> None:
    from pipewave.cli.render import check_format, show
    from pipewave.prediction.api import explain
    from pipewave.software.known import LEVELS

    check_format(form)
    answers = [explain(call, gpu.strip(), protocol=protocol) for gpu in gpus]
    if form == "table":
        title = f"{call.kernel} {_shape(call)} [{protocol}]"
        known = all(answer.prediction.software == LEVELS[0] for answer in answers)
        show([_row(answer, known) for answer in answers], form, title=title, droppable=DROPPABLE)
        show([_pipes(answer) for answer in answers], form, title="busy share of each pipe")
        _notes(answers)
    else:
        show([answer.to_dict() for answer in answers], form, schema="predictions")


def _shape(call: Call) -> str:
    values = call.to_dict()
    return " ".join(f"{k}={_short(v)}" for k, v in values.items() if k != "kernel" and v != defaults(type(call)).get(k))


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) > 4:
        return f"[{value[0]}, {value[1]}, ... {len(value)}]"
    return str(value)


def _row(answer: Any, known: bool) -> dict[str, Any]:
    """`known`: all software is measured, which goes without saying."""
    from pipewave.cli.render import ends

    p = answer.prediction
    software = {} if known else {"software": p.software}
    return {
        "GPU": answer.gpu.name,
        "latency µs": p.latency_us,
        "90 % interval": ends(p.low_us, p.high_us),
        "floor": p.floor_us,
        "ceiling": p.ceiling_us,
        "bound": p.bound,
        "basis": p.basis,
        **software,
        "stack": p.stack,
        "impl": p.impl,
    }


def _pipes(answer: Any) -> dict[str, str]:
    from pipewave.cli.render import bar

    shares = {pipe: share for pipe, share in answer.busy.items() if share > 0}
    return {"GPU": answer.gpu.name} | {pipe: f"{bar(share, 8):8} {share:4.0%}" for pipe, share in shares.items()}


def _notes(answers: list[Any]) -> None:
    print_notes(note for answer in answers for note in answer.prediction.notes)
