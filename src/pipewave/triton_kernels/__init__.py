"""Triton kernels of ours that the tuner chooses configurations for.

Importing this package imports nothing else; each module needs triton, and its host wrapper torch.

* `gemm`: C = scale · A Wᵀ, bf16 or fp8 operands
* `prefill`: attention over whole prompts (FlashAttention forward), causal or not, grouped heads
* `moe_sort`, `moe_experts`: a whole fused MoE layer, which `pipewave.tune.moe.fused_moe` runs

Those of grouped experts and of decode, which tables of these names were recorded with, are in `lab.own_kernels`.
"""
