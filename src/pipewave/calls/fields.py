"""Base class of kernel calls, frozen values whose every field is checked on construction, and rules of fields.

A call holds numbers about one launch (or one fused operation) and nothing about a GPU. Sizes are in elements, `bytes`
in bytes. A call that exists is well formed. Rules of fields are said once and checked everywhere: in calls, case
files and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from functools import cache
from inspect import cleandoc
from numbers import Real
from operator import gt
from pathlib import Path
from typing import Any, ClassVar, Self, TypeGuard, TypeVar

from pipewave.calls.dtypes import SPELLINGS
from pipewave.errors import BadInput, MissingField, UnknownField, did_you_mean, meant_or_known
from pipewave.files import packaged

SHARED = ("dtype", "stack", "impl")  # fields of every call, listed after its own
OTHER_NAMES = Path(__file__).with_name("other_names.json")
LARGEST_SIZE = 2**31 - 1
LARGEST_LIST = 65_536
# Values of a kind that need no further look, as a condition on `value`.
_PLAIN = {
    "int": "type(value) is int and {low!r} <= value <= {high!r}",
    "bool": "value is True or value is False",
    "ints": "type(value) is tuple and _plainly_whole(rules[{name!r}], value)",
}
DTYPES = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4")
KV_DTYPES = ("bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True)
class Rule:
    """What one field accepts: a kind, bounds for numbers, choices for strings, and whether null is allowed."""

    kind: str  # "int", "float", "bool", "str", "ints", "routing", "config"
    low: float = 1
    high: float = LARGEST_SIZE
    choices: tuple[str, ...] = ()
    optional: bool = False
    length: int | None = None  # entries a list must have

    def check(self, name: str, value: Any) -> Any:
        """Return `value` in its canonical type, or raise BadInput that names the field, the value and what works."""
        if value is None and self.optional:
            return None
        return _CHECKS[self.kind](self, name, value)


def short(value: Any) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fail(name: str, value: Any, wanted: str) -> BadInput:
    return BadInput(f"{name} = {short(value)}: must be {wanted}", field=name)


def _int(rule: Rule, name: str, value: Any) -> int:
    if type(value) is int and rule.low <= value <= rule.high:
        return value
    whole = hasattr(value, "__index__") or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not rule.low <= value <= rule.high:
        raise _fail(name, value, f"an integer from {rule.low:.0f} to {rule.high:.0f}")
    return int(value)


def check_whole(name: str, value: Any, low: int = 1, high: int = LARGEST_SIZE, field: str = "") -> None:
    """Raise BadInput unless a value is an integer within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadInput(f"{name} = {value!r}: must be an integer from {low} to {high}", field=field or name)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number: no text and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _float(rule: Rule, name: str, value: Any) -> float:
    number = hasattr(value, "__float__") and not isinstance(value, (bool, str))
    if not number or not rule.low <= value <= rule.high:  # which NaN is not either
        raise _fail(name, value, f"a number from {rule.low:g} to {rule.high:g}")
    return float(value)


