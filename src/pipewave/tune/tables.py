"""Tables of our own kernels that ship: `load_table(kernel).select(**shape)`, what they can choose, and why.

They are tables like those of any kernel, chosen from by the same short lists. What is ours alone: launches are named by
shape fields, their counts are stated (`shipped_kernels`), and the default depends on the shape. Where a launch has a
load beyond its shape (routing, cache lengths), there are two kinds: with it and in expectation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pipewave.errors import BadFile, BadInput, MissingField, UnknownField, UnknownKernel, did_you_mean
from pipewave.gpus import find
from pipewave.tune import store
from pipewave.tune.chooser import Chooser, Memo
from pipewave.tune.compiled_chooser import Key
from pipewave.tune.law.anchors import Floats, Ints, columns, peaks_of
from pipewave.tune.law.model import moved
from pipewave.tune.law.wave import PARTS, design
from pipewave.tune.shipped_kernels import LINE, LOAD_FIELDS, SHAPE_FIELDS, defaults, family, flops, routed, stated
from pipewave.tune.store import KindTable
from pipewave.tune.user_kernels import device
from pipewave.tune.user_kernels.kernel import KernelDescription, Kind
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas, Sizes

FROM = "H200"  # the GPU whose tables are shipped
KERNELS = ("gemm", "gemm_fp8", "moe_w13", "moe_w2", "prefill_causal_128", "prefill_full_128", "prefill_causal_64",
           "prefill_full_64", "decode_128", "decode_64")  # fmt: skip
SHAPE: Kind = ()  # kinds: no load, or in expectation
LOAD: Kind = (("load", "known"),)
AT_LEAST = {  # fields, and what they are no less than
    "prefill": (("kv_len", "q_len"), ("heads", "kv_heads")),
    "decode": (("heads", "kv_heads"), ("longest", "kv_len")),
}
Config = Mapping[str, int]


def load_table(kernel: str, *, gpu: str | None = None, path: str | Path | None = None,
               env: Mapping[str, Any] | None = None, transfer: bool = False) -> KernelTable:  # fmt: skip
    """The table of a shipped kernel (a name of `KERNELS`), ready to `select(...)` from.

    `gpu`: whose; default: this machine's, or the H200's where none is known. One in your own folder goes before the
    shipped one. `path`: a table file instead, of `kernel` unless that is empty. `env`: the machine to serve; default:
    this one, as far as it is known without touching the GPU; `{}` checks nothing, for a machine that only reads.
    `transfer`: where the GPU has no table, carry the H200's over by the physics of both: a warm start, half as sure.

    Raises UnknownKernel, BadFile (no table, or a corrupted one), TableMismatch (of another kernel, space or GPU).
    """
    of = description(kernel or (store.card(Path(path))["kernel"].get("name", "") if path else ""))
    here = device.this_machine() if env is None else env
    name = gpu or here.get("gpu") or FROM
    try:
        meta, kinds = store.read_table(Path(path) if path else store.locate(of.name, name), of)
    except BadFile:
        if not transfer or path is not None:
            raise
        target = peaks_of(find(name).name)
        meta, known = store.read_table(store.locate(of.name, FROM), of)
        meta["env"]["carried_over_to"] = target.gpu
        kinds = {kind: KindTable(moved(one.model, target), one.launches, one.sizes, one.lists)
                 for kind, one in known.items()}  # fmt: skip
        return KernelTable(of, meta, kinds)
    store.check_environment(meta, here)
    return KernelTable(of, meta, kinds)


@cache
def description(kernel: str) -> KernelDescription:
    """A shipped kernel as any kernel is described, by its table that ships. UnknownKernel for another name."""
    if kernel not in KERNELS:
        raise UnknownKernel(f"kernel {kernel!r} has no table;{did_you_mean(kernel, KERNELS)} known: "
                            f"{', '.join(KERNELS)}", field="kernel")  # fmt: skip
    of = store.card(store.PACKAGED / store.slug(FROM) / f"{kernel}.safetensors")["kernel"]
    known = tuple(MappingProxyType(config) for config in of["configs"])
    return KernelDescription(None, kernel, known, SHAPE_FIELDS[family(kernel)], (), (), {}, of["source_sha256"])


def formulas(kernel: str, numbers: Mapping[str, Any], of: KernelDescription | None = None) -> LaunchFormulas:
    """Counts of a shipped kernel's launches, under every configuration (default: its own), with these numbers."""
    made, count = LaunchFormulas(of or description(kernel)), stated(kernel)

    def counts(values: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Any, ...]:
        found = count(values, config)
        return (*found[:5], flops(kernel, config, found), found.idle)

    made.state(counts, numbers)
    return made


