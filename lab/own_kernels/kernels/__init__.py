"""Our kernels that shipped tables were recorded with, apart from those of the fused MoE layer."""
