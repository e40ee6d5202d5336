"""What a launch needs by the maker of its GPU: environment, images, how containers reach the GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.gpus import find

FILE = Path(__file__).with_name("platforms.yaml")


@dataclass(frozen=True, slots=True)
class Platform:
    """environment: variables before the engine's command; image: of its container, None for the engine's usual one;
    docker: words that hand a container all GPUs, None for `--gpus N`; resource: what Kubernetes counts.
    """

    environment: tuple[tuple[str, str], ...] = ()
    image: str | None = None
    docker: tuple[str, ...] | None = None
    resource: str = "nvidia.com/gpu"

    @property
    def words(self) -> list[str]:
        """The environment as a shell takes it before a command."""
        return [f"{name}={value}" for name, value in self.environment]


NVIDIA = Platform()


@cache
def _known() -> dict[str, Any]:
    return dict(packaged.yaml(FILE))


def of(gpu: str, engine: str) -> Platform:
    """The platform of a GPU under an engine. Raises BadInput for an engine that does not run there."""
    card = _known()["cards"].get(str(find(gpu).compute_capability).replace(".", ""))
    if card is None:
        return NVIDIA
    found = _known()["amd"].get(engine)
    if found is None:
        raise BadInput(f"engine = {engine!r}: it does not run on {find(gpu).name}", field="engine")
    image = str(found["image"]).replace("{card}", card)
    return Platform(tuple(found["environment"].items()), image, tuple(_known()["docker"]), _known()["resource"])
