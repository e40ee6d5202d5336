"""Families that tests register, and take back out."""

from __future__ import annotations

from pipewave.kernels.base import _REGISTRY, CLASSES


def withdraw(name: str) -> None:
    """Take a registered family back out."""
    del CLASSES[name], _REGISTRY.families[name]
    _REGISTRY.revision += 1
