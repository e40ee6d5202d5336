"""Baselines of the comparison that need what `pipewave.tune` does not: Triton's own search, NVIDIA's heuristics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.any_kernel.subjects import Subject
from pipewave.tune.own.anchors import Anchors, Floats
from pipewave.tune.own.described import jit
from pipewave.tune.own.leaderboard import SpaceSelector
from pipewave.tune.own.spaces import Space

OPTIONS = "num_warps", "num_stages"
LAYOUTS = {"matmul": "NN_ROW_MAJOR", "flag_gems_mm": "NN_ROW_MAJOR", "persistent_matmul": "NT_ROW_MAJOR"}


def configs_of(subject: Subject) -> list[Any]:
    """The configurations as Triton has them."""
    import triton

    return [triton.Config({name: value for name, value in one.items() if name not in OPTIONS},
                          **{name: one[name] for name in OPTIONS if name in one})
            for one in subject.configs]  # fmt: skip


def keys_of(subject: Subject) -> list[str]:
    """The key that upstream would tune anew for, as far as it is arguments."""
    return [name for name in subject.key if name in jit(subject.kernel()).arg_names]


def exhaustive(subject: Subject, torch: Any, space: Space, launches: Sequence[int]) -> dict[str, Any]:
    """`triton.autotune` at some launches of a space: seconds each, binaries there already, and its regret."""
    import triton

    configs = configs_of(subject)
    kernel = triton.autotune(configs, keys_of(subject))(subject.kernel())
    us, seconds, lost = space.us(), [], []
    for i in launches:
        kernel.cache.clear()
        grid, args, kwargs = subject.launch(torch, dict(space.shapes[i]))
        start = time.perf_counter()
        kernel.run(*args, grid=grid, warmup=False, **kwargs)
        seconds.append(time.perf_counter() - start)
        chosen = next(n for n, one in enumerate(configs) if one is kernel.best_config)
        lost.append(float(us[i, chosen] / np.nanmin(us[i]) - 1))
    return {"launches": len(lost), "seconds_each": float(np.mean(seconds)), "regret": lost}


class Heuristics(SpaceSelector):
    """NVIDIA's analytical ranking of products (CUTLASS3 target): its tile, run as the space's member nearest to it."""

    name = "nvMatmulHeuristics"

    def fit(self, anchors: Anchors, of: Space) -> None:
        """Load the ranking of the card. ImportError without nvidia-matmul-heuristics, or for another kernel."""
        if of.meta["kernel"] not in LAYOUTS:
            raise ImportError("bf16 products only")
        import nvMatmulHeuristics as nv  # noqa: N813  the package's own name

        card = "H200_SXM" if "H200" in str(of.meta["env"]["gpu"]) else "H100_SXM"
        self._engine = nv.NvMatmulHeuristicsInterfaceEx(
            backend=nv.NvMatmulHeuristicsTarget.CUTLASS3, gpu=getattr(nv.NvMatmulHeuristicsNvidiaGpu, card),
            flags=nv.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING, load_discovery_implicitly=True,
        )  # fmt: skip
        self._layout = getattr(nv.NvMatmulHeuristicsMatmulLayout, LAYOUTS[str(of.meta["kernel"])])
        self._tiles = np.log2([[one[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")] for one in of.configs])
        us = np.where(np.isfinite(anchors.us), anchors.us, 10 * np.nanmax(anchors.us))
        self._score = np.log(us / us.min(axis=1, keepdims=True)).mean(axis=0)  # fills what a tile leaves open

    def choose(self, at: Floats, counts: Floats, default: int) -> int:
        """The member nearest to the tile it ranks first."""
        problem = self._engine.makeNvMatmulHeuristicsProblem(*(int(size) for size in at), self._layout, 1)
        kernel = self._engine.get(problem, 1, precision="TSS")[0]["kernel"]
        tile = np.log2([kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k])
        return int((np.abs(self._tiles - tile).sum(axis=1) + 1e-3 * self._score).argmin())


def spread_out(space: Space, count: int) -> list[int]:
    """Test launches of a space, from all of it."""
    tests = np.flatnonzero(space.is_test)
    return [int(i) for i in tests[:: max(1, len(tests) // count)][:count]]
