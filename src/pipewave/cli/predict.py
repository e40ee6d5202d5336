"""`pipewave predict FAMILY`: a command for each kernel family, made of the fields of its calls; or a file of cases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, Any

from pipewave.calls.fields import Call, Rule, defaults, integers, required, rules
from pipewave.cli.command import Argument, Command, Group, Option, Parameter, first_line
from pipewave.cli.options import FORMAT, VERBOSE
from pipewave.cli.streams import answer_cases, bar, give, say, show
from pipewave.errors import BadInput, UnknownKernel, UnsupportedDtype, meant_or_known
from pipewave.gpus import GPU, find, names
from pipewave.kernels import families, family_of, revision
from pipewave.prediction.api import explain
from pipewave.version import VERSION

GPU_HELP = "GPU name or spec file; several separated by commas, or all, are compared."
PROTOCOL_HELP = "How the latency would be measured: cold, serving, graph, profiler_warm."


class Families(Group):
    """One command a family, built when one is asked for."""

    def lines(self) -> dict[str, str]:
        """Names of the families, and what each computes."""
        return {name: first_line(family_of(name).call.__doc__ or "") for name in families()}

    def command(self, name: str) -> Command:
        """The command of a family. Raises UnknownKernel, with the nearest one that there is."""
        if name not in families():
            raise UnknownKernel(f"unknown kernel {name!r}:{meant_or_known(name, families())}", field="kernel")
        return _built(name, revision())


@lru_cache(maxsize=32)
def _built(name: str, _registry: int) -> Command:
    """The command of a family: answers of all GPUs side by side."""
    family = family_of(name)
    cls = family.call

    def run(gpu: str, protocol: str, format: str, verbose: bool, **given: Any) -> int:
        fields = {name: _value(name, rules(cls)[name], value) for name, value in given.items() if value is not None}
        return compare(cls(**fields), gpu, protocol, format, verbose=verbose)

    about = (cls.__doc__ or "").strip() + (f"\n\nExample: `{family.example}`" if family.example else "")
    params = [
        *(_parameter(cls, name, rule) for name, rule in rules(cls).items()),
        Option(help=GPU_HELP).of("gpu", str, "H200"),
        Option(help=PROTOCOL_HELP).of("protocol", str, "cold"),
        FORMAT.of("format", str, "table"),
        VERBOSE.of("verbose", bool, False),
    ]
    return Command(run, params, help=about, arrange=in_order)


def _parameter(cls: type[Call], name: str, rule: Rule) -> Parameter:
    """Required fields by their places, the others by their names."""
    kind: Any = {"int": int, "float": float, "bool": bool}.get(rule.kind, str)
    parser = _integer if rule.kind == "int" else None
    wanted = "Integers separated by commas; 3500*8 repeats." if rule.kind == "ints" else ", ".join(rule.choices or ())
    if name in required(cls):
        return Argument(help=wanted, parser=parser).of(name, kind)
    return Option(help=wanted, parser=parser).of(name, kind, defaults(cls)[name])


def _value(name: str, rule: Rule, value: Any) -> Any:
    if rule.kind == "ints" or (rule.kind == "routing" and value[:1].isdigit()):
        return integers(value, name)
    if rule.kind == "config":
        pairs = (part.partition("=") for part in value.split(","))
        return {key: _integer(number) for key, _, number in pairs}
    return value


def _integer(text: str | int) -> int | str:
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
    """Print the answers of all GPUs that can run the call; exit status 1 where one cannot, as of a file with a refused
    case. Raises UnsupportedDtype where none can, UnknownGPU or BadInput for a name or protocol that is none.
    """
    words = names() if gpus.strip().lower() == "all" else gpus.split(",")
    asked = [find(word.strip()) for word in words if word.strip()]
    if not asked:
        raise BadInput(f"gpu = {gpus!r}: name one, or several separated by commas", field="gpu")
    refused: list[UnsupportedDtype] = []
    listed = [_answer(call, gpu, protocol, refused) for gpu in asked]
    if len(refused) == len(listed):
        raise refused[0]
    if form == "table":
        give({"call": f"{call.kernel} {_shape(call)} [{protocol}]", "predictions": listed}, False, verbose=verbose)
    else:
        show([row for row in listed if form == "json" or "error" not in row], form, schema="predictions")
        for why in refused if form == "csv" else ():
            say(f"not possible: {why.message}")
    return 1 if refused else 0


def _answer(call: Call, gpu: GPU, protocol: str, refused: list[UnsupportedDtype]) -> dict[str, Any]:
    """The answer, or why this GPU has none, which is noted in `refused`, too."""
    try:
        return explain(call, gpu, protocol=protocol).to_dict()
    except UnsupportedDtype as why:
        refused.append(why)
        return {"gpu": gpu.name, "error": why.to_dict()}


def _shape(call: Call) -> str:
    usual, shown = defaults(type(call)), []
    for name, value in call.to_dict().items():
        if name != "kernel" and value != usual.get(name):
            listed = list(value) if isinstance(value, (list, tuple)) else value
            long = isinstance(listed, list) and len(listed) > 4
            shown.append(f"{name}=[{listed[0]}, {listed[1]}, ... {len(listed)}]" if long else f"{name}={listed}")
    return " ".join(shown)


def predict_cases(
    cases: Annotated[str | None, Option(help="JSON-lines file of cases; - is standard input.")] = None,
    gpu: Annotated[str | None, Option(help="GPU of the cases that name none.")] = None,
    out: Annotated[str, Option(help="Where answers go; - is standard output.")] = "-",
    resume: Annotated[bool, Option("--resume", help="Go on where an interrupted run stopped.")] = False,
) -> int:
    """Latency of a kernel (`predict gemm M N K --gpu H200`) or of a file (`predict --cases F --out G`)."""
    from pipewave.prediction.jsonl import answer_stream

    if cases is None:
        raise BadInput("name a kernel (pipewave predict gemm ...) or give --cases FILE", field="cases")
    with bar("cases") as tell:
        work = partial(answer_stream, gpu=find(gpu) if gpu else None, progress=tell)
        return answer_cases(cases, out, work, resume=resume, asked=["predict", VERSION, gpu or ""])


GROUP = Families("Latency of a kernel, or of every case in a file.", {}, predict_cases)
