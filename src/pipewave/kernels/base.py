"""How kernel families are declared and found: calls as columns, their context, what an analysis answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.families import CLASSES, Call
from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.gpus import GPU
from pipewave.physics.arith import ARRAY, SCALAR, Arith, clipped, log2
from pipewave.physics.cache import l2_bytes
from pipewave.physics.demand import Array, Demand, demand
from pipewave.physics.power import Work
from pipewave.software import rules, stacks

if TYPE_CHECKING:
    from pipewave.kernels.family_metadata import FamilyMetadata, Measurements, Page, Profile

FEATURES, FAMILIES = (Path(__file__).with_name(f"{name}.json") for name in ("features", "families"))
Columns = Mapping[str, Any]  # name → float64 array [calls], or Ragged
FUNCTIONS = ("analyse", "same", "variant", "one", "formula", "alike", "check_on", "assumed")  # parts of a record


# Named features as one matrix: what a net takes its inputs from without visiting every name.


class Features(Mapping[str, Array]):
    """Features by name, [call] each, held as `values` [feature, call]."""

    __slots__ = ("names", "values_")

    def __init__(self, names: tuple[str, ...], values: Array) -> None:
        self.names, self.values_ = names, values

    def __getitem__(self, name: str) -> Array:
        return np.asarray(self.values_[_places(self.names, (name,))[0]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, wanted: tuple[str, ...]) -> Array:
        """The features of these names, [name, call]. KeyError for a name that is not there."""
        return self.values_[_places(self.names, wanted)]


@lru_cache(maxsize=1024)
def _places(names: tuple[str, ...], wanted: tuple[str, ...]) -> NDArray[np.intp]:
    at = {name: place for place, name in enumerate(names)}
    return np.array([at[name] for name in wanted])


def features_of(row: str, ctx: Context | None = None, xp: Arith = ARRAY, **known: Any) -> dict[str, Any]:
    """What a net sees of calls, by a row of `features.json`: formulas over `known`, the context's GPU and its options.

    `log` is the base-2 logarithm within bounds: beyond them a size no longer matters, and a net would only extrapolate.
    """
    known |= {"gpu": ctx.gpu, "l2": l2_bytes(ctx.gpu), "option": ctx.option} if ctx else {}
    found: dict[str, Any] = eval(_feature_row(row), _feature_functions(xp), known)
    return found


@cache
def _feature_functions(xp: Arith) -> dict[str, Any]:
    def log(value: Any, low: float | None = None, high: float | None = None) -> Any:
        found = log2(value, xp)
        found = found if low is None else xp.maximum(found, low)
        return found if high is None else xp.minimum(found, high)

    names = ("log2", "minimum", "maximum", "where", "ceil", "gcd")
    found = {"log": log, "clip": partial(clipped, xp=xp), "bool": bool, "__builtins__": {}}
    return found | {name: getattr(xp, name) for name in names}


@cache
def _feature_row(row: str) -> CodeType:
    """The formulas of a row as one expression: a batch of features takes hardly longer than one of them."""
    listed = ", ".join(f"{name!r}: ({formula})" for name, formula in packaged.shared(FEATURES)[row].items())
    return compile(f"{{{listed}}}", "<features>", "eval")


# The door every kernel family comes through: calls as columns, their context, and what a family must answer.


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of unequal length, one a call: call i owns values[offsets[i]:offsets[i+1]]."""

    values: Array  # end to end
    offsets: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Context:
    """What is the same for a batch of calls: the GPU, the operand type, the software, how it is measured."""

    gpu: GPU
    dtype: str = "bf16"
    protocol: str = "cold"
    stack: str = ""  # whose rows answer
    impl: str = ""
    options: tuple[tuple[str, Any], ...] = ()  # non-numeric fields of the call (kv_dtype, routing, part, ...)
    requested: str = ""  # another version that a caller named: what rules of software say is said of that one

    @property
    def framework(self) -> str:
        """`vllm` of `vllm-0.22.1`."""
        return self.stack.partition("-")[0]

    def option(self, name: str, default: Any = None) -> Any:
        """A non-numeric field of the calls."""
        return dict(self.options).get(name, default)

    @property
    def version(self) -> tuple[int, ...]:
        """Numbers of the version asked for, also where another's rows answer: rules hold for it."""
        return stacks.version(self.requested or self.stack)

    def rule(self, name: str, **more: Any) -> Any:
        """What a rule of software says here; `more` facts are those that the rule asks for besides."""
        return _ruled(self, name, tuple(more.items()))