def with_derived(kernel: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Shape fields, numbers or columns, with what follows from them: whether rows of fp8 start inside cache lines."""
    return {**shape, "split_lines": 1 + (shape["k"] % LINE > 0)} if kernel == "gemm_fp8" else dict(shape)


def _fields(kernel: str) -> tuple[str, ...]:
    """What may be said of a launch: its shape, then its load."""
    return (*SHAPE_FIELDS[family(kernel)], *LOAD_FIELDS.get(family(kernel), ()))


class KernelTable:
    """A table ready to choose from."""

    def __init__(self, of: KernelDescription, meta: Mapping[str, Any], kinds: store.Kinds) -> None:
        self.of, self.kernel, self.meta, self.kinds = of, of.name, meta, kinds
        self.configs: tuple[Config, ...] = of.configs
        self.config = columns(of.configs)
        self._choosers: dict[Kind, Chooser] = {}
        self._memo: Memo[Config] = Memo()
        self._blocks = tuple(sorted({int(config["BLOCK_M"]) for config in of.configs if "BLOCK_M" in config}))

    @property
    def gpu(self) -> str:
        """The GPU that it was measured on."""
        return str(self.meta["env"]["gpu"])

    def select(self, *values: int, **named: Any) -> Config:
        """Choose for a launch by the fields of its shape (`SHAPE_FIELDS`), in order or by name.

        What is known of its load may be said: `counts`, the tokens that each expert of a MoE layer got; `longest` of
        the sequences that a decode step attends, where `kv_len` is their mean.

        Raises:
            UnknownField, MissingField: no field of the kernel, or one too few. BadInput: a value out of range.
        """
        asked = (values, *named.items())
        found = self._memo.get(asked)
        if found is None:
            fields = _fields(self.kernel)
            if len(values) > len(fields):
                raise BadInput(f"{self.kernel} takes {len(fields)} fields: {', '.join(fields)}", field="shape")
            given = {**dict(zip(fields, values, strict=False)), **named}
            shape = {name: value for name, value in given.items() if value is not None}
            self._check(shape)
            chooser, key = self.key(shape)
            found = self._memo.keep(asked, self.configs[chooser.decide(key)])
        return found

    def _check(self, shape: Mapping[str, Any]) -> None:
        """Refuse a shape by the first of its fields that the kernel has not, or by the first that is missing."""
        needed, known = SHAPE_FIELDS[family(self.kernel)], _fields(self.kernel)
        for name in shape:
            if name not in known:
                raise UnknownField(f"{self.kernel} has no field {name!r};{did_you_mean(name, known)} "
                                   f"fields: {', '.join(known)}", field=name)  # fmt: skip
        for name in needed:
            if name not in shape:
                raise MissingField(f"{self.kernel} needs {name!r}; its shape is {', '.join(needed)}", field=name)
        if min(value for name, value in shape.items() if name != "counts") < 1:
            raise BadInput(f"{dict(shape)}: must be at least 1", field="shape")
        for more, less in AT_LEAST.get(family(self.kernel), ()):
            if more in shape and shape[more] < shape[less]:
                raise BadInput(f"{dict(shape)}: {more} must be at least {less}", field="shape")

    def chooser(self, kind: Kind) -> Chooser:
        """What chooses for a kind of launch; made when it is first asked for."""
        if kind not in self._choosers:
            of, example = self.kinds[kind], self.kinds[kind].launches[0]
            usable = np.flatnonzero(np.isfinite(of.model.sigma))
            at = Sizes(tuple(of.sizes), {})
            self._choosers[kind] = Chooser(formulas(self.kernel, example), at, of.model, usable, at.at(of.launches),
                                           default=self._default, lists=of.lists)  # fmt: skip
        return self._choosers[kind]

    def _default(self, numbers: Mapping[str, Floats]) -> Ints:
        fields = SHAPE_FIELDS[family(self.kernel)]
        shape = {name: np.maximum(np.rint(numbers[name]), 1).astype(np.int64) for name in fields}
        return defaults(self.kernel, self.config, shape)

    def key(self, shape: Mapping[str, Any]) -> tuple[Chooser, Key]:
        """What chooses for a shape, and its key there."""
        numbers = with_derived(self.kernel, shape)
        routing = numbers.pop("counts", None)
        if routing is not None:
            numbers |= routed(routing, self._blocks)
        chooser = self.chooser(LOAD if routing is not None or "longest" in numbers else SHAPE)
        return chooser, tuple(numbers[name] for name in chooser.inputs)

    def us(self, shape: Mapping[str, Any], *, sigmas: float = 0.0) -> Floats:
        """Predicted µs [s, c] at shapes given as columns, so many standard deviations up."""
        numbers = {name: np.asarray(value, float).reshape(-1) for name, value in shape.items()}
        numbers = with_derived(self.kernel, numbers)
        chooser = self.chooser(LOAD if "longest" in shape else SHAPE)
        size = max(len(value) for value in numbers.values())
        numbers = {name: np.broadcast_to(value, size) for name, value in numbers.items()}
        at = np.stack([numbers[name] for name in chooser.sizes.names], axis=1)
        found = chooser.model.us(chooser.formulas.many(numbers), np.log(np.maximum(at, 1.0)))
        return np.asarray(found * np.exp(sigmas * chooser.model.sigma))


def explain(table: KernelTable, shape: dict[str, int], rows: int = 8) -> dict[str, Any]:
    """Rank so many configurations at a shape: `chosen`, `candidates` (parameters, µs, ± µs of two sigma, share of each
    part), `regret_bound` (two sigma), `speed_up` over the default, `provenance`. Raises as `table.select`.
    """
    config = table.select(**shape)
    columns = {name: np.array([value]) for name, value in shape.items()}
    us, (chooser, key) = table.us(columns)[0], table.key(shape)
    chosen, default = table.configs.index(config), int(defaults(table.kernel, table.config, columns)[0])
    order = [chosen, *(i for i in np.argsort(us, kind="stable").tolist() if i != chosen)][:rows]
    order += [default] if default not in order else []
    counts, model = chooser.counts(key)[None], chooser.model
    parts = design(counts, model.peaks.sms, model.resident)[0] * model.law
    share = parts / np.maximum(parts.sum(axis=1, keepdims=True), 1e-9)
    said = {default: "default", chosen: "chosen"}
    candidates = [{**table.configs[i], "us": float(us[i]), "within_us": float(2 * model.sigma[i] * us[i]),
                   **{name: round(float(share[i, list(terms)].sum()), 3) for name, terms in PARTS.items()},
                   "is": said.get(i, "")} for i in order]  # fmt: skip
    inside = "profiled domain" if chooser.listed(key) is not None else "extrapolated"
    whose = " carried over to ".join(filter(None, (table.gpu, table.meta["env"].get("carried_over_to"))))
    # Each law off by two of its sigmas, in the unlucky direction.
    worst = us[chosen] * (1 + 2 * model.sigma[chosen]) / np.min(us * (1 - 2 * model.sigma))
    return {"kernel": table.kernel, "shape": shape, "chosen": dict(config), "candidates": candidates,
            "regret_bound": max(0.0, float(worst) - 1), "speed_up": float(us[default] / us[chosen]),
            "provenance": f"{inside}, source {table.of.source_sha256[:12]}, {whose}"}  # fmt: skip


def runs(select: Callable[[int], Any], points: Sequence[int]) -> list[tuple[int, int, Any]]:
    """Ranges (first, last, choice) of points in ascending order with one choice."""
    alike = (list(group) for _, group in groupby(((point, select(point)) for point in points), key=itemgetter(1)))
    return [(group[0][0], group[-1][0], group[0][1]) for group in alike]


def reachable(
    table: KernelTable, vary: str, points: range, **fixed: int
) -> dict[tuple[tuple[str, int], ...], list[tuple[int, int]]]:
    """Every configuration that `table.select` can choose while one field varies (`m`, `kv_len`), with its intervals.

    All points are tried, so a wide range of attention lengths wants a step. Raises as `select` does.
    """
    out: dict[tuple[tuple[str, int], ...], list[tuple[int, int]]] = {}
    for first, last, config in runs(lambda value: table.select(**fixed, **{vary: value}), list(points)):
        out.setdefault(tuple(config.items()), []).append((first, last))
    return out