def _bool(_rule: Rule, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(name, value, "true or false")
    return value


def _str(rule: Rule, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _fail(name, value, "a non-empty string")
    if rule.choices and value not in rule.choices:
        if SPELLINGS.get(value) in rule.choices:
            return SPELLINGS[value]
        known, hint = ", ".join(rule.choices), did_you_mean(value, rule.choices)
        raise BadInput(f"{name} = {value!r}: must be one of {known};{hint}".rstrip(";"), field=name)
    return value


def _ints(rule: Rule, name: str, value: Any) -> tuple[int, ...]:
    if _plainly_whole(rule, value):
        return tuple(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= LARGEST_LIST:
        raise _fail(name, value, f"a list of 1 to {LARGEST_LIST} integers")
    if rule.length not in (None, len(value)):
        raise _fail(name, value, f"a list of {rule.length} integers")
    return tuple(_int(rule, f"{name}[{i}]", v) for i, v in enumerate(value))


def _plainly_whole(rule: Rule, value: Any) -> bool:
    """Whether a long list passes at once; False sends it through the careful path."""
    if type(value) not in (tuple, list) or rule.length is not None or not 0 < len(value) <= LARGEST_LIST:
        return False
    return set(map(type, value)) == {int} and min(value) >= rule.low and max(value) <= rule.high


def _routing(rule: Rule, name: str, value: Any) -> str | tuple[int, ...]:
    if not isinstance(value, str):
        return _ints(rule, name, value)
    base = value.removesuffix("_eplb")
    if value in ("balanced", "random", "uniform"):
        return value
    if base.startswith("power_law_") and base.removeprefix("power_law_").replace(".", "", 1).isdigit():
        return value
    if value.startswith("alike_") and value.removeprefix("alike_").isdigit() and int(value.removeprefix("alike_")):
        return value
    laws = "balanced, random, uniform, power_law_A, power_law_A_eplb, alike_N"
    raise _fail(name, value, f"{laws} or a list of tokens per expert")


def _config(rule: Rule, name: str, value: Any) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, Mapping):
        raise _fail(name, value, "an object such as {'BLOCK_SIZE_M': 64, 'num_warps': 4}")
    return tuple(sorted((str(k), _int(rule, f"{name}.{k}", v)) for k, v in value.items()))


_CHECKS = {check.__name__[1:]: check for check in (_int, _float, _bool, _str, _ints, _routing, _config)}


def of(kind: str, default: Any = MISSING, **limits: Any) -> Any:
    """Declare a dataclass field with its rule; without a default the field is required."""
    rule = Rule(kind, optional=default is None, **limits)
    if default is MISSING:
        return field(metadata={"rule": rule})
    return field(default=default, metadata={"rule": rule}, kw_only=True)


@dataclass(frozen=True, slots=True)
class Schema:
    """What is known of a call class: the rule of each field in order, the defaults, and which fields have none."""

    rules: dict[str, Rule]
    defaults: dict[str, Any]
    required: frozenset[str]


@cache
def schema(cls: type) -> Schema:
    """The schema of a call class, read once."""
    declared = sorted(fields(cls), key=lambda f: f.name in SHARED)
    return Schema(
        {f.name: f.metadata["rule"] for f in declared},
        {f.name: f.default for f in declared if f.default is not MISSING},
        frozenset(f.name for f in declared if f.default is MISSING),
    )


@cache
def _check_of(cls: type) -> Callable[[Any], None]:
    """The check of all fields of a call of a class as straight-line code: a third of the time of a loop over them.

    Defaults and plain values pass; others go through their rule, which puts them into their canonical type.
    """
    lines, known = ["def check(call):"], schema(cls)
    defaults = {name: known.defaults.get(name, MISSING) for name in known.rules}
    for name, rule in known.rules.items():
        plain = _PLAIN.get(rule.kind, "False").format(name=name, low=rule.low, high=rule.high)
        lines += [f"    value = call.{name}", f"    if not (value is defaults[{name!r}] or {plain}):",
                  f"        put(call, {name!r}, rules[{name!r}].check({name!r}, value))"]  # fmt: skip
    scope: dict[str, Any] = {"rules": known.rules, "defaults": defaults, "put": object.__setattr__}
    exec("\n".join(lines), scope | {"_plainly_whole": _plainly_whole}, scope)  # our own names of fields
    check: Callable[[Any], None] = scope["check"]
    return check


class FieldsOf(Mapping[str, Any]):
    """The fields of a call by name, read as they are asked for: a dict of many calls would be mostly unread."""

    __slots__ = ("call",)

    def __init__(self, call: Any) -> None:
        self.call = call

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self.call, name)
        except AttributeError:
            raise KeyError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or the default where a call has none of that name."""
        return getattr(self.call, name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(rules(type(self.call)))

    def __len__(self) -> int:
        return len(rules(type(self.call)))


def rules(cls: type) -> dict[str, Rule]:
    """The rules of a call class by field name, in declaration order."""
    return schema(cls).rules


def defaults(cls: type) -> dict[str, Any]:
    """Default values by field name; required fields are absent."""
    return schema(cls).defaults


def required(cls: type) -> frozenset[str]:
    """Names of the fields without a default."""
    return schema(cls).required


def check_names(cls: type, given: Sequence[str] | frozenset[str], extra: frozenset[str] = frozenset()) -> None:
    """Raise UnknownField or MissingField unless `given` names are fields of `cls` (or `extra`) and complete."""
    known = rules(cls).keys() | extra
    for name in given:
        if name not in known:
            raise UnknownField(f"unknown field {name!r};{meant_or_known(name, known)}", field=name)
    missing = [name for name in rules(cls) if name in required(cls) and name not in given]
    if missing:
        raise MissingField(f"missing field {missing[0]!r}: it has no default", field=missing[0])


def own_name(name: str, known: Collection[str]) -> str:
    """The name among the known ones of what somebody calls otherwise; the same where nobody is known to."""
    rows = () if name in known else packaged.shared(OTHER_NAMES)["rows"]
    return next((one for row in rows if name in row for one in row if one in known), name)


def by_own_names(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Arguments by their own names. Raises BadInput where one is given by two names, neither of them None."""
    said = {name: own_name(name, known) for name, value in given.items() if value is not None}
    first = {own: name for name, own in reversed(said.items())}
    if twice := next((name for name, own in said.items() if first[own] != name), ""):
        raise BadInput(f"{first[said[twice]]} and {twice} are one: give one of them", field=twice)
    return {**{name: None for name in given if name in known}, **{own: given[name] for name, own in said.items()}}


def integers(text: str, field: str) -> tuple[int, ...]:
    """`1,2,3500*8` as integers. Raises BadInput, naming the field."""
    try:
        parts = [(int(number), int(times or 1)) for number, _, times in (p.partition("*") for p in text.split(","))]
    except ValueError as error:
        wanted = "must be integers separated by commas, such as 128,4096 or 3500*8"
        raise BadInput(f"{field} = {text!r}: {wanted}", field=field) from error
    if sum(times for _, times in parts) > LARGEST_LIST:
        raise BadInput(f"{field}: must be at most {LARGEST_LIST:,} integers", field=field)
    return tuple(number for number, times in parts for _ in range(times))


def words_of(text: str, kinds: Mapping[str, Callable[[str], Any]], field: str, like: str) -> dict[str, Any]:
    """Values by name of `name=value,name=value`, each of its kind. UnknownField and BadInput tell what it is `like`."""
    said = dict(part.partition("=")[::2] for part in text.split(",") if part.strip())
    named = {name.strip(): value.strip() for name, value in said.items()}
    if unknown := next((name for name in named if name not in kinds), None):
        hint = f"{meant_or_known(unknown, kinds)}; it must look like {like}"
        raise UnknownField(f"{field}: unknown field {unknown!r};{hint}", field=field)
    try:
        return {name: kinds[name](value) for name, value in named.items()}
    except (ValueError, OverflowError) as problem:
        raise BadInput(f"{field} = {text!r}: must look like {like}", field=field) from problem


# What the docstrings of all functions that make calls have in common, written once.

COMPLETED = {
    "{options}": "`dtype` (of operands), `stack` (such as `vllm-0.22.1`), `impl`",
    "{call}": cleandoc("""
        Returns:
            The call, for `predict`.

        Raises:
            BadInput: a value that cannot be; the message names the field and what it takes.
            TypeError: an option that is no field.
        """),
}
F = TypeVar("F", bound=Callable[..., Any])


def documented(function: F) -> F:
    """The function with its docstring completed: `{options}` of every call, `{call}`: what it gives and raises."""
    text = cleandoc(function.__doc__ or "")  # none at all under `python -OO`
    for place, shared in COMPLETED.items():
        text = text.replace(place, shared)
    function.__doc__ = text
    return function


@dataclass(frozen=True, slots=True)
class Call:
    """What all calls share: operand type, and optionally the software that runs it."""

    kernel: ClassVar[str] = ""
    _: KW_ONLY
    dtype: str = of("str", "bf16", choices=DTYPES)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)

    def __post_init__(self) -> None:
        _check_of(type(self))(self)  # type: ignore[arg-type]  # which is hashable
        self.check()

    def changed(self, **values: Any) -> Self:
        """A copy with other values, which are known to be valid: nothing is checked again."""
        copy = object.__new__(type(self))
        for name in FieldsOf(self):
            object.__setattr__(copy, name, values[name] if name in values else getattr(self, name))
        return copy

    def check(self) -> None:
        """Raise BadInput when fields contradict one another."""

    def to_dict(self) -> dict[str, Any]:
        """The call as a case of the contract (without `id` and `gpu`)."""
        return {"kernel": self.kernel} | {name: value for name, value in FieldsOf(self).items() if value is not None}


def check_divides(name: str, value: int, of: str, whole: int) -> None:
    """Raise BadInput unless a field's value divides what it is a number of parts of."""
    if whole % value:
        raise BadInput(f"{name} = {value}: must divide {of} = {whole}", field=name)


def check_lengths(q_lens: Sequence[int], kv_lens: Sequence[int], *, causal: bool) -> None:
    """Raise BadInput unless there is one kv length per query length, none shorter than its new tokens when causal."""
    if len(q_lens) != len(kv_lens):
        raise BadInput(
            f"kv_lens has {len(kv_lens)} entries: must have as many as q_lens ({len(q_lens)})", field="kv_lens"
        )
    if causal and any(map(gt, q_lens, kv_lens)):
        raise BadInput("kv_lens includes the new tokens: each entry must be at least its q_len", field="kv_lens")
