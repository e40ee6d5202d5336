"""Choosing at run time: plain Python over immutable tables. No GPU call, no lock, the same answer everywhere.

A choice is a pure function of the shape and the table. Three speeds: a repeated shape is one dictionary hit; a new M
of a layer that was prepared is a bisection of its switch points; anything else evaluates the two or three laws of its
cell. The memo is a plain dict: one item is set at a time, which threads may do at once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.tune import cells
from pipewave.tune.mapping import LINE, Values, active_experts, lines, mapper, routed
from pipewave.tune.shapes import family, is_up
from pipewave.tune.table import Table
from pipewave.tune.wave import Tabulated, predict_us, tabulate

Config = Mapping[str, int]
# Parameters, those of `Lookup.blocks`, correction, law.
Row = tuple[Config, tuple[int, ...], float, Tabulated]
MEMO = 1 << 16  # shapes remembered; then the memo starts anew
GRANULE, FREE = 16, 64  # above FREE rows, M is rounded up to a multiple of GRANULE: no block is smaller
GENERAL = 8  # configurations tried outside the cells


class Lookup:
    """A table ready to choose from. `select(...)` takes the kernel's shape fields by name.

    `blocks`: the parameters that decide how many blocks of how many trips a launch has.
    """

    blocks: tuple[str, ...] = ("BLOCK_M", "BLOCK_N", "BLOCK_K")

    def __init__(self, table: Table) -> None:
        self.table, self.kernel, self.sms = table, table.kernel, table.fitted.sms
        self._work = mapper(table.kernel)
        fitted = table.fitted
        values = zip(*(column.tolist() for column in fitted.config.values()), strict=True)
        self.configs: tuple[Config, ...] = tuple(
            MappingProxyType(dict(zip(fitted.config, row, strict=True))) for row in values
        )
        used = set(table.cells.config.tolist())
        self._laws = {i: tabulate(fitted.law[i], self.sms, int(fitted.resident[i])) for i in sorted(used)}
        self._rows = dict(self._cell_rows())
        self._general = self._most_used()
        self._memo: dict[Any, Config] = {}
        self._layers: dict[Any, tuple[list[int], list[Config]]] = {}

    def _cell_rows(self) -> Iterable[tuple[int, tuple[Row, ...]]]:
        of = self.table.cells
        start, config, factor = of.start.tolist(), of.config.tolist(), of.factor.tolist()
        for i, key in enumerate(of.key.tolist()):
            yield key, tuple(self._row(config[j], factor[j]) for j in range(start[i], start[i + 1]))

    def _row(self, index: int, factor: float) -> Row:
        config = self.configs[index]
        return config, tuple(config[name] for name in self.blocks), factor, self._laws[index]

    def _most_used(self) -> tuple[Row, ...]:
        used = np.bincount(self.table.cells.config, minlength=len(self.configs))
        most = np.argsort(-used, kind="stable")[:GENERAL].tolist()
        return tuple(self._row(i, 1.0) for i in most if i in self._laws)

    def candidates(self, shape: Values) -> tuple[tuple[Row, ...], bool]:
        """Return the short list of a shape's cell, and whether the shape lies inside the profiled domain."""
        rows = self._rows.get(cells.key(self.kernel, shape))
        return (rows, True) if rows is not None else (self._general, False)

    def choose(self, shape: Values) -> Row:
        """Evaluate the short list; first of equals wins, so the answer is the same everywhere."""
        rows = self._rows.get(cells.key(self.kernel, shape), self._general)
        if len(rows) == 1:
            return rows[0]
        best, least = rows[0], math.inf
        work, sms = self._work, self.sms
        for row in rows:
            us = row[2] * predict_us(work(shape, row[0]), sms, row[3])
            if us < least:
                best, least = row, us
        return best

    def remember(self, key: Any, config: Config) -> Config:
        """Keep a choice."""
        if len(self._memo) >= MEMO:
            self._memo = {}
        self._memo[key] = config
        return config

    def forget(self) -> None:
        """Drop what was remembered; choices do not change."""
        self._memo = {}

    def switches(self, at: Callable[[int], Values], most: int) -> tuple[list[int], list[Config]]:
        """Return (last M of each run, its configuration) for M = 1 … most; exact, since M counts in granules."""
        ends: list[int] = []
        chosen: list[Config] = []
        for m in [*range(1, FREE + 1), *range(FREE + GRANULE, _up(most) + 1, GRANULE)]:
            config = self.choose(at(m))[0]
            if chosen and config is chosen[-1]:
                ends[-1] = m
            else:
                ends.append(m)
                chosen.append(config)
        return ends, chosen


