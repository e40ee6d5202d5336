"""Selectors that need a package of their own; each says so when it is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.mapping import mapper
from pipewave.tune.measured import Measured, measured
from pipewave.tune.recording import ANCHOR, WAVE, Recording
from pipewave.tune.selector import Selector, asked, median_us

Floats = NDArray[np.float64]


def features(some: Measured, sms: int) -> Floats:
    """Shape, configuration, blocks, trips and waves of every pair: [s, c, features]."""
    columns = some.columns()
    work = mapper(some.kernel)(columns, some.config)
    shape = [
        np.log(np.maximum(values, 1)) for name, values in columns.items() if name not in ("seed", "rows", "active")
    ]
    config = [np.log2(np.maximum(values, 0.5)) for values in some.config.values()]
    waves = -(-work.blocks // sms)
    mapped = [np.log(np.maximum(np.asarray(x, float), 1)) for x in (work.blocks, work.trips, waves, work.dram)]
    size = (len(some.us), len(some.resident))
    return np.stack([np.broadcast_to(np.asarray(x, float), size) for x in (*shape, *config, *mapped)], axis=-1)


def xgboost(recording: Recording, test: Measured) -> Selector | str:
    """Boosted trees on log µs with the published settings: 600 trees, depth 10, rate 0.05, subsample 0.8."""
    try:
        from xgboost import XGBRegressor
    except ImportError:
        return "xgboost is not installed: pip install 'pipewave[baselines]'"
    sms = int(recording.meta["env"]["sm_count"])
    parts = [(features(some, sms), some.us) for role in (ANCHOR, WAVE) if len((some := measured(recording, role)).us)]
    x = np.concatenate([f[np.isfinite(us)] for f, us in parts])
    y = np.concatenate([np.log(us[np.isfinite(us)]) for _, us in parts])
    model = XGBRegressor(n_estimators=600, max_depth=10, learning_rate=0.05, subsample=0.8, n_jobs=1, random_state=0)
    model.fit(x.astype(np.float32), y)
    wanted = features(test, sms).astype(np.float32)
    chosen = np.array([int(model.predict(rows).argmin()) for rows in wanted])
    return Selector(chosen, median_us(lambda rows: model.predict(rows).argmin(), list(wanted[:8])))


def matmul_heuristics(recording: Recording, test: Measured) -> Selector | str:
    """NVIDIA's analytical ranking (CUTLASS3 target, H200): its tile, run as the space's member nearest to it."""
    if test.kernel != "gemm":
        return "bf16 GEMM only"
    try:
        import nvMatmulHeuristics as nv  # noqa: N813  the package's own name
    except ImportError:
        return "nvidia-matmul-heuristics is not installed: pip install 'pipewave[baselines]'"
    engine = nv.NvMatmulHeuristicsInterfaceEx(
        backend=nv.NvMatmulHeuristicsTarget.CUTLASS3, flags=nv.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        load_discovery_implicitly=True, gpu=nv.NvMatmulHeuristicsNvidiaGpu.H200_SXM,
    )  # fmt: skip
    layout = nv.NvMatmulHeuristicsMatmulLayout.NT_ROW_MAJOR

    def decide(shape: dict[str, Any]) -> Any:
        problem = engine.makeNvMatmulHeuristicsProblem(shape["m"], shape["n"], shape["k"], layout, 1)
        return engine.get(problem, 1, precision="TSS")[0]

    shapes = asked(test)
    tiles = [_tile(decide(shape)["kernel"]) for shape in shapes]
    us = measured(recording, ANCHOR).us
    score = np.log(us / us.min(axis=1, keepdims=True)).mean(axis=0)
    return Selector(np.array([_member(test, tile, score) for tile in tiles]), median_us(decide, shapes))


def _tile(kernel: Any) -> tuple[int, int, int, int]:
    return int(kernel.cta_tile_m), int(kernel.cta_tile_n), int(kernel.cta_tile_k), int(kernel.stages)


def _member(test: Measured, tile: tuple[int, int, int, int], score: Floats) -> int:
    """Nearest configuration to a tile; what the tile leaves open is filled by what does best over the anchors."""
    c = test.config
    off = sum(
        np.abs(np.log2(c[name] / want)) for name, want in zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=False)
    )
    return int((np.asarray(off) + 1e-3 * score).argmin())
