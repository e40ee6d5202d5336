"""What accompanies a net's weights: rows it was trained on, by GPU and software, and how wide its intervals are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

from pipewave.calls.dtypes import FOUR_BIT, SIXTEEN_BIT
from pipewave.gpus.architectures import generation
from pipewave.gpus.registry import of_generation
from pipewave.physics.arith import ARRAY, Arith
from pipewave.software import stacks
from pipewave.software.rules import constant

LEVELS = ("measured", "other_gpu", "nearest_version", "other_framework")  # from what was asked for to what is furthest
BASES = ("measured_gpu", "same_architecture", "new_architecture")  # from the most to the least familiar
AGAIN = "collected_again"  # what another day and GPU of the same model differ by, where the metadata say it


class TrainingRow(NamedTuple):
    """Rows of one implementation of a stack."""

    protocol: str
    stack: str
    kind: str  # `kind_of` their types
    gpu: str
    impl: str


def kind_of(dtype: str, kv_dtype: str | None = None) -> str:
    """`bf16`, or `bf16,fp8` where the cache is of another type than the call."""
    return dtype if kv_dtype in (None, "", dtype) else f"{dtype},{kv_dtype}"


def alike(kind: str) -> tuple[str, ...]:
    """The kind itself, and that of the other 16-bit type."""
    dtype, comma, cache = kind.partition(",")
    caches = (cache, *SIXTEEN_BIT.get(cache, ()))
    others = (dtype, *SIXTEEN_BIT.get(dtype, ()))
    return tuple(dict.fromkeys(kind_of(one, two) if comma else one for one in others for two in caches))


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Training rows by software."""

    rows: frozenset[TrainingRow] = frozenset()
    crossed: bool = False  # they are of other types than the call

    def pool(self, kind: str, protocol: str) -> TrainingRows:
        """The rows nearest to a kind under a protocol: those themselves, or of its type, or of the protocol.

        Kernels of 4-bit weights are their own: rows of other types under the protocol say nothing about them.
        """
        dtype, kinds = kind.partition(",")[0], alike(kind)
        same = alike(dtype)
        types = {row.kind for row in self.rows if row.kind.partition(",")[0] in same}
        near, far, under = (((protocol,), kinds), ((protocol,), types)), (((), kinds), ((), types)), ((protocol,), None)
        for protocols, some in (*near, *far, under) if dtype in FOUR_BIT else (*near, under, *far):
            if (found := self._of(protocols, some)).rows:
                return replace(found, crossed=some is None)
        return TrainingRows(self.rows, crossed=True)

    def _of(self, protocols: Collection[str], kinds: Collection[str] | None = None) -> TrainingRows:
        """Rows of these protocols, none standing for all, and of these kinds."""
        kept = (
            r for r in self.rows if (not protocols or r.protocol in protocols) and (kinds is None or r.kind in kinds)
        )
        return TrainingRows(frozenset(kept))

    def of_generation(self, capability: int) -> TrainingRows:
        """The rows of GPUs that run the same kernels as those of a compute capability."""
        gpus = of_generation({row.gpu for row in self.rows}, capability)
        return TrainingRows(frozenset(row for row in self.rows if row.gpu in gpus))

    def elsewhere(self, dtype: str, protocol: str) -> frozenset[str]:
        """Stacks with rows of the type, and with rows under the protocol, if not both at once."""
        kinds = alike(dtype)
        of_type = {row.stack for row in self.rows if row.kind.partition(",")[0] in kinds}
        return frozenset(of_type & {row.stack for row in self.rows if row.protocol == protocol})

    def exactly(self, kind: str, protocol: str, stack: str, impl: str | None = None) -> TrainingRows:
        """Rows that tell how near a stack or an implementation is: of kind and protocol, else of any protocol."""
        pool = self.pool(kind, protocol)
        listed = any(row.stack == stack if impl is None else row.impl == impl for row in pool.rows)
        return pool if listed or pool.crossed else self._of((), alike(kind))

    def stacks(self, gpu: str | None = None) -> tuple[str, ...]:
        """Stacks with rows, on any GPU or on this one."""
        return tuple(sorted({row.stack for row in self.rows if gpu in (None, row.gpu)}))

    def gpus(self, stack: str) -> tuple[str, ...]:
        """Where a stack has rows."""
        return tuple(sorted({row.gpu for row in self.rows if row.stack == stack}))

    def level(self, gpu: str, stack: str, impl: str | None = None) -> str:
        """How near the rows are to a stack, and to an implementation of it where one is given, on a GPU."""
        rows = [row for row in self.rows if impl is None or row.impl == impl]
        if any(row.stack == stack and row.gpu == gpu for row in rows):
            return LEVELS[0]
        if any(row.stack == stack for row in rows):
            return LEVELS[1]
        same = any(stacks.framework(row.stack) == stacks.framework(stack) for row in rows)
        return LEVELS[2] if same else LEVELS[3]


