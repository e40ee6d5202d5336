"""Our kernels that shipped tables were recorded with; `moe_sort` and `moe_experts` are those of `fused_layer`."""
