"""A sweep over a real Dask cluster of two workers, one of which is killed midway: no design lost or counted twice."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from pipewave.models import load
from pipewave.planning import Question, Space, plan
from pipewave.published.stream import executor

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def cluster() -> Iterator[object]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1", silence_logs=50
    ) as running:
        yield running


def kill_one(address: str, killed: list[int]) -> None:
    """SIGKILL the first worker as soon as it has begun to work."""
    import distributed

    with distributed.Client(address) as client:
        pids = client.run(os.getpid)
        while not any(client.processing().values()):
            time.sleep(0.02)
        victim = next(worker for worker, tasks in client.processing().items() if tasks)
        os.kill(pids[victim], signal.SIGKILL)
        killed.append(pids[victim])


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(cluster: object) -> None:
    model, question = load("Llama-3.1-8B"), Question(1000, 100)
    space = Space(("H100", "H200", "A100", "L40S", "H20", "B200"), pps=(1, 2), engines=("vllm",), disaggregated=False)
    address = cluster.scheduler_address  # type: ignore[attr-defined]
    killed: list[int] = []
    assassin = threading.Thread(target=kill_one, args=(address, killed))
    assassin.start()
    with executor("dask://" + address.removeprefix("tcp://")) as pool:
        spread = plan(model, question, space, executor=pool)
    assassin.join(30)
    assert len(killed) == 1
    assert json.dumps(spread.to_dict()) == json.dumps(plan(model, question, space).to_dict())
    assert len(spread.looked) == sum(1 for gpu in space.gpus for _ in space.splits(model, gpu))
