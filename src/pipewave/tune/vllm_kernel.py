"""vLLM's own fused-MoE kernel under our tuner: profile it, and write files for the layers that vLLM ships none for.

`python -m pipewave.tune.vllm_kernel --out DIR` times the kernel behind `fused_experts` at anchors of each layer, fits
our laws to its two products, and exports `DIR/profiled/E=…,N=….json`. Beside it `DIR/table/…`, the same from the
shipped tables of our own kernel, and `DIR/default/…`, vLLM's default put into a file. `--compile 3/12` only compiles a
share ahead. Needs vLLM, torch and a GPU.

The configurations tried are those that the tables of our kernel hold for good at these layers, vLLM's defaults, and
what its own file of the last layer holds: a few dozen, since vLLM's kernel compiles anew for each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.tune import export, fitted
from pipewave.tune.export import NAMES, Layer
from pipewave.tune.record import Job, record, say
from pipewave.tune.recording import ANCHOR, Recording
from pipewave.tune.shapes import FIELDS, Shape
from pipewave.tune.space import MATMUL, Config, Space
from pipewave.tune.table import Table, locate, read

LAYERS = {
    "DeepSeek-V2-Lite": Layer(64, 6, 2048, 1408),
    "Qwen1.5-MoE-A2.7B": Layer(60, 4, 2048, 1408),
    "Qwen3-235B-A22B": Layer(128, 8, 4096, 1536),
    "DeepSeek-V3 on 8 GPUs": Layer(256, 8, 7168, 256),
    "Qwen3-30B-A3B": Layer(128, 8, 2048, 768),  # vLLM ships a file for this one
}
MOST = 16_384
LEAST = 16  # fewer tokens are not profiled (other binaries, seconds each): vLLM's default stays
ANCHORS = (*(base << i for i in range(10) for base in (16, 24)), MOST)
WITHIN, COVERS = (
    1.02,
    3,
)  # every anchor gets so many configurations this near our tables' best, or the nearest there are
KERNELS = {"moe_w13": True, "moe_w2": False}


def anchors(layer: Layer) -> list[Shape]:
    """Shapes of a layer to time; even routing, as random weights give it."""
    sizes = {"e": layer.e, "top_k": layer.top_k, "hidden": layer.hidden, "inter": layer.inter, "skew": 0}
    return [{"m": m, **sizes, "seed": m} for m in ANCHORS]


def candidates(up: Table, down: Table, layers: Iterable[Layer]) -> list[Config]:
    """Configurations that come near the best of our own kernel at every anchor of the layers, several for each."""
    us = []
    for layer in layers:
        m, first, second = export.both(up.fitted, down.fitted, layer, MOST)
        us.append((first + second)[np.isin(m, ANCHORS)])
    lost = np.concatenate(us)
    lost /= lost.min(axis=1, keepdims=True)
    chosen = list[int]()
    for _ in range(COVERS):
        left = np.full(len(lost), 2.0)
        for _ in range(len(lost)):  # a cover needs no more than one for each anchor
            best = int(np.minimum(left[:, None], lost).sum(axis=0).argmin())
            if left.max() <= WITHIN or not (lost[:, best] < left).any():
                break
            chosen.append(best)
            left = np.minimum(left, lost[:, best])
        lost[:, chosen] = np.inf
    columns = [up.fitted.config[name] for name in MATMUL]
    return [tuple(int(column[i]) for column in columns) for i in chosen]


def engine_configs(layers: Iterable[Layer]) -> list[Config]:
    """What vLLM itself would run at the anchors: its file where it has one, its default."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config, get_moe_configs

    found: list[dict[str, int]] = []
    for layer in layers:
        found += [get_default_config(m, layer.e, layer.inter, layer.hidden, layer.top_k, None) for m in ANCHORS]
        found += list((get_moe_configs(layer.e, layer.inter, None) or {}).values())
    return [tuple(body[NAMES[name]] for name in MATMUL) for body in found]


def configurations(up: Table, down: Table) -> Space:
    """The configurations to time, as a space of its own."""
    chosen = tuple(dict.fromkeys(candidates(up, down, LAYERS.values()) + engine_configs(LAYERS.values())))
    return Space("moe_w13", MATMUL, len(MATMUL), chosen, lambda _shape: chosen[0])


