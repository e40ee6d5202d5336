"""The Triton kernels that the tuner chooses configurations for.

Importing this package imports nothing else; each module needs triton, and its host wrapper torch.

* `gemm`: C = scale · A Wᵀ, bf16 or fp8 operands
* `grouped`: the two grouped GEMMs of a fused MoE layer, and the token sorting they need
* `moe`: a whole fused MoE layer, of `moe_sort` and `moe_experts`, or for few tokens of `moe_few`
* `prefill`: attention over whole prompts (FlashAttention forward), causal or not, grouped heads
* `decode`: one query per sequence over a paged KV cache, split along the cache and reduced
"""
