"""Launches of the fused MoE layer's two products, for the recorder. Needs torch and triton.

The second product is timed with what its configuration asks for beside it: the zeros that ADD adds to, or the kernel
that sums what was written apart.
"""

from __future__ import annotations

from typing import Any

import torch

from lab.own_kernels import build
from lab.own_kernels.operands import Binaries, Call, Operands, routing
from lab.own_kernels.shapes import Shape
from pipewave.errors import BadInput
from pipewave.triton_kernels import moe_experts, moe_sort
from pipewave.tune.shipped_kernels import is_up

PART = 1 << 30  # elements: what is written apart and then summed


class LayerOperands(Operands):
    """As `Operands`, for `moe_up` and `moe_down`."""

    def __init__(self, kernel: str, names: tuple[str, ...], binaries: Binaries, device: str = "cuda",
                 dtype: torch.dtype = torch.bfloat16, part: int = PART) -> None:  # fmt: skip
        super().__init__(kernel, names, binaries, device, dtype)
        self._up = is_up(kernel)
        self.buffers["w"] /= 16.0  # keeps SiLU's arguments where it bends
        self._part = torch.empty(0 if self._up else part, dtype=dtype, device=device)
        self._sms = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 3

    def prepare(self, shape: Shape) -> None:
        """Route, and view the buffers as this layer's."""
        self.shape = shape
        self._fits()
        m, e, top_k, hidden, inter = (shape[name] for name in ("m", "e", "top_k", "hidden", "inter"))
        pairs = m * top_k
        self.chosen = routing(shape, self.device).int().contiguous()
        self.weights = torch.rand(m, top_k, device=self.device)
        self.order = self.chosen.view(-1).sort(stable=True).indices.int()
        self._tables: dict[int, moe_sort.Sorted] = {}
        at, n, k = (m, 2 * inter, hidden) if self._up else (pairs, hidden, inter)
        self.a, self.w = (self._view("a", at, k), self._view("w", e, n, k))
        self.c = self._view("c", pairs, inter) if self._up else self._view("c", m, hidden)

    def _fits(self) -> None:
        s = self.shape
        pairs = s["m"] * s["top_k"]
        rows, wide, out = (s["m"], 2 * s["inter"], pairs * s["inter"]) if self._up else (pairs, s["inter"], 0)
        need = {"a": rows * (s["hidden"] if self._up else wide), "w": s["e"] * wide * s["hidden"],
                "c": max(out, s["m"] * s["hidden"])}  # fmt: skip
        have = {name: self.buffers[name].numel() for name in need} | {"part": self._part.numel()}
        need["part"] = 0 if self._up else pairs * s["hidden"]
        for name, count in need.items():
            if count > have[name]:
                raise BadInput(
                    f"shape {s} needs {count} elements in {name!r}, the buffer has {have[name]}", field="shape"
                )

    def _view(self, name: str, *size: int) -> Any:
        return self.buffers[name][: torch.Size(size).numel()].view(size)

    def sorted_by(self, block_m: int) -> moe_sort.Sorted:
        """Blocks of a size over one order, the same for every configuration."""
        if block_m not in self._tables:
            found = moe_sort.sort(self.chosen, self.shape["e"], block_m, block_m)
            self._tables[block_m] = found._replace(order=self.order)
        return self._tables[block_m]

    def calls(self, config: tuple[int, ...]) -> list[Call]:
        """Return the launches of one configuration at the prepared shape, in order."""
        values = dict(zip(self.names, config, strict=True))
        size = len(config) - (2 if self._up else 1)
        compiled, constants = self.binaries[config[:size]]
        if self._up:
            return [self.first(values, self.sorted_by(values["BLOCK_M"]), self.c, compiled, constants)]
        return self.second(values, self.sorted_by(values["BLOCK_M"]), compiled, constants)

    def first(self, c: dict[str, int], s: moe_sort.Sorted, out: Any, compiled: Any, constants: Any) -> Call:
        """Launch gate and up."""
        blocks, (e, twice, k) = s.blocks[moe_experts.UP], self.w.shape
        given = self._common(s, blocks) | {
            "x": self.a, "w": moe_experts.described(self.w.view(e * twice, k), c["BLOCK_N"], c["BLOCK_K"]), "out": out,
            "WIDE": twice // 2, "K": k, "top_k": self.shape["top_k"], "GROUP_M": c["GROUP_M"]}  # fmt: skip
        return self._launch(compiled, moe_experts.programs(blocks, twice // 2, c, self._sms), given | constants)

    def second(self, c: dict[str, int], s: moe_sort.Sorted, compiled: Any, constants: Any) -> list[Call]:
        """Launch w2 and what goes with it."""
        blocks, (e, h, k), top_k = s.blocks[moe_experts.DOWN], self.w.shape, self.shape["top_k"]
        separate = not c["ADD"] and top_k > 1
        part = self._part[: self.chosen.numel() * h].view(-1, h) if separate else self.c
        given = self._common(s, blocks) | {
            "y": moe_experts.described(self.a, c["BLOCK_M"], c["BLOCK_K"]),
            "w": moe_experts.described(self.w.view(e * h, k), c["BLOCK_N"], c["BLOCK_K"]), "out": part,
            "weights": self.weights, "H": h, "K": k, "top_k": top_k, "GROUP_M": c["GROUP_M"]}  # fmt: skip
        product = self._launch(compiled, moe_experts.programs(blocks, h, c, self._sms), given | constants)
        if c["ADD"]:
            return [self.c.zero_, product]
        return [product, lambda: moe_experts.launch_total(part, self.c, top_k)] if separate else [product]

    def _common(self, s: moe_sort.Sorted, blocks: moe_sort.Blocks) -> dict[str, Any]:
        return {"order": s.order, "ends": s.ends, "experts": blocks.experts, "rows": blocks.rows, "used": blocks.used}

    def _launch(self, compiled: Any, grid: tuple[int, int, int], given: dict[str, Any]) -> Call:
        code = build.function(self.kernel)
        if hasattr(compiled, "packed_metadata"):  # a binary takes addresses
            given = {name: value.data_ptr() if isinstance(value, torch.Tensor) else value
                     for name, value in given.items()}  # fmt: skip
        return self.bind(compiled, grid, [given[name] for name in code.arg_names])

    def reference(self) -> Any:
        """Compute the result in float64 from the buffers."""
        expert, top_k = self.chosen.view(-1).long(), self.shape["top_k"]
        if self._up:
            rows = self.a.double().repeat_interleave(top_k, 0)
            gate, high = torch.einsum("pk,pnk->pn", rows, self.w.double()[expert]).chunk(2, 1)
            return (torch.nn.functional.silu(gate) * high)[self.order.long()]
        by_pair = torch.empty_like(self.a.double())
        by_pair[self.order.long()] = self.a.double()
        each = torch.einsum("pk,pnk->pn", by_pair, self.w.double()[expert]) * self.weights.double().view(-1, 1)
        return each.view(-1, top_k, each.shape[1]).sum(1)