@lru_cache(maxsize=16384)
def _ruled(ctx: Context, name: str, more: tuple[tuple[str, Any], ...]) -> Any:
    facts = {
        "framework": ctx.framework,
        "version": ctx.version,
        "architecture": ctx.gpu.architecture,
        "mma": ctx.gpu.traits.mma,
        "gpu": ctx.gpu.base_gpu,
        "dtype": ctx.dtype,
        "protocol": ctx.protocol,
        "impl": ctx.impl,
    }
    return rules.answer(name, facts | dict(more))


@dataclass(frozen=True, slots=True)
class Analysis:
    """What physics says of a batch."""

    demand: Demand  # least
    base_s: Array  # estimated seconds
    features: Mapping[str, Array]  # for the learned residual
    net: str  # which learned net corrects base_s
    work: Work | None = None  # done, which energy is counted from; None: the least

    @property
    def done(self) -> Work:
        """FLOPs and bytes of each call as they are, not at least."""
        return self.work or Work(self.demand.tensor, self.demand.dram, self.demand.l2)


class Sketch(NamedTuple):
    """An analysis before it is laid out: plain floats of one call, or arrays over many, with floats among them."""

    amounts: Mapping[str, Any]  # of the demand by pipe
    base_s: Any
    features: Mapping[str, Any]
    net: str
    work: Work

    def analysis(self, calls: int) -> Analysis:
        """Laid out as arrays over `calls`."""
        base_s, features = np.asarray(self.base_s).reshape(calls), self.features
        if calls == 1:
            features = Features(tuple(features), np.array(list(features.values()))[:, None])
        elif not isinstance(features, Features):
            features = {name: _laid_out(value, calls) for name, value in features.items()}
        return Analysis(demand(calls, **self.amounts), base_s, features, self.net, self.work.laid_out(calls))


def _laid_out(value: Any, calls: int) -> Array:
    """A number for every call; one that holds for all is spread out."""
    if isinstance(value, np.ndarray) and value.shape == (calls,) and value.dtype == np.float64:
        return value  # asking numpy takes longer
    return np.broadcast_to(np.asarray(value, float), (calls,))


@dataclass(frozen=True, slots=True, eq=False)  # distinguished by identity: what is worked out of one is cached by it
class Family:
    """A kernel family: its call class and the function from columns and context to an analysis."""

    name: str
    call: type[Call]
    # By `formula` where that is given; of lists, a third argument holds requests that are grouped already.
    analyse: Callable[..., Analysis] = None  # type: ignore[assignment]
    options: tuple[str, ...] = ()  # fields of the call that go to `Context.options` instead of the columns
    same: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None  # what stands for options that are answered alike
    ragged: tuple[str, ...] = ()  # fields that are lists
    variant: Callable[[Mapping[str, Any]], str] | None = None  # key of a case: different ones are analysed separately
    nets: tuple[str, ...] = ()
    one: Callable[[Mapping[str, Any], Context], Sketch] | None = None  # analyses a single case without arrays
    formula: Callable[[Columns, Context, Arith], Sketch] | None = None  # for columns, or for one call's numbers
    # Of a call whose lists hold one number each, from these and the length of the lists; `one` analyses the others.
    alike: Callable[[Mapping[str, Any], Context, Sequence[Any], Arith], Sketch] | None = None
    dtypes: tuple[str, ...] = ()  # operand types that kernels exist for; empty: all that the GPU runs
    selected_by: tuple[str, ...] = ()  # options by which a stack chooses among its implementations
    reads: str = ""  # what a step leaves in L2: "operands" (weights, a cache) or "activations" of the kernel before
    example: str = ""  # a command line
    metadata: Mapping[str, Any] | FamilyMetadata | None = None  # what traces, measurements and pages need, or its row
    check_on: Callable[[Mapping[str, Any], GPU], None] | None = None  # BadInput for a case that cannot run on a GPU
    assumed: Callable[[Context], str] | None = None  # what an answer assumes that no row of any GPU shows, or ""

    def __post_init__(self) -> None:
        if self.analyse is None:
            object.__setattr__(self, "analyse", partial(_by_formula, self.formula))

    @property
    def profile(self) -> Profile:
        """How profiles show it."""
        return _metadata_of(self).profile

    @property
    def rows(self) -> Mapping[str, Measurements]:
        """Its measured rows, by the kernel name that they carry."""
        return _metadata_of(self).rows

    @property
    def page(self) -> Page | None:
        """Its first view in the browser."""
        return _metadata_of(self).page


