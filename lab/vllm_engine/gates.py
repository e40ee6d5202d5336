"""Experts drawn at random where one kernel chooses and runs them, so that vLLM's own simulated routing has no say.

The experts of MXFP4 checkpoints on Hopper (`triton_kernels`) take the gate's logits and route inside. Random weights
send all tokens of a deep layer to the same experts; with drawn logits they spread as real text does. The logits are
drawn once and read from another row on in every layer, so that no kernel is added.
"""

from __future__ import annotations

import itertools
from typing import Any

ROWS = 1 << 14  # drawn logits; twice the largest step, so that a step can begin anywhere in the first half
STRIDE = 97  # rows from one layer's first to the next's


def draw() -> None:
    """Have vLLM's `triton_kernels` experts read drawn logits; called before the engine starts."""
    import torch
    from vllm.model_executor.layers.fused_moe.experts import gpt_oss_triton_kernels_moe as kernels

    forward, drawn, layer = kernels.triton_kernel_moe_forward, {}, itertools.count()

    def routed(*given: Any, gating_output: Any, **named: Any) -> Any:
        rows, experts = gating_output.shape
        if experts not in drawn:
            drawn[experts] = torch.randn(ROWS, experts, dtype=gating_output.dtype, device=gating_output.device)
        first = next(layer) * STRIDE % (ROWS - rows + 1)
        return forward(*given, gating_output=drawn[experts][first : first + rows], **named)

    kernels.triton_kernel_moe_forward = routed
