"""Kernels that stream memory: norms, activations, element-wise work."""