def _by_formula(formula: Callable[[Columns, Context, Arith], Sketch], cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    calls = len(next(iter(cols.values())))
    if calls > 1:
        return formula(cols, ctx, ARRAY).analysis(calls)
    return formula({name: float(column[0]) for name, column in cols.items()}, ctx, SCALAR).analysis(calls)


@lru_cache(maxsize=256)
def _metadata_of(family: Family) -> FamilyMetadata:
    from pipewave.kernels.family_metadata import FamilyMetadata, of_row  # loaded by rooms that ask, not by predictions

    about = family.metadata
    return of_row(family.name, about, named) if isinstance(about, Mapping) else about or FamilyMetadata()


def named(home: str) -> Any:
    """What stands in a file of this package, as `file:NAME`."""
    module, _, name = home.partition(":")
    return getattr(import_module(f"pipewave.kernels.{module}"), name)


@dataclass(slots=True)
class _Registry:
    """Families by name, as far as they are loaded; `rows` of the built-in ones, loaded when first asked for, whose call
    classes are those of the public contract: functions as file and name, so that a command about one does without the
    others.
    """

    families: dict[str, Family] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: packaged.shared(FAMILIES))
    revision: int = 0


_REGISTRY = _Registry()


def register(family: Family, *, replace: bool = False) -> Family:
    """Add a family, built-in or a user's own, under its name; BadInput when the name is taken."""
    if family.name in families() and not replace:
        raise BadInput(f"kernel {family.name!r} is registered already: pass replace=True", field="kernel")
    _REGISTRY.families[family.name] = family
    _REGISTRY.revision += 1
    CLASSES[family.name] = family.call
    return family


def family_of(name: str) -> Family:
    """The family of that name, built-in or registered. KeyError for others."""
    try:
        return _REGISTRY.families[name]
    except KeyError:
        row = _REGISTRY.rows[name]
        told: dict[str, Any] = {part: tuple(it) if isinstance(it, list) else it for part, it in row.items()}
        told |= {part: named(told[part]) for part in FUNCTIONS if part in told}
        return _REGISTRY.families.setdefault(name, Family(name, CLASSES[name], **told))


def families() -> tuple[str, ...]:
    """Names of all registered families, built-in ones first."""
    return tuple({**_REGISTRY.rows, **_REGISTRY.families})


def registered() -> tuple[Family, ...]:
    """All registered families."""
    return tuple(map(family_of, families()))


def revision() -> int:
    """A number that grows with each registration: what is worked out of all families is cached by it."""
    return _REGISTRY.revision


def rows_of() -> Mapping[str, Measurements]:
    """What is known of measured rows, by the kernel name that they carry."""
    return _rows_of(revision())


@lru_cache(maxsize=1)
def _rows_of(_registry: int) -> Mapping[str, Measurements]:
    return {name: rows for family in registered() for name, rows in family.rows.items()}


def group_of(case: Mapping[str, Any]) -> str:
    """Key of the near-duplicates that are held out together, for example `4096,14336` for a product's n and k."""
    rows = rows_of().get(case["kernel"])
    fields = rows.group if rows else ()
    if not fields:  # a kernel without rows in training: its own sizes
        fields = tuple(sorted(name for name, value in case.items() if type(value) is int))
    return ",".join(str(int(case.get(name) or 0)) for name in fields)
