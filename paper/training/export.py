"""Trained networks as weights the numpy estimator reads, with a card beside each file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

from paper.training.collectives import Messages, fit, steps
from paper.training.mlp import Fitted

SOURCE = "github.com/zksainx/pipeweave, commit 55e03178d15a (2026-04-02), Apache-2.0"


def fold(net: nn.Sequential) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(weight, bias) of each Linear with the BatchNorm before it multiplied in: x @ weight + bias."""
    layers: list[tuple[torch.Tensor, torch.Tensor]] = []
    scale, shift = torch.ones(()), torch.zeros(())
    for module in net:
        if isinstance(module, nn.BatchNorm1d):
            assert module.running_var is not None
            assert module.running_mean is not None
            scale = module.weight / torch.sqrt(module.running_var + module.eps)
            shift = module.bias - module.running_mean * scale
        elif isinstance(module, nn.Linear):
            weight = module.weight.detach().double()
            layers.append(((weight * scale).T, module.bias + weight @ shift.double().expand(weight.shape[1])))
    return layers


def save_mlp(fitted: Fitted, kernel: str, model: str, folder: Path, card: dict[str, Any]) -> None:
    """Write `<kernel>_<model>.safetensors` and its card."""
    arrays: dict[str, np.ndarray] = {}
    for index, (weight, bias) in enumerate(fold(fitted.net)):
        arrays[f"weight.{index}"] = np.ascontiguousarray(weight.detach().numpy(), dtype=np.float32)
        arrays[f"bias.{index}"] = bias.detach().numpy().astype(np.float32)
    name = f"{kernel}_{model}"
    metadata = {"kernel": kernel, "model": model, "features": json.dumps(fitted.order), "source": SOURCE}
    save_file(arrays, folder / f"{name}.safetensors", metadata=metadata)
    _save_card(folder / f"{name}.card.json", card)


def save_collectives(known: list[Messages], folder: Path, card: dict[str, Any]) -> None:
    """Write every forest, trained on all its rows, as step functions."""
    arrays: dict[str, np.ndarray] = {}
    for one in known:
        forest = fit(one)
        for workers in np.unique(one.workers).tolist():
            found = steps(forest, workers)
            key = f"{one.primitive}/{one.gpu}/{workers}"
            arrays[f"{key}:edges"], arrays[f"{key}:latency_us"] = found.edges, found.latency_us
    save_file(arrays, folder / "collectives.safetensors", metadata={"source": SOURCE})
    _save_card(folder / "collectives.card.json", card)


def _save_card(path: Path, card: dict[str, Any]) -> None:
    path.write_text(json.dumps({"source": SOURCE} | card, indent=1) + "\n", encoding="utf-8")
