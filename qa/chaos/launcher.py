"""A launcher of Triton configurations without a GPU: its times are a formula of shape and configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.own_kernels.profile import Calls
from lab.own_kernels.space import Space


class Formula:
    """What `lab.own_kernels.profile` asks of a device: to prepare a shape, and to launch a configuration."""

    def __init__(self, of: Space) -> None:
        self._number = {config: at for at, config in enumerate(of.configs)}
        self._shape: dict[str, Any] = {}

    def prepare(self, shape: dict[str, Any]) -> None:
        """Set the shape of the launches to come."""
        self._shape = shape

    def calls(self, config: tuple[int, ...]) -> Calls:
        """One launch of a configuration; it returns its time in µs."""
        us = 10.0 + self._number[config] + self._shape["m"] % 7
        return [lambda: us]

    def time(self, calls: Sequence[Calls]) -> list[float]:
        """µs of each of the launches."""
        return [sum(launch() for launch in launches) for launches in calls]
