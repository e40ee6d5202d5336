"""`python -m studies.gemm_base [--data DIR]`: how far the GEMM base estimate is from measurement, and how it transfers.

Rates and overheads of `kernels/gemm/machine.py` are one set for all GPUs. This fits a scale for each of them to a
sample of the public rows, once with every architecture and once without each, and prints the mean absolute log error
of the GPUs left out beside that of the constants as shipped. Scales near 1 and small differences mean that nothing of
a GPU left out has leaked into the base estimate.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from pipewave.gpus import find
from pipewave.kernels.base import Context
from pipewave.kernels.gemm.family import parts
from pipewave.kernels.gemm.machine import TILES, GemmMachine, Pace, machine
from pipewave.physics.arith import ARRAY
from train.nets import gemm

MACHINE = ("launch_s", "tile_s", "split_s", "l2_per_sm", "drain_per_sm", "dram", "quantize_s", "row_cycles")
ENERGY = ("joules_per_flop",)
LIBRARY = ("element_cycles", "from_l2", "from_dram")
SCALED = (*MACHINE, *ENERGY, *LIBRARY)
SAMPLE = 1_000
CONTEXT = ("gpu", "dtype", "protocol", "stack", "impl", "quantize")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that share a context, with their log latency in seconds."""

    gpu: str
    family: str
    at: GemmMachine
    sizes: tuple[Floats, Floats, Floats]
    log_s: Floats

    def error(self, log_scale: dict[str, float]) -> Floats:
        """Log of estimate over measurement with every named constant scaled."""
        m, n, k = self.sizes
        _, times, _ = parts(m, n, k, 0.0 * m, None, scaled(self.at, log_scale), ARRAY)
        return np.asarray(np.log(times.base) - self.log_s)


def scaled(at: GemmMachine, log_scale: dict[str, float]) -> GemmMachine:
    """The machine with its constants multiplied by exp(log_scale)."""
    found = copy(at)
    library = {name: getattr(at.library, name) * np.exp(v) for name, v in log_scale.items() if name in LIBRARY}
    found.library = replace(at.library, **library)
    for name in log_scale.keys() - LIBRARY:
        setattr(found, name, getattr(at, name) * np.exp(log_scale[name]))
    found.paces = tuple(Pace.of(tile, found) for tile in TILES)
    return found


def batches(data: str | None, dtypes: Sequence[str]) -> list[Batch]:
    """A sample of the graph rows of these types, by context."""
    frame = pd.concat([gemm.rows(net, data) for net in gemm.NETS], ignore_index=True)
    frame = frame[frame["dtype"].isin(dtypes) & (frame["protocol"] == "graph") & (frame["source"] == "aiconfigurator")]
    frame = frame.sample(frac=1.0, random_state=0)
    frame = frame[frame.groupby(["gpu", "dtype"], observed=True).cumcount() < SAMPLE].reset_index(drop=True)
    found = []
    for key, rows in frame.groupby(list(CONTEXT), observed=True):
        gpu, dtype, protocol, stack, impl, quantize = key
        ctx = Context(find(gpu), dtype, protocol, stack, impl, (("quantize", quantize), ("tile", None)))
        sizes = tuple(rows[name].to_numpy(np.float64) for name in ("m", "n", "k"))
        log_s = np.log(rows["latency_us"].to_numpy() * 1e-6)
        found.append(Batch(gpu, ctx.gpu.architecture, machine(ctx), (sizes[0], sizes[1], sizes[2]), log_s))
    return found


def fitted(train: Sequence[Batch]) -> dict[str, float]:
    """Log scales that make the estimate of these rows best, robustly."""

    def residual(z: Floats) -> Floats:
        log_scale = dict(zip(SCALED, z.tolist(), strict=True))
        return np.concatenate([batch.error(log_scale) for batch in train])

    found = least_squares(residual, np.zeros(len(SCALED)), loss="soft_l1", f_scale=0.15, diff_step=1e-2, max_nfev=12)
    return dict(zip(SCALED, found.x.tolist(), strict=True))


def table(scored: Sequence[Batch], log_scale: dict[str, float]) -> pd.DataFrame:
    """Mean and mean absolute log error per GPU."""
    rows = [(batch.gpu, error) for batch in scored for error in batch.error(log_scale)]
    frame = pd.DataFrame(rows, columns=["gpu", "error"])
    return frame.groupby("gpu")["error"].agg(mean="mean", absolute=lambda e: e.abs().mean()).round(3)


def main() -> None:
    """Print scales and errors: as shipped, refitted, and refitted without each architecture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    parser.add_argument("--dtype", action="append", help="operand types (default: bf16 and fp8)")
    options = parser.parse_args()
    everything = batches(options.data, options.dtype or ("bf16", "fp8"))
    print("as shipped\n", table(everything, {}))
    log_scale = fitted(everything)
    print("refitted, scales", {name: round(float(np.exp(v)), 2) for name, v in log_scale.items()})
    print(table(everything, log_scale))
    for family in sorted({batch.family for batch in everything}):
        rest = [batch for batch in everything if batch.family != family]
        left_out = [batch for batch in everything if batch.family == family]
        print(f"fitted without {family}\n", table(left_out, fitted(rest)))


if __name__ == "__main__":
    main()
