"""Triton kernels of other projects: where they come from, how they are launched, and all their configurations timed."""
