"""`pipewave predict FAMILY`: a command for each kernel family, made from the fields of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipewave.calls.base import Call
from pipewave.calls.fields import Rule, defaults, integers, required, rules
from pipewave.cli.command import Argument, Command, Option, Parameter
from pipewave.cli.streams import check_format, give, say, show
from pipewave.errors import BadInput, UnsupportedDtype, meant_or_known
from pipewave.gpus import GPU, find, names
from pipewave.kernels import Family, family_of
from pipewave.prediction.api import Explanation, explain

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


def in_order(words: list[str], parameters: Sequence[Parameter]) -> list[str]:
    """The words of a command with sizes that are given by name (`m=64`) in their order, and other fields that are
    given by name as the options that they are.

    Raises BadInput for a name that the kernel has not, one given twice, a size that is missing, and one without a name
    beside others that have one.
    """
    sizes = [one.name for one in parameters if not one.is_option]
    options = {one.name: one for one in parameters if one.is_option}
    valued = {spelling for one in options.values() if not one.is_flag for spelling in one.opts}
    named, ordered, rest, value = dict[str, str](), list[str](), list[str](), False
    for word in words:
        name, equals, said = word.partition("=")
        if value or (word[:1] == "-" and not word[1:2].isdigit()):  # a number below zero is a size
            rest.append(word)
            value = not value and word in valued
        elif equals and name.isidentifier():
            _take(named, name, said, [*sizes, *options])
        else:
            ordered.append(word)
    if first := next((name for name in named if name in sizes), ""):
        all_or_none = f"the sizes {', '.join(sizes)} are given all by name or all in this order"
        if ordered:
            raise BadInput(f"{first}={named[first]} beside {ordered[0]}: {all_or_none}", field=first)
        if missing := [size for size in sizes if size not in named]:
            raise BadInput(f"{missing[0]} is not given: {all_or_none}", field=missing[0])
        ordered = [named[size] for size in sizes]
    return [*ordered, *rest, *(f"{options[name].opts[0]}={said}" for name, said in named.items() if name in options)]


def _take(named: dict[str, str], given: str, value: str, known: Sequence[str]) -> None:
    """Put a field that is given by name beside the others."""
    name = given if given in known else given.lower()
    if name not in known:
        raise BadInput(f"{given}={value}: no field is called {given};{meant_or_known(given, known)}", field=given)
    if name in named:
        raise BadInput(f"{given}={value}: {name} is given twice", field=name)
    named[name] = value


def compare(call: Call, gpus: str, protocol: str, form: str, *, verbose: bool = False) -> int:
    """Print the answers of all GPUs that can run the call.

    Returns:
        The exit status: 1 where a GPU cannot run it, as of a file with a refused case.

    Raises:
        UnsupportedDtype: none of them can run it.
        UnknownGPU, BadInput: a name, the protocol or the form is none.
    """
    check_format(form)
    words = names() if gpus.strip().lower() == "all" else gpus.split(",")
    asked = [find(word.strip()) for word in words if word.strip()]
    if not asked:
        raise BadInput(f"gpu = {gpus!r}: name one, or several separated by commas", field="gpu")
    found = [(gpu, _answer(call, gpu, protocol)) for gpu in asked]
    refused = [why for _, why in found if isinstance(why, UnsupportedDtype)]
    if len(refused) == len(found):
        raise refused[0]
    listed = [_listed(gpu, answer) for gpu, answer in found]
    if form == "table":
        give({"call": f"{call.kernel} {_shape(call)} [{protocol}]", "predictions": listed}, False, verbose=verbose)
    else:
        show([row for row in listed if form == "json" or "error" not in row], form, schema="predictions")
        for why in refused if form == "csv" else ():
            say(f"not possible: {why.message}")
    return 1 if refused else 0


def _answer(call: Call, gpu: GPU, protocol: str) -> Explanation | UnsupportedDtype:
    """The answer, or why this GPU has none."""
    try:
        return explain(call, gpu, protocol=protocol)
    except UnsupportedDtype as why:
        return why


def _listed(gpu: GPU, found: Explanation | UnsupportedDtype) -> dict[str, Any]:
    return {"gpu": gpu.name, "error": found.to_dict()} if isinstance(found, UnsupportedDtype) else found.to_dict()


def _shape(call: Call) -> str:
    values = call.to_dict()
    return " ".join(f"{k}={_short(v)}" for k, v in values.items() if k != "kernel" and v != defaults(type(call)).get(k))


def _short(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return str(value)
    return f"[{value[0]}, {value[1]}, ... {len(value)}]" if len(value) > 4 else str(list(value))