def _up(m: int) -> int:
    return m if m <= FREE else -(-m // GRANULE) * GRANULE


class GemmLookup(Lookup):
    """Dense GEMM."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._bytes = 1 if self.kernel == "gemm_fp8" else 2

    def select(self, m: int, n: int, k: int) -> Config:
        """Choose for C[m, n] = A[m, k] · W[n, k]ᵀ.

        Raises:
            BadInput: a size below 1.
        """
        found = self._memo.get((m, n, k))
        return found if found is not None else self._miss(m, n, k)

    def _miss(self, m: int, n: int, k: int) -> Config:
        if m < 1 or n < 1 or k < 1:
            raise BadInput(f"m, n, k = {m}, {n}, {k}: must be at least 1", field="shape")
        layer = self._layers.get((n, k))
        if layer is not None and m <= layer[0][-1]:
            return self.remember((m, n, k), layer[1][bisect_left(layer[0], m)])
        up = m if m <= FREE else -(-m // GRANULE) * GRANULE
        return self.remember((m, n, k), self.choose({"m": up, "n": n, "k": k})[0])

    def choose(self, shape: Values) -> Row:
        """Do the same as the general case, with what the candidates share worked out once."""
        m, n, k = shape["m"], shape["n"], shape["k"]
        each, sms = self._bytes, self.sms
        # From here to the look-up: `cells.key`, written out for speed.
        cell = int((m - 1) ** 2).bit_length() << 6 | int((n - 1) ** 2).bit_length()
        cell = cell << 6 | int((k - 1) ** 2).bit_length()
        rows = self._rows.get(cell if each > 1 else cell << 6 | (k % LINE > 0), self._general)
        if len(rows) == 1:
            return rows[0]
        dram = (m * k + n * k) * each + 2 * m * n
        best, least = rows[0], math.inf
        for row in rows:
            _, (block_m, block_n, block_k), factor, law = row
            height, width, trips = -(-m // block_m), -(-n // block_n), -(-k // block_k)
            work = height * width, trips, trips, dram, (height * n + width * m) * lines(k * each, trips), 0
            us = factor * predict_us(work, sms, law)
            if us < least:
                best, least = row, us
        return best

    def prepare(self, n: int, k: int, most: int = 8192) -> tuple[list[int], list[Config]]:
        """Work out a layer's switch points ahead of time (milliseconds); choices stay the same, only faster."""
        self._layers[n, k] = made = self.switches(lambda m: {"m": m, "n": n, "k": k}, most)
        return made


class MoeLookup(Lookup):
    """One of the two grouped GEMMs of a fused MoE layer."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._up_projection = is_up(self.kernel)
        self._sizes = tuple(sorted({config["BLOCK_M"] for config in self.configs}))

    def select(
        self, m: int, e: int, top_k: int, hidden: int, inter: int, counts: tuple[int, ...] | None = None
    ) -> Config:
        """Choose for m tokens over e experts; `counts`, the tokens each expert got, replaces the expected routing."""
        key = (m, e, top_k, hidden, inter, counts)
        found = self._memo.get(key)
        return found if found is not None else self._miss(key)

    def _miss(self, key: tuple[int, int, int, int, int, tuple[int, ...] | None]) -> Config:
        m, e, top_k, hidden, inter, counts = key
        if min(m, e, top_k, hidden, inter) < 1:
            raise BadInput(f"m, e, top_k, hidden, inter = {key[:5]}: must be at least 1", field="shape")
        if counts is not None:
            return self.remember(key, super().choose(_moe(key) | routed(counts, self._sizes))[0])
        layer = self._layers.get(key[1:5])
        if layer is not None and m <= layer[0][-1]:
            return self.remember(key, layer[1][bisect_left(layer[0], m)])
        return self.remember(key, self.choose(_moe((_up(m), *key[1:])))[0])

    def choose(self, shape: Values) -> Row:
        """Do the same as the general case, with what the candidates share worked out once."""
        m, e, top_k, hidden, inter = shape["m"], shape["e"], shape["top_k"], shape["hidden"], shape["inter"]
        n, k, sent = (2 * inter, hidden, m) if self._up_projection else (hidden, inter, m * top_k)
        each = int(m * top_k // e)  # from here to the look-up: `cells.key`, written out for speed
        cell = ((each * each).bit_length() << 6 | int(e - 1).bit_length()) << 6 | int(n - 1).bit_length()
        rows = self._rows.get(cell << 6 | int(k - 1).bit_length(), self._general)
        if len(rows) == 1:
            return rows[0]
        pairs, active, sms = m * top_k, active_experts(m, e, top_k), self.sms
        few = pairs if pairs < e else e
        dram = 2 * (active * n * k + sent * k + pairs * n)
        best, least, half = rows[0], math.inf, 0.5 * active
        for row in rows:
            _, (block_m, block_n, block_k), factor, law = row
            more, width, trips = pairs / block_m - half, -(-n // block_n), -(-k // block_k)
            height = active + more if more > 0 else active
            idle = ((pairs + few * (block_m - 1)) // block_m + 1 - height) * width
            l2 = 2 * (height * n + width * pairs) * k
            us = factor * predict_us((height * width, trips, trips, dram, l2, idle), sms, law)
            if us < least:
                best, least = row, us
        return best

    def prepare(self, e: int, top_k: int, hidden: int, inter: int, most: int = 8192) -> tuple[list[int], list[Config]]:
        """Work out a layer's switch points ahead of time."""
        at = {"e": e, "top_k": top_k, "hidden": hidden, "inter": inter}
        self._layers[e, top_k, hidden, inter] = made = self.switches(lambda m: at | {"m": m}, most)
        return made


class LayerLookup(MoeLookup):
    """One of the two products of the fused layer: the same arguments, laws over another launch."""

    choose = Lookup.choose


def _moe(key: tuple[Any, ...]) -> dict[str, Any]:
    return {"m": key[0], "e": key[1], "top_k": key[2], "hidden": key[3], "inter": key[4]}


class PrefillLookup(Lookup):
    """Attention over prompts."""

    blocks = ("BLOCK_M", "BLOCK_N")

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._causal, self._bytes = "causal" in self.kernel, 4 * int(self.kernel.rsplit("_", 1)[1])

    def select(self, batch: int, q_len: int, kv_len: int, heads: int, kv_heads: int) -> Config:
        """Choose for `batch` sequences of q_len queries over kv_len keys."""
        key = (batch, q_len, kv_len, heads, kv_heads)
        found = self._memo.get(key)
        return found if found is not None else self._miss(key)

    def _miss(self, key: tuple[int, int, int, int, int]) -> Config:
        batch, q_len, kv_len, heads, kv_heads = key
        if min(key) < 1 or heads < kv_heads or kv_len < q_len:
            raise BadInput(f"batch, q_len, kv_len, heads, kv_heads = {key}: must be at least 1, kv_len ≥ q_len and "
                           "heads ≥ kv_heads", field="shape")  # fmt: skip
        shape = {"batch": batch, "q_len": q_len, "kv_len": kv_len, "heads": heads, "kv_heads": kv_heads}
        return self.remember(key, self.choose(shape)[0])

    def choose(self, shape: Values) -> Row:
        """Do the same as the general case, with what the candidates share worked out once."""
        batch, q, kv, heads, kv_heads = (shape[name] for name in ("batch", "q_len", "kv_len", "heads", "kv_heads"))
        all_heads = batch * heads
        cell = (int((all_heads - 1) ** 2).bit_length() << 6 | int(q - 1).bit_length()) << 6 | int(kv - 1).bit_length()
        rows = self._rows.get(cell << 6 | int(heads // kv_heads - 1).bit_length(), self._general)
        if len(rows) == 1:
            return rows[0]
        dram, causal, sms = self._bytes * batch * (q * heads + kv * kv_heads), self._causal, self.sms
        best, least = rows[0], math.inf
        for row in rows:
            _, (block_m, block_n), factor, law = row
            blocks, longest = all_heads * -(-q // block_m), -(-kv // block_n)
            if causal:
                first = q if q < block_m else block_m
                trips, masked = (kv - q + 0.5 * (first + q)) / block_n + 0.5, first / block_n + 0.5
            else:
                trips, masked = longest, 1 if kv % block_n else 0
            us = factor * predict_us((blocks, trips, longest, dram, 0, blocks * masked), sms, law)
            if us < least:
                best, least = row, us
        return best


class DecodeLookup(Lookup):
    """Paged decode attention."""

    blocks = ("BLOCK_N", "SPLITS")

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._bytes = 4 * int(self.kernel.rsplit("_", 1)[1])

    def select(self, batch: int, kv_len: int, heads: int, kv_heads: int, longest: int | None = None) -> Config:
        """Choose for `batch` sequences with kv_len cached tokens each, on average; `longest`: of the longest one."""
        key = (batch, kv_len, heads, kv_heads, longest)
        found = self._memo.get(key)
        return found if found is not None else self._miss(key)

    def _miss(self, key: tuple[int, int, int, int, int | None]) -> Config:
        batch, kv_len, heads, kv_heads, longest = key
        if min(batch, kv_len, heads, kv_heads) < 1 or heads < kv_heads or (longest is not None and longest < kv_len):
            raise BadInput(f"batch, kv_len, heads, kv_heads, longest = {key}: must be at least 1, heads ≥ kv_heads and "
                           "longest ≥ kv_len, the mean", field="shape")  # fmt: skip
        shape = {"batch": batch, "kv_len": kv_len, "heads": heads, "kv_heads": kv_heads}
        if longest is not None:
            shape["longest"] = longest
        return self.remember(key, self.choose(shape)[0])

    def choose(self, shape: Values) -> Row:
        """Do the same as the general case, with what the candidates share worked out once."""
        batch, kv, heads, kv_heads = shape["batch"], shape["kv_len"], shape["heads"], shape["kv_heads"]
        groups = batch * kv_heads
        cell = int((groups - 1) ** 2).bit_length() << 6 | int((kv - 1) ** 2).bit_length()
        rows = self._rows.get(cell << 6 | int(heads // kv_heads - 1).bit_length(), self._general)
        if len(rows) == 1:
            return rows[0]
        dram, last, sms = self._bytes * groups * kv, shape.get("longest", kv), self.sms
        best, least = rows[0], math.inf
        for row in rows:
            _, (block_n, splits), factor, law = row
            trips = -(-kv // (splits * block_n))
            used = -(-kv // (trips * block_n))
            reduced = batch * heads * splits if splits > 1 else 0
            longest = -(-last // (splits * block_n))
            work = groups * used, trips, longest, dram, groups * splits, reduced
            us = factor * predict_us(work, sms, law)
            if us < least:
                best, least = row, us
        return best


_LOOKUPS: dict[str, type[Lookup]] = {
    "gemm": GemmLookup, "moe": MoeLookup, "prefill": PrefillLookup, "decode": DecodeLookup,
    "moe_up": LayerLookup, "moe_down": LayerLookup,
}  # fmt: skip


def lookup(table: Table) -> Any:
    """Return the look-up of a table, with the `select` of its kernel's family."""
    return _LOOKUPS.get(table.kernel, _LOOKUPS[family(table.kernel)])(table)
