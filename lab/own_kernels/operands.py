"""Device buffers and launch arguments for any shape of any kernel. Needs torch and triton.

Buffers are made once, filled with random values, and viewed as each shape needs: launches pass addresses, so that
thousands of shapes cost no allocation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lab.own_kernels import build
from lab.own_kernels.kernels import decode, gemm, grouped
from lab.own_kernels.shapes import Shape, lengths
from pipewave.errors import BadInput
from pipewave.tune.shipped_kernels import family, is_up

Call = Callable[[], Any]
Binaries = dict[tuple[int, ...], tuple[Any, dict[str, int | bool]]]
SIZES = {  # elements of each buffer
    "gemm": {"a": 1 << 28, "w": 1 << 30, "c": 1 << 28},
    "moe": {"a": 1 << 28, "w": 1 << 30, "c": 1 << 29},
    "prefill": {"a": 1 << 28, "w": 1 << 28, "v": 1 << 28, "c": 1 << 28},
    "decode": {"a": 1 << 22, "w": 1 << 29, "v": 1 << 29, "c": 1 << 22},
}


class Operands:
    """Random operands of one kernel on one device, and the launches over them.

    `prepare(shape)` sets what depends on the shape alone; `calls(config)` returns the launches of one configuration.
    """

    def __init__(self, kernel: str, names: tuple[str, ...], binaries: Binaries, device: str = "cuda",
                 dtype: torch.dtype = torch.bfloat16) -> None:  # fmt: skip
        self.kernel, self.names, self.binaries, self.device = kernel, names, binaries, device
        self.buffers: dict[str, Any] = {}
        for name, size in SIZES[family(kernel)].items():
            values = torch.empty(size, dtype=dtype, device=device).normal_(0, 0.5)
            if kernel == "gemm_fp8" and name != "c":
                values = values.to(torch.float8_e4m3fn)
            self.buffers[name] = values
        self.stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
        self.shape: Shape = {}
        self.extra: dict[str, Any] = {}
        if family(kernel) == "decode":
            dim = int(build.fixed(kernel)["HEAD_DIM"])
            self.reduce = build.compile_reduce(dim)
            self.extra = {"part": torch.empty(1 << 27, device=device), "part_log": torch.empty(1 << 21, device=device)}

    def prepare(self, shape: Shape) -> None:
        """Make the shape-dependent tables: routing for a MoE, pages and lengths for decode."""
        self.shape = shape
        self._fits()
        if family(self.kernel) == "moe":
            self.chosen = routing(shape, self.device)
            self.weights = torch.rand(self.chosen.numel(), device=self.device)
            self.sorted: dict[int, tuple[Any, Any, Any]] = {}
        if family(self.kernel) == "decode":
            self._pages()

    def _fits(self) -> None:
        for name, count in elements(self.kernel, self.shape).items():
            if count > self.buffers[name].numel():
                raise BadInput(f"shape {self.shape} needs {count} elements in {name!r}, the buffer has "
                               f"{self.buffers[name].numel()}", field="shape")  # fmt: skip

    def _pages(self) -> None:
        shape, page = self.shape, build.PAGE
        lens = lengths(shape)
        width = -(-int(lens.max()) // page)
        total = self.buffers["w"].numel() // (page * shape["kv_heads"] * shape["head_dim"])
        need = shape["batch"] * width
        # Distinct pages while they last: sequences share none, as in a real cache without common prefixes.
        order = torch.randperm(total, device=self.device, dtype=torch.int32)
        repeats = -(-need // total)
        self.tables = order.repeat(repeats)[:need].reshape(shape["batch"], width).contiguous()
        self.lens = torch.from_numpy(lens).to(self.device)

    def calls(self, config: tuple[int, ...]) -> list[Call]:
        """Return the launches of one configuration at the prepared shape, in order."""
        values = dict(zip(self.names, config, strict=True))
        kind = family(self.kernel)
        compiled, constants = next(self.binaries[config[:n]] for n in range(len(config), 0, -1)
                                   if config[:n] in self.binaries)  # fmt: skip
        grid, given = getattr(self, f"_{kind}")(values)
        launch = [self.bind(compiled, grid, _ordered(build.function(self.kernel), given | constants))]
        if kind == "decode" and values["SPLITS"] > 1:
            launch.append(self._reduce(values["SPLITS"]))
        return launch

    def bind(self, compiled: Any, grid: tuple[int, int, int], arguments: list[Any]) -> Call:
        """Return a launch with everything but the call itself done."""
        if hasattr(compiled, "packed_metadata"):
            run = compiled.run  # also loads the binary
            return partial(run, *grid, self.stream, compiled.function, compiled.packed_metadata, None, None, None,
                           *arguments)  # fmt: skip
        return partial(compiled[grid], *arguments)

    def _at(self, name: str) -> int:
        return int(self.buffers[name].data_ptr())

    def _gemm(self, c: dict[str, int]) -> tuple[tuple[int, int, int], dict[str, Any]]:
        m, n, k = (self.shape[name] for name in ("m", "n", "k"))
        given = {"a": self._at("a"), "w": self._at("w"), "c": self._at("c"), "scale": 1.0, "M": m, "N": n, "K": k,
                 "GROUP_M": c["GROUP_M"]}  # fmt: skip
        return (gemm.blocks(m, n, c["BLOCK_M"], c["BLOCK_N"]), 1, 1), given

    def _moe(self, c: dict[str, int]) -> tuple[tuple[int, int, int], dict[str, Any]]:
        shape, block = self.shape, c["BLOCK_M"]
        if block not in self.sorted:
            self.sorted[block] = grouped.align(self.chosen, shape["e"], block)
        ids, experts, used = self.sorted[block]
        up = is_up(self.kernel)
        n, k = moe_nk(self.kernel, shape)
        given = {"a": self._at("a"), "w": self._at("w"), "c": self._at("c"), "weights": self.weights.data_ptr(),
                 "sorted_ids": ids.data_ptr(), "expert_ids": experts.data_ptr(), "used_rows": used.data_ptr(),
                 "bound_rows": ids.numel(), "pairs": self.chosen.numel(), "N": n, "K": k,
                 "top_k": shape["top_k"] if up else 1, "weigh": int(not up), "GROUP_M": c["GROUP_M"]}  # fmt: skip
        return (ids.numel() // block * -(-n // c["BLOCK_N"]), 1, 1), given

    def _prefill(self, c: dict[str, int]) -> tuple[tuple[int, int, int], dict[str, Any]]:
        s = self.shape
        given = {"q": self._at("a"), "k": self._at("w"), "v": self._at("v"), "o": self._at("c"),
                 "scale": s["head_dim"] ** -0.5, "HEADS_FIRST": c["HEADS_FIRST"]}  # fmt: skip
        given |= {name: s[name] for name in ("q_len", "kv_len", "heads", "kv_heads")}
        return (s["batch"] * s["heads"] * -(-s["q_len"] // c["BLOCK_M"]), 1, 1), given

    def _decode(self, c: dict[str, int]) -> tuple[tuple[int, int, int], dict[str, Any]]:
        s = self.shape
        given = {"q": self._at("a"), "k_cache": self._at("w"), "v_cache": self._at("v"), "o": self._at("c"),
                 "part": self.extra["part"].data_ptr(), "part_log": self.extra["part_log"].data_ptr(),
                 "tables": self.tables.data_ptr(), "lens": self.lens.data_ptr(), "scale": s["head_dim"] ** -0.5,
                 "heads": s["heads"], "kv_heads": s["kv_heads"], "table_width": self.tables.shape[1],
                 "SPLITS": c["SPLITS"]}  # fmt: skip
        return (s["batch"], s["kv_heads"], c["SPLITS"]), given

    def _reduce(self, splits: int) -> Call:
        rows = self.shape["batch"] * self.shape["heads"]
        given = {"part": self.extra["part"].data_ptr(), "part_log": self.extra["part_log"].data_ptr(),
                 "o": self._at("c"), "SPLITS": splits, "HEAD_DIM": self.shape["head_dim"]}  # fmt: skip
        return self.bind(self.reduce, (rows, 1, 1), _ordered(decode.reduce, given))


def _ordered(function: Any, given: dict[str, Any]) -> list[Any]:
    return [given[name] for name in function.arg_names]


def moe_nk(kernel: str, shape: Shape) -> tuple[int, int]:
    """Return the (n, k) of one expert's product."""
    return (2 * shape["inter"], shape["hidden"]) if is_up(kernel) else (shape["hidden"], shape["inter"])


