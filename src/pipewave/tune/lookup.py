"""Choosing where a launch has no load beyond its shape: dense GEMM and prompts; and which look-up a table wants."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

from pipewave.errors import BadInput
from pipewave.tune.choosing import FREE, GRANULE, Config, Lookup, Row
from pipewave.tune.lookup_loads import DecodeLookup, LayerLookup, MoeLookup
from pipewave.tune.mapping import LINE, Values, lines
from pipewave.tune.shapes import family
from pipewave.tune.table import Table
from pipewave.tune.wave import predict_us


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


_LOOKUPS: dict[str, type[Lookup]] = {
    "gemm": GemmLookup, "moe": MoeLookup, "prefill": PrefillLookup, "decode": DecodeLookup,
    "moe_up": LayerLookup, "moe_down": LayerLookup,
}  # fmt: skip


def lookup(table: Table) -> Any:
    """Return the look-up of a table, with the `select` of its kernel's family."""
    return _LOOKUPS.get(table.kernel, _LOOKUPS[family(table.kernel)])(table)
