"""Stacks, versions and engines: what runs a call, and what an engine adds to its kernels."""