def furthest(*levels: str) -> str:
    """Of several levels, the one that promises least."""
    return max(levels, key=LEVELS.index)


def changes(stack: str, dtype: str, net: str, capability: int) -> tuple[tuple[int, ...], ...]:
    """Versions of the stack's framework from which on it runs other kernels of a type, for calls that a net answers."""
    facts = {"framework": stacks.framework(stack), "dtype": dtype, "net": net, "capability": capability}
    found: tuple[tuple[int, ...], ...] = constant("changed_in", **facts)
    return found


def from_nested(document: Mapping[str, Any]) -> TrainingRows:
    """Rows as cards hold them: protocol → stack → kind → GPU → implementations."""
    rows = (
        TrainingRow(protocol, stack, kind, gpu, impl)
        for protocol, of_protocol in document.items()
        for stack, of_stack in of_protocol.items()
        for kind, of_kind in of_stack.items()
        for gpu, impls in of_kind.items()
        for impl in impls
    )
    return TrainingRows(frozenset(rows))


@dataclass(frozen=True, slots=True)
class Interval:
    """Half-width in log time of a 90 % interval: `multiple * scale ** power`."""

    multiple: float
    power: float = 1.0  # how far a net's own idea of its error counts: fully on GPUs of its rows, hardly on others
    most: float | None = None  # of the least certain row that settled both: nothing says that it grows beyond

    def __call__(self, scale: Any, xp: Arith = ARRAY) -> Any:
        """Half-width in log time at an error scale."""
        half = self.multiple * scale**self.power
        return half if self.most is None else xp.minimum(half, self.most)

    def times(self, factor: float) -> Interval:
        """The law whose half-widths are so many times as wide."""
        most = None if self.most is None else factor * self.most
        return Interval(factor * self.multiple, self.power, most)

    def given(self) -> dict[str, float]:
        """As the metadata of weights hold it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def intervals_of(
    known: Mapping[str, Interval],
    basis: str,
    protocol: str = "",
    software: str = LEVELS[0],
    dtype: str = "",
    *,
    stack: str = "",
    sibling: bool = False,
    aged: float = 1.0,
    least: float = 0.0,
) -> tuple[Interval, ...]:
    """The intervals of which the widest counts: no call gets less than it would on a more familiar GPU.

    `basis|protocol` stands in for a basis where a protocol has an interval of its own, `basis|protocol|stack` where its
    rows of a stack have. A level of `software` adds its own (that of the type, where it has one), or where it has none
    those of all nearer levels: a version known elsewhere and a neighbour known here are wrong by different amounts, and
    neither is nearer always. Cold rows are of one architecture: on others, a cold call is no more certain than a
    replay, which was measured on all. A GPU of which a `sibling` was measured, as compute capability 10.3 is of 10.0
    (CUDA's family-specific code, sm_100f, runs on both), is as certain as a new GPU of a known architecture: it runs
    the same kernels. `aged` widens those of other software for the time between its release and that of the version
    asked for, and `least` is the least half-width in log time where it ran other kernels (`pipewave.software.ageing`).
    """
    ground = BASES[1] if sibling else basis
    bases = [name for name in (AGAIN, *BASES[: BASES.index(ground) + 1]) if name in known]
    told = {name: f"{name}|{dtype}" if f"{name}|{dtype}" in known else name for name in LEVELS[1:]}
    levels = (software,) if told.get(software) in known else LEVELS[1 : LEVELS.index(software) + 1]
    added = (known[told[name]].times(aged) for name in levels if told[name] in known)
    replayed = (f"{BASES[-1]}|graph",) if (ground, protocol) == (BASES[-1], "cold") else ()
    elsewhere = (known[name] for name in replayed if name in known)
    each = [known.get(f"{name}|{protocol}|{stack}") or known.get(f"{name}|{protocol}", known[name]) for name in bases]
    return (*each, *elsewhere, *added, *((Interval(least, 0.0),) if least else ()))


def half_width(intervals: Sequence[Interval], scale: Any, xp: Arith = ARRAY) -> Any:
    """Half-width in log time: the widest of the intervals."""
    return reduce(xp.maximum, [interval(scale, xp) for interval in intervals])


@dataclass(frozen=True, slots=True)
class WeightsMetadata:
    """What accompanies a net: where it was trained, how wide its intervals are, what stands in when nothing is said."""

    trained: frozenset[tuple[str, str, str]]  # (gpu, dtype, protocol)
    capabilities: frozenset[tuple[int, str, str]]  # (compute capability, dtype, protocol)
    intervals: Mapping[str, Interval]  # basis → how wide 90 % of its errors are
    stacks: Mapping[str, tuple[str, ...]]  # protocol → stacks with rows
    default_stack: Mapping[str, str]  # protocol → stack when none is named
    default_impl: Mapping[str, str]  # "stack|compute capability|dtype", finer and coarser keys → implementation
    known: TrainingRows = field(default_factory=TrainingRows)  # the rows by software

    def basis(self, gpu: str, capability: int, dtype: str, protocol: str) -> str:
        """Provenance of an answer, as the contract defines it."""
        if (gpu, dtype, protocol) in self.trained:
            return "measured_gpu"
        return "same_architecture" if (capability, dtype, protocol) in self.capabilities else "new_architecture"

    def impl(self, stack: str, capability: int, dtype: str, selectors: Sequence[str] = (), net: str = "") -> str:
        """The implementation that stack uses of a type on such a GPU, from the most to the least specific record.

        `selectors`: what else the stack chooses by, as in `Family.selected_by`. What the nearest version runs on
        this generation is closer than what the stack runs elsewhere, and one 16-bit type stands in for the other; no
        other type ever does: empty where none is known.
        """
        kinds = (dtype, *SIXTEEN_BIT.get(dtype, ()))
        near = self._near(stack, capability, kinds, net)
        keys = [
            "|".join((near, kind, *[kind if value == dtype else value for value in selectors][:many]))
            for kind in kinds
            for many in range(len(selectors), -1, -1)
        ]
        return self._recorded(*keys, *(f"{stack}|{kind}" for kind in kinds))

    def impl_of_other_types(self, stack: str, capability: int) -> str:
        """What the stack runs there most often, whatever the type: of another kind than asked for."""
        return self._recorded(self._near(stack, capability), stack)

    def names(self, dtype: str) -> frozenset[str]:
        """Stacks whose implementation of a type is known by name, also where no row of it was trained on."""
        kinds = (dtype, *SIXTEEN_BIT.get(dtype, ()))
        return frozenset(stack for stack, _, kind in (key.partition("|") for key in self.default_impl) if kind in kinds)

    def plain(self, protocol: str, capability: int, dtype: str) -> tuple[str, str]:
        """Default stack and its implementation: what ceilings are answered as."""
        everywhere = sorted({name for names in self.stacks.values() for name in names})
        stack = self.default_stack.get(protocol) or next(iter(self.stacks.get(protocol) or everywhere), "")
        near = self._near(stack, capability)  # of this generation first, as ceilings were trained
        return stack, self._recorded(f"{near}|{dtype}", near, f"{stack}|{dtype}", stack)

    def _recorded(self, *keys: str) -> str:
        """The implementation of the first key that has one."""
        return next((self.default_impl[key] for key in keys if key in self.default_impl), "")

    def _near(self, stack: str, capability: int, kinds: Sequence[str] = (), net: str = "") -> str:
        """The record `stack|capability` closest in kind: the same generation of GPU, then the nearest version.

        Where types are given, only records that know one of them count.
        """
        found = [key.split("|") for key in self.default_impl if key.count("|") == (2 if kinds else 1)]
        known = [
            (name, int(cc))
            for name, cc, *kind in found
            if cc.isdigit() and generation(int(cc)) == generation(capability) and (not kinds or kind[0] in kinds)
        ]
        changed = changes(stack, kinds[0], net, capability) if kinds else ()
        version = stacks.nearest(stack, [name for name, _ in known], changed)
        ccs = [cc for name, cc in known if name == version]
        return f"{version}|{min(ccs, key=lambda cc: (abs(cc - capability), cc))}" if ccs else ""


def metadata_of(document: Mapping[str, Any]) -> WeightsMetadata:
    """The parts of a weights file's metadata that predictions look at; of a ceiling's defaults, the software alone."""
    rows = [(str(gpu), int(cc), str(dtype), str(protocol)) for gpu, cc, dtype, protocol in document.get("trained", ())]
    return WeightsMetadata(
        trained=frozenset((gpu, dtype, protocol) for gpu, _, dtype, protocol in rows),
        capabilities=frozenset((cc, dtype, protocol) for _, cc, dtype, protocol in rows),
        intervals={basis: Interval(**given) for basis, given in document.get("intervals", {}).items()},
        stacks={protocol: tuple(names) for protocol, names in document["stacks"].items()},
        default_stack=dict(document["default_stack"]),
        default_impl=dict(document["default_impl"]),
        known=from_nested(document.get("software", {})),
    )