class Launcher:
    """One of the two products of vLLM's `fused_experts`, for `record`: its launches, caught and bound.

    `built` [config] holds (shared memory bytes, registers, spilled bytes) of what was launched.
    """

    def __init__(self, names: Sequence[str], *, up: bool, fill: bool = True) -> None:
        import torch

        self._names, self._up, self._torch = names, up, torch
        self.built: dict[Config, tuple[int, ...]] = {}
        sizes = [max(_sizes(layer, up)[i] for layer in LAYERS.values()) for i in range(3)]
        self._buffers = [torch.empty(size, dtype=torch.bfloat16, device="cuda") for size in sizes]
        for buffer in self._buffers if fill else ():
            buffer.normal_(0, 0.5)

    def prepare(self, shape: Shape) -> None:
        """Draw the routing of a shape."""
        from pipewave.tune.operands import routing

        self.shape = shape
        self.chosen = routing(shape, "cuda").to(self._torch.int32)
        self._weights = self._torch.rand(self.chosen.shape, device="cuda")
        self._sorted: dict[int, Any] = {}

    def calls(self, config: Config) -> list[Callable[[], Any]]:
        """Launch once, as the engine does, and return that launch again."""
        from vllm.model_executor.layers.fused_moe import fused_moe

        s, body = self.shape, {NAMES[name]: value for name, value in zip(self._names, config, strict=True)}
        m, e, top_k, pairs = s["m"], s["e"], s["top_k"], s["m"] * s["top_k"]
        n, k = (2 * s["inter"], s["hidden"]) if self._up else (s["hidden"], s["inter"])
        block = body["BLOCK_SIZE_M"]
        if block not in self._sorted:
            self._sorted[block] = fused_moe._prepare_expert_assignment(self.chosen, body, m, top_k, e, None)
        a, b, c = (buffer[: _product(size)].view(size) for buffer, size in zip(
            self._buffers, ((m if self._up else pairs, k), (e, n, k), (m, top_k, n)), strict=True))  # fmt: skip
        caught = _Caught(fused_moe.fused_moe_kernel, self._torch.cuda.current_stream().cuda_stream)
        fused_moe.fused_moe_kernel = caught
        try:
            fused_moe.invoke_fused_moe_triton_kernel(
                a, b, c, None, None, self._weights, *self._sorted[block], not self._up, top_k if self._up else 1, body,
                compute_type=fused_moe.tl.bfloat16, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False,
                use_int4_w4a16=False, per_channel_quant=False)  # fmt: skip
        finally:
            fused_moe.fused_moe_kernel = caught.kernel
        self.built[config] = caught.built
        return [caught.again]


class _Caught:
    """Stands where a Triton kernel stood: launches it, and keeps the launch with its arguments resolved."""

    def __init__(self, kernel: Any, stream: int) -> None:
        self.kernel, self._stream = kernel, stream

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **named: Any) -> None:
            compiled = self.kernel[grid](*args, **named)
            known = self.kernel.signature.parameters  # num_warps and num_stages are options, not arguments
            given = {name: value for name, value in named.items() if name in known}
            values = self.kernel.signature.bind(*args, **given).arguments
            size = (*grid(dict(values)), 1, 1)[:3]
            plain = [value.data_ptr() if hasattr(value, "data_ptr") else value for value in values.values()]
            self.built = (compiled.metadata.shared, compiled.n_regs, compiled.n_spills)
            self.again = partial(compiled.run, *size, self._stream, compiled.function, compiled.packed_metadata, None,
                                 None, None, *plain)  # fmt: skip
            self._kept = values  # the tensors behind the addresses

        return launch


def _sizes(layer: Layer, up: bool) -> tuple[int, int, int]:
    pairs, n = MOST * layer.top_k, 2 * layer.inter if up else layer.hidden
    k = layer.hidden if up else layer.inter
    return (MOST if up else pairs) * k, layer.e * n * k, pairs * n


def _product(size: Iterable[int]) -> int:
    return int(np.prod(list(size), dtype=np.int64))


