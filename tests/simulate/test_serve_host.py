"""The host: processes that take turns on too few cores, slower cores, and API servers that share requests."""

from __future__ import annotations

import pytest

from pipewave.errors import BadInput
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from pipewave.software.front import Host, host_of, of
from tests.simulate.serving import serve

CHATS = synthetic(800, input_len=16, output_len=4, concurrency=400)


def _rate(host: Host, gpu: str = "H200") -> float:
    setup = Setup(front=host.front(of("vllm"), gpus=1))
    server = Server.of("Llama-3.2-1B", gpu, setup, CHATS.longest)
    return float(serve(server, CHATS).answer["requests_per_s"])


def test_processes_share_too_few_cores() -> None:
    """Eight GPUs, one scheduler and one API server on five cores: everything takes twice as long."""
    assert Host(cores=5).slower(gpus=8, engines=1) == 2.0
    assert Host(cores=10).slower(8, 1) == Host(cores=64).slower(8, 1) == 1.0
    assert Host(speed=0.5).slower(8, 1) == 2.0


def test_many_short_chats_are_as_fast_as_the_host() -> None:
    plain, slow, shared = (_rate(host) for host in (Host(), Host(speed=0.5), Host(cores=64, api_servers=4)))
    assert slow < 0.7 * plain and shared > 1.3 * plain


def test_text() -> None:
    assert host_of("cores=16,speed=0.8,api_servers=2") == Host(16, 0.8, 2)
    for text in ("cores=0", "speed=fast", "threads=3", "api_servers=0", "speed=nan"):
        with pytest.raises(BadInput, match="of serve alone, none"):
            host_of(text)
