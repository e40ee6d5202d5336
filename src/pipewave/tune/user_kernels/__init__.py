"""Kernels that nobody here wrote: read from their source, measured at a few launches, then chosen for by the laws."""
