"""NeuSight's recipe (ASPLOS'25) on the same rows: latency = waves x time of one tile, utilisation learned.

A network sees one tile's compute time, memory time and L2 share and answers alpha and beta; utilisation of an SM's
roofline, at the arithmetic intensity of the whole kernel, is alpha - beta / waves. Loss is symmetric relative error on
latency. Tiles are those of the paper's kernels (NeuSight itself looks them up in profiled runs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from paper import fused_moe
from paper.demand import Array, ceil_div
from paper.gemm_fp8 import TILE
from paper.training.baselines import TENSOR_RATE, roofline_us
from paper.training.rows import SEED, Rows

LAYERS, WIDTH = 8, 256
EPOCHS, BATCH, LEARNING_RATE = 100, 1024, 5e-4
LEAST_UTILISATION = 1e-3


@dataclass(frozen=True, slots=True)
class Tiles:
    """Output tiles of each row: their number, and the operations and bytes of one."""

    count: Array
    ops: Array
    moved_bytes: Array


def tiles(rows: Rows) -> Tiles:
    """One tile of output, the operands it reads and the elements it writes."""
    shape = {name: column.astype(np.float64) for name, column in rows.shape.items()}
    if rows.kernel == "gemm_fp8":
        count = ceil_div(shape["m"], TILE) * ceil_div(shape["n"], TILE)
        return _tiles(count, np.full(len(rows), TILE), np.full(len(rows), TILE), shape["k"], operand_bytes=1)
    smem = rows.hardware("smem_kb_per_sm")
    block_m, block_n = np.empty(len(rows)), np.empty(len(rows))
    for kb in np.unique(smem):
        same = smem == kb
        tile = fused_moe.tile_heuristic(shape["tokens"][same], shape["experts"][same], shape["hidden"][same], int(kb))
        block_m[same], block_n[same] = tile.block_m, tile.block_n
    padded = fused_moe.padded_rows(shape["tokens"] * shape["topk"], shape["experts"], block_m)
    count = padded / block_m * ceil_div(2 * shape["inter"], block_n)
    return _tiles(count, block_m, block_n, shape["hidden"], operand_bytes=2)


def _tiles(count: Array, rows: Array, cols: Array, depth: Array, operand_bytes: int) -> Tiles:
    return Tiles(count, 2 * rows * cols * depth, operand_bytes * (rows + cols) * depth + 2 * rows * cols)


@dataclass(frozen=True, slots=True)
class Waves:
    """What the network sees (standardised logs of positive numbers) and what its answer is multiplied with."""

    inputs: Array
    count: Array
    tile_us: Array


def waves(rows: Rows) -> Waves:
    """Waves over the SMs and the roofline time of one tile on one SM."""
    found = tiles(rows)
    sms = rows.hardware("sms")
    compute_us = found.ops / (rows.hardware(TENSOR_RATE[rows.kernel]) * rows.hardware("clock_mhz"))
    memory_us = found.moved_bytes / (rows.hardware("dram_gbps") / sms * 1e3)
    l2_share = found.moved_bytes * np.minimum(found.count, sms) / (rows.hardware("l2_mb") * 2**20)
    count = np.ceil(found.count / sms)
    seen = np.log(np.stack([compute_us, memory_us, l2_share, count, found.count / (count * sms)], axis=1))
    # A tile's own intensity would charge DRAM for what L2 reuses and cap the answer far above what GPUs do.
    return Waves(seen, count, roofline_us(rows) * sms / found.count)


def fit_predict_us(train: Rows, test: Rows, epochs: int = EPOCHS, width: int = WIDTH) -> Array:
    """Train on some rows and answer the latency in µs of others."""
    torch.manual_seed(SEED)
    learn, ask = waves(train), waves(test)
    centre, spread = learn.inputs.mean(axis=0), learn.inputs.std(axis=0)
    net = _network(learn.inputs.shape[1], width)
    columns = [_tensor((learn.inputs - centre) / spread), _tensor(learn.count), _tensor(learn.tile_us)]
    _train(net, columns, _tensor(train.latency_us), epochs)
    net.eval()
    with torch.no_grad():
        answer = _latency_us(net, _tensor((ask.inputs - centre) / spread), _tensor(ask.count), _tensor(ask.tile_us))
    return np.asarray(answer.numpy(), dtype=np.float64)


def _network(width_in: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width_in, width), nn.ReLU()]
        width_in = width
    return nn.Sequential(*layers, nn.Linear(width_in, 2), nn.Sigmoid())


def _latency_us(net: nn.Module, inputs: Tensor, count: Tensor, tile_us: Tensor) -> Tensor:
    alpha, beta = net(inputs).unbind(dim=1)
    latency: Tensor = count * tile_us / (alpha - beta / count).clamp(min=LEAST_UTILISATION)
    return latency


def _train(net: nn.Module, columns: list[Tensor], latency_us: Tensor, epochs: int) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(latency_us)), BATCH):
            optimizer.zero_grad()
            answer = _latency_us(net, *(column[batch] for column in columns))
            loss = ((answer - latency_us[batch]).abs() / (answer + latency_us[batch])).mean()
            torch.autograd.backward(loss)
            optimizer.step()
        schedule.step()


def _tensor(values: Array) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
