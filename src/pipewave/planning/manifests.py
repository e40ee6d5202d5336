"""A plan's engines as `docker run`, as Kubernetes deployments, or as a recipe of NVIDIA Dynamo.

What a launch needs besides, by the maker of its GPU, is a `Platform`. Images are the engines' own, by version. What a
cluster decides itself (storage, secrets, network) is left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.gpus import find
from pipewave.software.recorded import images

FORMS = ("shell", "docker", "kubernetes", "dynamo")
ENGINES = Path(__file__).with_name("launch.yaml")
PLATFORMS = ENGINES.with_name("platforms.yaml")
PRODUCT, MAKERS = "nvidia.com/gpu.product", ("NVIDIA ", "Tesla ")  # a node's label; how names of boards begin
PLACE = (
    "# To be placed: give each pod a nodeSelector with the label of its GPU's nodes (amd.com/gpu.product-name=...).\n"
)
CACHE = "/root/.cache/huggingface"


def engine_words(name: str) -> dict[str, Any]:
    """What starts an engine."""
    return dict(packaged.shared(ENGINES)[name])


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


def platform_of(gpu: str, engine: str) -> Platform:
    """The platform of a GPU under an engine. Raises BadInput for an engine that does not run there."""
    known = packaged.shared(PLATFORMS)
    card = known["cards"].get(str(find(gpu).compute_capability))
    if card is None:
        return NVIDIA
    found = known["amd"].get(engine)
    if found is None:
        raise BadInput(f"engine = {engine!r}: it does not run on {find(gpu).name}", field="engine")
    image = str(found["image"]).replace("{card}", card)
    return Platform(tuple(found["environment"].items()), image, tuple(known["docker"]), known["resource"])


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal engines: what they are for (`server`, `prefill`, `decode`), how many, GPUs of each, and their command."""

    role: str
    engines: int
    gpus: int
    command: str
    gpu: str = "GPUs"  # which
    place: Mapping[str, Any] = field(default_factory=dict)  # of a pod, where GPUs are of several kinds


def render(form: str, engine: str, version: str, pools: Sequence[Pool], platform: Platform = NVIDIA) -> str:
    """The pools in a form. Raises BadInput for a form that is none, and for Dynamo on another maker's GPUs."""
    if form not in FORMS:
        raise BadInput(f"form = {form!r}: must be one of {', '.join(FORMS)}", field="form")
    heads = [f"# {pool.engines} × {pool.role}, {pool.gpus} {pool.gpu} each\n" * (len(pools) > 1) for pool in pools]
    image = platform.image.format(version=version) if platform.image else images()[engine].of(version)
    if form in ("shell", "docker"):
        port = engine_words(engine)["port"]
        lines = [pool.command if form == "shell" else _docker(image, port, pool, platform) for pool in pools]
        return "\n".join(head + line for head, line in zip(heads, lines, strict=True))
    if form == "dynamo" and platform != NVIDIA:
        raise BadInput("form = 'dynamo': its images are for NVIDIA GPUs; ask for docker or kubernetes", field="form")
    several = len({pool.gpu for pool in pools}) > 1
    if several and platform == NVIDIA:
        pools = [replace(pool, place={"nodeSelector": {PRODUCT: product(pool.gpu)}}) for pool in pools]
    documents = [_dynamo(engine, pools)] if form == "dynamo" else [
        _deployment(engine, image, pool, platform) for pool in pools]  # fmt: skip
    return (
        "".join([*heads, PLACE * (several and platform != NVIDIA)])
        + yaml.safe_dump_all(documents, sort_keys=False).strip()
    )


def product(gpu: str) -> str:
    """What NVIDIA's feature discovery labels nodes with a GPU: the board's name, with dashes."""
    card = find(gpu)
    return next((one for one in card.aliases if one.startswith(MAKERS)), f"NVIDIA {card.name}").replace(" ", "-")


def _docker(image: str, port: int, pool: Pool, platform: Platform) -> str:
    words = ["docker", "run", "--rm", *(platform.docker or ("--gpus", str(pool.gpus)))]
    words += f"--ipc=host --ulimit memlock=-1 -p {port}:{port} -v {CACHE}:{CACHE} --entrypoint bash".split()
    return shlex.join([*words, image, "-c", pool.command])


def _deployment(engine: str, image: str, pool: Pool, platform: Platform) -> dict[str, Any]:
    """A Kubernetes Deployment of a pool: one pod an engine."""
    labels = {"app": f"{engine}-{pool.role}"}
    container = {
        "name": engine,
        "image": image,
        "command": ["bash", "-c", pool.command],
        "ports": [{"containerPort": engine_words(engine)["port"]}],
        "resources": {"limits": {platform.resource: pool.gpus}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {**pool.place, "containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}
    template = {"metadata": {"labels": dict(labels)}, "spec": pod}  # no anchor: people read it
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": labels["app"]},
        "spec": {"replicas": pool.engines, "selector": {"matchLabels": labels}, "template": template},
    }


def _dynamo(engine: str, pools: Sequence[Pool]) -> dict[str, Any]:
    """A DynamoGraphDeployment: a frontend, and for each pool the engine's options behind Dynamo's own worker."""
    how = engine_words(engine)["dynamo"]
    image = {"image": f"nvcr.io/nvidia/ai-dynamo/{how['runtime']}-runtime"}
    front = {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": image}}
    services: dict[str, Any] = {"Frontend": front}
    for pool in pools:
        words = shlex.split(pool.command) if "<(" not in pool.command else pool.command.split(" ")
        line = f"python3 -m {shlex.join([*how['worker'], *words[how['server_words'] :]])}"
        services[f"{pool.role.capitalize()}Worker"] = {
            "componentType": "worker",
            **({"subComponentType": pool.role} if pool.role in ("prefill", "decode") else {}),
            "replicas": pool.engines,
            "resources": {"limits": {"gpu": str(pool.gpus)}},
            "extraPodSpec": {**pool.place, "mainContainer": {**image, "command": ["bash", "-c"], "args": [line]}},
        }
    meta = {"name": f"{engine}-plan"}
    kind = {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment"}
    return {**kind, "metadata": meta, "spec": {"services": services}}
