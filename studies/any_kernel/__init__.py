"""Kernels that nobody here wrote, tuned by `pipewave.tune.autotune` and timed under all of their configurations."""
