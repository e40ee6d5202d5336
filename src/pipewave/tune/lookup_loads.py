"""Choosing where a launch has a load beyond its shape: routed experts, ragged caches.

Where the load is known, a choice goes by it; where not, by the mean of the two halves of the loads that anchors drew
(`loads`), with candidates and a margin over the default of their own.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

from pipewave.errors import BadInput
from pipewave.tune.choosing import Config, Lookup, Row, up_to_granule
from pipewave.tune.mapping import COUNTED, Values, active_experts, even_range, expert_rows, routed, used_up_to
from pipewave.tune.shapes import is_up
from pipewave.tune.space import MOE_CROWDED, MOE_SWITCHES
from pipewave.tune.table import Table
from pipewave.tune.wave import predict_both_us, predict_mean_us, predict_us

LONGEST = 16 * COUNTED  # tokens, in the smallest steps, up to which splits that work are looked up


class MoeLookup(Lookup):
    """One of the two grouped GEMMs of a fused MoE layer."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._up_projection = is_up(self.kernel)
        self._sizes = tuple(sorted({config["BLOCK_M"] for config in self.configs}))
        self._halves = self._by_bin()

    def _by_bin(self) -> list[tuple[tuple[float, dict[int, float]], ...]]:
        """Return the ratios of light and heavy loads by bin: of experts in use, and of rows of blocks by BLOCK_M."""
        loads = self.table.fitted.loads
        assert loads is not None
        sizes = loads.sizes.tolist()
        rows = loads.ratio.transpose(1, 0, 2).tolist()
        return [tuple((half[0], dict(zip(sizes, half[1:], strict=True))) for half in halves) for halves in rows]

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
            return self.remember(key, self.choose(_moe(*key[:5]) | routed(counts, self._sizes))[0])
        layer = self._layers.get(key[1:5])
        if layer is not None and m <= layer[0][-1]:
            return self.remember(key, layer[1][bisect_left(layer[0], m)])
        return self.remember(key, self.expecting(up_to_granule(m), e, top_k, hidden, inter)[0])

    def states(self, shape: Values) -> list[Values]:
        """Return the shape with the light and with the heavy load, unless it tells its own."""
        if "active" in shape:
            return [shape]
        pairs, active = shape["m"] * shape["top_k"], active_experts(shape["m"], shape["e"], shape["top_k"])
        each = int(pairs // shape["e"])
        rows = {size: expert_rows(pairs, active, size) for size in self._sizes}
        return [{**shape, "active": active * used, "rows_by": {size: rows[size] * by[size] for size in rows}}
                for used, by in self._halves[min((each * each).bit_length(), len(self._halves) - 1)]]  # fmt: skip

    def choose(self, shape: Values) -> Row:
        """Evaluate the short list, for the known routing or for what to expect."""
        if "active" in shape:
            return super().choose(shape)
        return self.expecting(shape["m"], shape["e"], shape["top_k"], shape["hidden"], shape["inter"])

    def expecting(self, m: int, e: int, top_k: int, hidden: int, inter: int) -> Row:
        """Do the same as the general case where no routing is known, with what the candidates share worked out once."""
        pairs, sms = m * top_k, self.sms
        n, k, sent = (2 * inter, hidden, m) if self._up_projection else (hidden, inter, pairs)
        each = int(pairs // e)  # from here to the look-up: `cells.key`, written out for speed
        at = (each * each).bit_length()
        cell = (at << 6 | int(e - 1).bit_length()) << 6 | int(n - 1).bit_length()
        cell = (cell << 6 | int(k - 1).bit_length()) << 4 | bisect_left(MOE_SWITCHES, m) << 1 | (m // e > MOE_CROWDED)
        rows = self._rows.get(cell, self._general)
        if len(rows) == 1:
            return rows[0]
        halves = self._halves
        (less, light), (most, heavy) = halves[at if at < len(halves) else -1]
        active = active_experts(m, e, top_k)
        few = pairs if pairs < e else e
        dram = 2 * (0.5 * (less + most) * active * n * k + sent * k + pairs * n)
        best, least, half = rows[0], math.inf, 0.5 * active
        for row in rows:
            _, (block_m, block_n, block_k), factor, law = row
            more, width, trips = pairs / block_m - half, -(-n // block_n), -(-k // block_k)
            height = active + more if more > 0 else active
            low, high = height * light[block_m] * width, height * heavy[block_m] * width
            bound = ((pairs + few * (block_m - 1)) // block_m + 1) * width
            us = factor * predict_mean_us(low, high, trips, dram, bound, (n, k, width * pairs, width), sms, law)
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

    def expecting(self, m: int, e: int, top_k: int, hidden: int, inter: int) -> Row:
        """Do as the general case does."""
        return Lookup.choose(self, _moe(m, e, top_k, hidden, inter))


def _moe(m: int, e: int, top_k: int, hidden: int, inter: int) -> dict[str, Any]:
    return {"m": m, "e": e, "top_k": top_k, "hidden": hidden, "inter": inter}


class DecodeLookup(Lookup):
    """Paged decode attention."""

    blocks = ("BLOCK_N", "SPLITS")

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._bytes = 4 * int(self.kernel.rsplit("_", 1)[1])
        loads = table.fitted.loads
        assert loads is not None
        self._ragged: list[float] = loads.ratio[1, :, 0].tolist()
        self._used = {splits: used_up_to(splits).tolist() for splits in {config["SPLITS"] for config in self.configs}}

    def states(self, shape: Values) -> list[Values]:
        """Return an even and a ragged batch, unless the shape tells its longest sequence."""
        if "longest" in shape:
            return [shape]
        kv = shape["kv_len"]
        return [{**shape, "longest": last} for last in (kv, self._ragged_last(shape["batch"], kv))]

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
        known_load = "longest" in shape
        lists = self._known if known_load else self._rows
        rows = lists.get(cell << 6 | int(heads // kv_heads - 1).bit_length(), self._general)
        if len(rows) == 1:
            return rows[0]
        last = shape["longest"] if known_load else self._ragged_last(batch, kv)
        if last >= LONGEST:
            return super().choose(shape)
        low, high = even_range(kv, last)
        bytes_read, sms, size, queries = self._bytes * groups * kv, self.sms, high - low, batch * heads
        best, least = rows[0], math.inf
        for row in rows:
            _, (block_n, splits), factor, law = row
            step, used_up = splits * block_n, self._used[splits]
            # `mapping.mean_trips` and `mapping.mean_used`, written out for speed.
            after, at = low // block_n, high // block_n
            more, rest = high - block_n * at, low - block_n * after
            up, down = used_up[at], used_up[after]
            used = block_n * (up - down) + more * (used_up[at + 1] - up) - rest * (used_up[after + 1] - down)
            trips = 0.5 * ((at + 1) * (high + more) - (after + 1) * (low + rest))
            shared = bytes_read, groups * splits, queries * splits if splits > 1 else 0
            ragged = groups * used / size, trips / used, -(-last // step)
            if known_load:
                us = factor * predict_us(ragged + shared, sms, law)
            else:  # half of all batches are even
                whole, longest = -(-kv // block_n), -(-kv // step)
                used = -(-whole // longest)
                us = factor * predict_both_us(ragged, (groups * used, whole / used, longest), shared, sms, law)
            if us < least:
                best, least = row, us
        return best

    def _ragged_last(self, batch: int, kv: int) -> int:
        """Return the longest sequence to expect of a ragged batch."""
        return round(kv * self._ragged[min(int(batch).bit_length(), len(self._ragged) - 1)])
