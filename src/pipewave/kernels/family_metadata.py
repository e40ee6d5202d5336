"""What traces, measurements and pages need to know of a kernel family, declared by the family itself.

Each part has a default that says nothing, so that a family may start with an analysis alone. Predictions never look
here, so it is imported when one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import expm1, prod
from pathlib import Path
from typing import Any, NamedTuple

from pipewave.calls.families import CLASSES, Call
from pipewave.files import packaged
from pipewave.files.formulas import Terms
from pipewave.kernels.profiler import Given, KernelName, Launched, Op, Shaped, Step

Case = Mapping[str, Any]
OperatorReader = Callable[[Op, Launched], Call | None]
GroupReader = Callable[[Launched, Step | None, Given], Shaped | None]


def names_of(family: str | None) -> tuple[KernelName, ...]:
    """The names of a built-in family in the order of ranks, of which one table holds all; None: what none predicts."""
    rows = packaged.shared(Path(__file__).with_name("kernel_names.json"))
    return tuple(KernelName(**row) for row in rows if row["family"] == family)


def operators_of(family: str) -> dict[str, OperatorReader]:
    """How to read calls of a built-in family off operators: by formulas over PyTorch's arguments (`operators.json`)."""
    rows = packaged.shared(Path(__file__).with_name("operators.json"))
    return {name: partial(_read, row) for row in rows if row["family"] == family for name in row["operators"]}


def _read(row: Mapping[str, Any], op: Op, launched: Launched) -> Call | None:
    known: dict[str, Any] = {
        "shape": op.shape,
        "bytes": op.bytes,
        "width": op.width,
        "type_of": lambda i: op.dtype(i, launched),
    }
    known |= {"name": op.name, "kernel": launched.head.name, "prod": prod, "max": max, "len": len}
    terms = Terms(row.get("terms", {}), **known)
    if not terms.of(row.get("when", True)):
        return None
    return CLASSES[row["family"]](**{name: terms.of(formula) for name, formula in row["call"].items()})


def launches_of(family: str) -> GroupReader | None:
    """How to read calls of a built-in family off whole launches: by formulas (`launches.json`); None without any."""
    rows = packaged.shared(Path(__file__).with_name("launches.json"))
    own = [row for row in rows if family in row["families"]]
    return partial(_launch, own) if own else None


def _launch(rows: Sequence[Mapping[str, Any]], launched: Launched, _step: Step | None, _given: Given) -> Shaped | None:
    known: dict[str, Any] = {"launched": launched, "head": launched.head.arg, "len": len, "int": int, "str": str}
    known |= {"quantised": any("group_quant" in kernel.name for kernel in launched.kernels)}
    known |= {"whole": lambda value: isinstance(value, int)}
    for row in rows:
        above = {name: launched.op(*names) for name, names in row.get("above", {}).items()}
        terms = Terms(row["terms"], **known, **above)
        if None not in above.values() and terms.of(row["when"]):
            call = CLASSES[str(launched.family)](**{name: terms.of(formula) for name, formula in row["call"].items()})
            return Shaped(row.get("name", launched.role), call)
    return None


@dataclass(frozen=True, slots=True)
class Profile:
    """How a profile shows the family."""

    names: tuple[KernelName, ...] = ()  # of its kernels
    role: str = ""  # the part that its call has in a model, where that is not the family's name
    # How to read a call off an operator of that name.
    operators: Mapping[str, OperatorReader] = field(default_factory=dict)
    group: GroupReader | None = None  # off a whole launch, which comes first
    whole: tuple[str, ...] = ()  # operators that are one call however many kernels they run
    anchors: tuple[str, ...] = ()  # roles that hold a sequence of kernels together when it is matched to a model's
    fusible: bool = False  # compilers run such calls together with their neighbours
    generated: bool = False  # compilers write such kernels themselves


class Runner(NamedTuple):
    """An implementation to measure."""

    module: str  # without one it is measured in a clone, among several processes or as no plan ships
    builder: str  # its function from (case, pools) to a prepared call
    library: str


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured rows of the family, or of one operation of it, under the kernel name that they carry."""

    runners: Mapping[str, Runner] = field(default_factory=dict)  # implementations by name
    # The one where a case names none, by type and, under "", for all others.
    usual: Mapping[str, str] = field(default_factory=dict)
    work: Callable[[Case], tuple[float, float]] | None = None  # (FLOPs, bytes) of a case, roughly, to skip long ones
    together: tuple[str, ...] = ()  # fields of the jobs that stay in one batch
    group: tuple[str, ...] = ()  # fields that near-duplicate rows share


class Page(NamedTuple):
    """A first view in the browser."""

    case: Mapping[str, Any]  # without its swept field
    sweep: Mapping[str, Any]
    # Rounds of blocks of each call from (columns, context, analysis), NaN where none is named.
    waves: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class FamilyMetadata:
    """All of it: how profiles show the family, its measured rows by the kernel name they carry, its first view."""

    profile: Profile = Profile()
    rows: Mapping[str, Measurements] = field(default_factory=dict)
    page: Page | None = None


# What a row of `families.json` says of a built-in family. `work` may be formulas over the fields of a case.

WORK: Mapping[str, Any] = {"dtype": "'bf16'", "quantize": False, "fused_add": False, "tp": 1}  # where a case is silent


def of_row(family: str, row: Mapping[str, Any], named: Callable[[str], Any]) -> FamilyMetadata:
    """The metadata of a family; functions stand there by the names that `named` finds them by."""
    said: dict[str, Any] = {part: tuple(it) if isinstance(it, list) else it for part, it in row["profile"].items()}
    said |= {"group": named(said["group"]) if "group" in said else launches_of(family)}
    profile = Profile(names_of(family), operators=operators_of(family), **said)
    rows = {name: _measurements(each, named) for name, each in row.get("rows", {}).items()}
    page = row.get("page")
    waves = {"waves": named(page["waves"])} if page and "waves" in page else {}
    return FamilyMetadata(profile, rows, Page(**page | waves) if page else None)


def _measurements(row: Mapping[str, Any], named: Callable[[str], Any]) -> Measurements:
    runners = {
        name: Runner(module and f"pipewave.measure.impls.{module}", *more)
        for name, (module, *more) in row.get("runners", {}).items()
    }
    work = row.get("work")
    if isinstance(work, Mapping):
        work = partial(_work, work)
    elif work:
        work = named(work)
    fields = {name: tuple(row.get(name, ())) for name in ("together", "group")}
    return Measurements(runners, row.get("usual", {}), work, **fields)


def _work(formulas: Mapping[str, Any], case: Case) -> tuple[float, float]:
    terms = Terms({**WORK, **formulas}, **case, expm1=expm1)
    return float(terms["flops"]), float(terms["bytes"])