def compile_shard(of: Space, shard: str) -> None:
    """Launch a share of the configurations once at every kind of anchor, so that Triton's cache holds them."""
    index, count = (int(part) for part in shard.split("/"))
    for up in KERNELS.values():
        launcher, seen = Launcher(of.names, up=up, fill=False), set()
        for shape in (shape for layer in LAYERS.values() for shape in anchors(layer)):
            for config in of.configs[index::count]:
                kind = config, *binary(shape["e"], shape["top_k"], shape["m"], config[0])[not up :]
                if kind not in seen:
                    seen.add(kind)
                    launcher.prepare(shape)
                    launcher.calls(config)
        launcher._torch.cuda.synchronize()


def binary(e: int, top_k: int, m: int, block: int) -> tuple[Any, ...]:
    """What Triton compiles vLLM's kernels anew for, beside the configuration: which integers are multiples of 16, …"""
    pairs = m * top_k
    padded = min(pairs * block, pairs + e * (block - 1))
    return top_k, pairs * 4 <= e, pairs % 16 == 0, padded % 16 == 0, pairs == 1


def profile(of: Space, kernel: str, budget_s: float) -> Recording:
    """Time one product at all anchors of all layers."""
    import torch

    from pipewave.tune.record import environment
    from pipewave.tune.timing import ColdTimer

    launcher, timer = Launcher(of.names, up=KERNELS[kernel]), ColdTimer()
    every = tuple(range(len(of.configs)))
    shapes = [shape for layer in LAYERS.values() for shape in anchors(layer)]
    order = np.random.default_rng(0).permutation(len(shapes))
    start = time.monotonic()
    rows = record(of, [Job(shapes[i], ANCHOR, every) for i in order], launcher, timer, budget_s)
    say(f"vLLM's {kernel}: {len(rows.shapes)} of {len(shapes)} anchors, {time.monotonic() - start:.1f} s")
    meta = {"schema": 1, "kernel": kernel, "source": "vLLM 0.22.1, fused_moe_kernel", "names": of.names,
            "compiled": of.compiled, "fields": FIELDS["moe"], "method": "cuda events, cold L2", "order": "shuffled",
            "flush_mb": 256, "timed_s": time.monotonic() - start, "env": environment()}  # fmt: skip
    built = [launcher.built[config] for config in of.configs]
    del launcher, timer
    torch.cuda.empty_cache()
    return rows.freeze(meta, list(of.configs), built)


def write_files(recorded: dict[str, Recording], tables: tuple[Table, Table], out: Path) -> None:
    """Export every layer twice: as profiled on vLLM's kernel, and from the tables of ours."""
    up, down = (fitted.fit(recorded[kernel]) for kernel in KERNELS)
    env = recorded["moe_w13"].meta["env"]
    for layer in LAYERS.values():
        name = export.vllm_name(layer, env["gpu"])
        known = {"triton_version": env["triton"]}
        export.write(known | kept(layer) | export.body(up, down, layer, MOST, LEAST), out / "profiled" / name)
        export.write(export.vllm(*tables, layer, MOST), out / "table" / name)
        export.write(known | kept(layer, MOST), out / "default" / name)


def kept(layer: Layer, most: int = LEAST - 1) -> dict[str, dict[str, int]]:
    """vLLM's default of a layer for 1 … most tokens, as the body of a file: two keys a switch point."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config

    bodies = [get_default_config(m, layer.e, layer.inter, layer.hidden, layer.top_k, None) for m in range(1, most + 1)]
    ends = [m for m in range(1, most + 1) if m == most or bodies[m] != bodies[m - 1]]
    starts = [1, *(end + 1 for end in ends[:-1])]
    return {str(m): bodies[m - 1] for pair in zip(starts, ends, strict=True) for m in pair}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compile", default="", help="I/N: compile that share of the configurations, time nothing")
    parser.add_argument("--budget-s", type=float, default=60.0, help="seconds of timing for each product")
    options = parser.parse_args(argv)
    tables = read(locate("moe_w13", "H200")), read(locate("moe_w2", "H200"))
    of = configurations(*tables)
    if options.compile:
        compile_shard(of, options.compile)
        return
    say(f"{len(of.configs)} configurations")
    options.out.mkdir(parents=True, exist_ok=True)
    recorded = {}
    for kernel in KERNELS:
        recorded[kernel] = profile(of, kernel, options.budget_s)
        recorded[kernel].save(options.out / f"vllm_{kernel}.npz")
    write_files(recorded, tables, options.out)


if __name__ == "__main__":
    main()