def elements(kernel: str, s: Shape) -> dict[str, int]:
    """Elements each buffer must hold for a shape."""
    kind = family(kernel)
    if kind == "gemm":
        return {"a": s["m"] * s["k"], "w": s["n"] * s["k"], "c": s["m"] * s["n"]}
    if kind == "moe":
        n, k = moe_nk(kernel, s)
        pairs = s["m"] * s["top_k"]
        return {"a": pairs * k, "w": s["e"] * n * k, "c": pairs * n}
    if kind == "prefill":
        q = s["batch"] * s["q_len"] * s["heads"] * s["head_dim"]
        kv = s["batch"] * s["kv_len"] * s["kv_heads"] * s["head_dim"]
        return {"a": q, "w": kv, "v": kv, "c": q}
    q = s["batch"] * s["heads"] * s["head_dim"]
    return {"a": q, "c": q}


def routing(shape: Shape, device: str) -> Any:
    """Draw each token's experts without replacement; popularity is log-normal with sigma = skew / 100."""
    source = torch.Generator(device=device).manual_seed(shape["seed"])
    popularity = torch.randn(shape["e"], generator=source, device=device) * (shape["skew"] / 100)
    noise = torch.empty(shape["m"], shape["e"], device=device).exponential_(generator=source)
    return (popularity - noise.log()).topk(shape["top_k"], dim=1).indices
