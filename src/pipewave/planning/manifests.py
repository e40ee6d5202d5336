"""A plan's engines as `docker run`, as Kubernetes deployments, or as a recipe of NVIDIA Dynamo.

Images are the engines' own, by version. What a cluster decides itself (storage, secrets, network) is left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from pipewave.errors import BadInput
from pipewave.planning.platforms import NVIDIA, Platform

FORMS = ("shell", "docker", "kubernetes", "dynamo")
IMAGES = {
    "vllm": "vllm/vllm-openai:v{version}",
    "sglang": "lmsysorg/sglang:v{version}",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:{version}",
}
PORTS = {"vllm": 8000, "sglang": 30000, "trtllm": 8000}


class Worker(NamedTuple):
    """Dynamo's worker of an engine: its module, the option that names the model where the engine's own server takes it
    without one, and how many words start that server.
    """

    module: str
    model_option: tuple[str, ...]
    server_words: int


DYNAMO = {
    "vllm": Worker("dynamo.vllm", ("--model",), 2),
    "sglang": Worker("dynamo.sglang", (), 3),
    "trtllm": Worker("dynamo.trtllm", ("--model-path",), 2),
}
RUNTIMES = {
    name: f"nvcr.io/nvidia/ai-dynamo/{runtime}-runtime"
    for name, runtime in (("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "tensorrtllm"))
}


class _Plain(yaml.SafeDumper):
    """Writes equal parts out again: a manifest is read by people, who know no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """No part is an alias of another."""
        return True


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal engines: what they are for (`server`, `prefill`, `decode`), how many, GPUs of each, and their command."""

    role: str
    engines: int
    gpus: int
    command: str


def render(form: str, engine: str, version: str, pools: Sequence[Pool], platform: Platform = NVIDIA) -> str:
    """The pools in a form. Raises BadInput for a form that is none, and for Dynamo on another maker's GPUs."""
    if form not in FORMS:
        raise BadInput(f"form = {form!r}: must be one of {', '.join(FORMS)}", field="form")
    if form == "shell":
        return "\n".join(_shell(pool, alone=len(pools) == 1) for pool in pools)
    if form == "docker":
        return "\n".join(_docker(engine, version, pool, platform) for pool in pools)
    if form == "dynamo" and platform != NVIDIA:
        raise BadInput("form = 'dynamo': its images are for NVIDIA GPUs; ask for docker or kubernetes", field="form")
    documents = [_deployment(engine, version, pool, platform) for pool in pools]
    documents = [_dynamo(engine, pools)] if form == "dynamo" else documents
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False).strip()


def _shell(pool: Pool, *, alone: bool) -> str:
    return pool.command if alone else f"# {pool.engines} × {pool.role}, {pool.gpus} GPUs each\n{pool.command}"


def _image(engine: str, version: str, platform: Platform) -> str:
    return (platform.image or IMAGES[engine]).format(version=version)


def _docker(engine: str, version: str, pool: Pool, platform: Platform) -> str:
    image, port = _image(engine, version, platform), PORTS[engine]
    words = [
        "docker",
        "run",
        "--rm",
        *(platform.docker or ("--gpus", str(pool.gpus))),
        "--ipc=host",
        "--ulimit",
        "memlock=-1",
        "-p",
        f"{port}:{port}",
    ]
    words += [
        "-v",
        "/root/.cache/huggingface:/root/.cache/huggingface",
        "--entrypoint",
        "bash",
        image,
        "-c",
        pool.command,
    ]
    return shlex.join(words)


def _deployment(engine: str, version: str, pool: Pool, platform: Platform) -> dict[str, Any]:
    """A Kubernetes Deployment of a pool: one pod an engine."""
    labels = {"app": f"{engine}-{pool.role}"}
    container = {
        "name": engine,
        "image": _image(engine, version, platform),
        "command": ["bash", "-c", pool.command],
        "ports": [{"containerPort": PORTS[engine]}],
        "resources": {"limits": {platform.resource: pool.gpus}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": labels["app"]},
        "spec": {
            "replicas": pool.engines,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}},
        },
    }


def _dynamo(engine: str, pools: Sequence[Pool]) -> dict[str, Any]:
    """A DynamoGraphDeployment: a frontend, and a worker service a pool."""
    services: dict[str, Any] = {
        "Frontend": {"componentType": "frontend", "replicas": 1, "extraPodSpec": _pod(engine, None)}
    }
    for pool in pools:
        services[f"{pool.role.capitalize()}Worker"] = {
            "componentType": "worker",
            **({"subComponentType": pool.role} if pool.role in ("prefill", "decode") else {}),
            "replicas": pool.engines,
            "resources": {"limits": {"gpu": str(pool.gpus)}},
            "extraPodSpec": _pod(engine, _worker(engine, pool.command)),
        }
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": f"{engine}-plan"},
        "spec": {"services": services},
    }


def _pod(engine: str, command: str | None) -> dict[str, Any]:
    override = {"command": ["bash", "-c"], "args": [command]} if command else {}
    return {"mainContainer": {"image": RUNTIMES[engine], **override}}


def _worker(engine: str, command: str) -> str:
    """The engine's options behind Dynamo's worker instead of its own server."""
    words = shlex.split(command) if "<(" not in command else command.split(" ")
    worker = DYNAMO[engine]
    return f"python3 -m {worker.module} {shlex.join([*worker.model_option, *words[worker.server_words :]])}"
