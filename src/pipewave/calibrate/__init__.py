"""Correct the shipped model for one GPU from its own rows.

`corrections` is what predictions look at and costs nothing to import; `run.calibrate` fits and saves.
"""
