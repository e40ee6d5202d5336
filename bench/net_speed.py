"""What the networks of a GEMM cost a row of a table, on one core: `python -m bench.net_speed [--rounds 10]`.

FLOPs of a row, and µs of its matrix products alone and of the whole network, by the number of rows taken together.
CPU time, the best of several rounds in turn, since other programs interfere.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pipewave.nets.nets import Net, layers_under, trained

ROWS = 16_384
CHUNKS = (128, 256, 512, 1024, 2048)
Work = Callable[[Net, NDArray[np.float32]], object]


def flops(net: Net) -> int:
    """Multiply-adds of all members, counted twice, a row."""
    return 2 * sum(int(np.prod(weight.shape)) for weight in net.weights)


def products(net: Net, x: NDArray[np.float32]) -> object:
    """The matrix products without biases and activations."""
    for weight in net.weights:
        x = np.matmul(x, weight)
    return x


def whole(net: Net, x: NDArray[np.float32]) -> object:
    """The network as predictions run it, on the inputs and a one."""
    places = tuple(range(len(net.features)))
    return layers_under(net, net.codes({}), places, ()).outputs(
        np.concatenate((x, np.ones((1, len(x)), np.float32).T), axis=1)
    )


def us_a_row(net: Net, work: Work, chunk: int, x: NDArray[np.float32]) -> float:
    """CPU time of one pass over all rows."""
    start = time.process_time()
    for at in range(0, ROWS, chunk):
        work(net, x[at : at + chunk])
    return 1e6 * (time.process_time() - start) / ROWS


def main() -> None:
    """Print FLOPs, then a line for each number of rows together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    learned = trained("gemm")
    assert learned is not None
    assert learned.ceiling is not None
    net = learned.net
    print(f"FLOP a row: {flops(net):,}, of the ceiling {flops(learned.ceiling.net):,}; cores: {os.cpu_count()}")
    print(
        "| rows together | matrix products, µs a row | network, µs a row | GFLOP/s of the products |\n|---|---|---|---|"
    )
    x = np.random.default_rng(0).normal(size=(ROWS, len(net.features))).astype(np.float32)
    taken = [[[us_a_row(net, work, chunk, x) for work in (products, whole)] for chunk in CHUNKS] for _ in range(rounds)]
    for chunk, (alone, all_) in zip(CHUNKS, np.min(taken, axis=0), strict=True):
        print(f"| {chunk} | {alone:.2f} | {all_:.2f} | {1e-3 * flops(net) / alone:.0f} |")


if __name__ == "__main__":
    main()
