"""Choosing a Triton kernel's configuration from the shape alone.

Recording and profiling need a GPU; everything else, choosing included, is plain Python and numpy.
"""
