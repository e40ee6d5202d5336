"""Triton kernels of a fused MoE layer, which `pipewave.tune.moe.fused_moe` runs: `moe_sort`, `moe_experts`.

Importing this package imports nothing else; each module needs triton, and its host wrapper torch. The other kernels
that shipped tables were recorded with are in `lab.own_kernels`.
"""
