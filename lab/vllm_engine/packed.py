"""Random bits for packed weights, which vLLM's `dummy` load format leaves as zeros.

Multiplying zeros draws less power, so that a chip near its limit clocks higher than it would on real weights. Scales of
MXFP4 (powers of two of bias 127) are set alike, at the size of vLLM's other dummy weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCALE_EXPONENT = 127 - 10  # E8M0: 2^-10, as large as vLLM's ±1e-3


def draw() -> None:
    """Have vLLM's dummy loader fill packed weights too; called before the engine starts."""
    from vllm.model_executor.model_loader import dummy_loader

    usual = dummy_loader.initialize_dummy_weights

    def filled(layer: Any, *given: Any, **named: Any) -> None:
        usual(layer, *given, **named)
        fill(layer.state_dict())

    dummy_loader.initialize_dummy_weights = filled


def fill(tensors: Mapping[str, Any]) -> None:
    """Random bytes in place where a tensor holds bytes; exponents of scales alike."""
    for name, tensor in tensors.items():
        if str(tensor.dtype) != "torch.uint8" or tensor.device.type == "meta":
            continue
        tensor.fill_(SCALE_EXPONENT) if name.endswith("scale") else tensor.random_(0, 256)
