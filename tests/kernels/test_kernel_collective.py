"""Collectives: ring traffic against a simulated ring, regimes, link types, the default implementation, laws, rows."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.kernels.base import Context, family_of
from pipewave.kernels.collective.algorithms import CUSTOM_BELOW, custom_runs, custom_s, nccl, one_shot, ring
from pipewave.kernels.collective.analyse import NETWORK, regime
from pipewave.kernels.collective.links import bridged, link
from pipewave.physics.demand import floor_s
from pipewave.prediction.jsonl import answer_stream
from pipewave.residual.nets import trained

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
WORLDS = st.sampled_from((2, 3, 4, 6, 8, 16))
GPUS = st.sampled_from(("A100", "H200", "B200", "L40S", "RTX PRO 6000 Server", "A40", "H100 NVL"))
ONE = np.array([1.0])


def _columns(size: float, world: float, nodes: float = 1.0) -> dict[str, np.ndarray]:
    return {"bytes": size * ONE, "world": world * ONE, "nodes": nodes * ONE}


def gathered(world: int) -> int:
    """Rounds until passing on what came last has given every rank every chunk."""
    held, last, rounds = [{rank} for rank in range(world)], list(range(world)), 0
    while any(len(chunks) < world for chunks in held):
        last = [last[rank - 1] for rank in range(world)]
        held = [chunks | {new} for chunks, new in zip(held, last, strict=True)]
        rounds += 1
    return rounds


def reduced(world: int) -> int:
    """Rounds until each rank owns a chunk with every rank's share, when each round passes one partial sum on."""
    shares, rounds = [[{rank} for _ in range(world)] for rank in range(world)], 0
    while not all(any(len(part) == world for part in parts) for parts in shares):
        moving = [(rank, (rank - rounds) % world) for rank in range(world)]
        for rank, chunk, part in [(rank, chunk, set(shares[rank][chunk])) for rank, chunk in moving]:
            shares[(rank + 1) % world][chunk] |= part
        rounds += 1
    return rounds


ROUNDS = {"all_gather": gathered, "reduce_scatter": reduced, "all_reduce": lambda n: reduced(n) + gathered(n)}


@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_ring_traffic_and_steps(op: str, world: int) -> None:
    path = ring(op, 1e6 * ONE, world * ONE)
    rounds = ROUNDS[op](world)
    assert path.steps[0] == rounds
    assert path.sent[0] == pytest.approx(rounds * 1e6 / world)  # one chunk a round


def test_small_messages_take_the_low_latency_protocol_and_large_ones_fill_the_link() -> None:
    over = link(find("H200"), 8 * ONE, ONE)
    small, large = (nccl(ring("all_reduce", size * ONE, 8 * ONE), over) for size in (1e3, 1e9))
    assert small.low_latency < small.simple
    assert large.simple < large.low_latency


def test_vllm_reads_whole_buffers_of_two_ranks_and_of_small_messages() -> None:
    sizes = np.array([1e3, 3e5, 6e5])
    assert one_shot(sizes, np.full(3, 2.0)).all()
    assert one_shot(sizes, np.full(3, 4.0)).tolist() == [True, True, False]
    assert one_shot(sizes, np.full(3, 8.0)).tolist() == [True, False, False]


def test_custom_kernels_run_over_nvlink_or_in_pairs_below_their_limit() -> None:
    nvlink, pcie = (lambda world, gpu=gpu: link(find(gpu), world * ONE, ONE) for gpu in ("H200", "L40S"))
    assert custom_runs(1e4 * ONE, 8 * ONE, ONE, nvlink(8))[0]
    assert custom_runs(1e4 * ONE, 2 * ONE, ONE, pcie(2))[0]
    assert not custom_runs(1e4 * ONE, 4 * ONE, ONE, pcie(4))[0]
    assert not custom_runs(CUSTOM_BELOW * ONE, 8 * ONE, ONE, nvlink(8))[0]
    assert not custom_runs(1e4 * ONE, 3 * ONE, ONE, nvlink(3))[0]


@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_custom_kernel_beats_nccl_on_decode_messages(world: int) -> None:
    over, size = link(find("H200"), world * ONE, ONE), 65536 * ONE
    assert custom_s(size, world * ONE, over) < nccl(ring("all_reduce", size, world * ONE), over).best


def test_bridged_cards_meet_over_pcie_beyond_a_pair() -> None:
    nvl = find("H100 NVL")
    assert bridged(nvl)
    assert not bridged(find("H100"))
    pair, four = link(nvl, 2 * ONE, ONE), link(nvl, 4 * ONE, ONE)
    assert pair.rate[0] == nvl.link_gbps * 1e9
    assert four.rate[0] <= nvl.pcie_gbps * 1e9


def test_between_nodes_the_network_is_the_slowest_link() -> None:
    inside, across = (link(find("H200"), 8 * ONE, nodes * ONE) for nodes in (1, 8))
    assert across.rate[0] == 50e9
    assert across.start_s > inside.start_s


def test_small_all_reduces_have_their_own_net() -> None:
    assert regime({"bytes": 1 << 20, "world": 8}) == "all_reduce_small"
    assert regime({"bytes": 8 << 20, "world": 8}) == "all_reduce"
    assert regime({"bytes": 1 << 20, "world": 16, "nodes": 2}) == NETWORK
    assert regime({"bytes": 1 << 20, "world": 3}) == "all_reduce"


@pytest.mark.skipif(trained("all_reduce_small") is None, reason="no weights")
def test_vllm_reduces_small_messages_itself_and_leaves_large_ones_to_nccl() -> None:
    found = pw.predict([pw.all_reduce(1 << 16, 8), pw.all_reduce(1 << 28, 8)], "H200", protocol="graph")
    assert [answer.impl for answer in found] == ["custom", "nccl"]
    plain = pw.predict(pw.all_reduce(1 << 16, 8, impl="nccl"), "H200", protocol="graph")
    assert plain.impl == "nccl"
    assert found[0].latency_us < plain.latency_us


@given(st.sampled_from(OPS), st.integers(1, 1 << 34), WORLDS, GPUS)
def test_no_collective_is_predicted_below_its_floor(op: str, size: int, world: int, gpu: str) -> None:
    call = getattr(pw, op)(size, world, nodes=max(1, world // 8))
    for protocol in ("cold", "graph", "profiler_warm"):
        found = pw.predict(call, gpu, protocol=protocol)
        assert found.floor_us <= found.low_us <= found.latency_us <= found.high_us


def test_a_host_holds_no_more_ranks_than_gpus_and_a_network_is_named_as_assumed() -> None:
    with pytest.raises(BadInput, match="give nodes = 8"):
        pw.predict(pw.all_reduce(1 << 20, 64), "H200")
    over = pw.predict(pw.all_reduce(1 << 20, 64, nodes=8), "H200")
    assert over.basis == "new_architecture"
    assert "50 GB/s" in over.notes[-1]
    rack = pw.predict(pw.all_reduce(1 << 20, 64, nodes=16), "GB200", protocol="graph")
    assert not any("network" in note for note in rack.notes)
    lines = [json.dumps({"id": n, "kernel": "all_reduce", "bytes": 1 << 20, "world": 16, "nodes": n}) for n in (1, 2)]
    out = io.StringIO()
    answer_stream(lines, out, gpu="H200")
    refused, answered = map(json.loads, out.getvalue().splitlines())
    assert refused["error"]["field"] == "nodes"
    assert answered["latency_us"] > 0


@given(st.sampled_from(OPS), st.integers(1, 1 << 33), WORLDS, GPUS)
def test_more_bytes_never_ask_less_and_a_faster_link_never_raises_the_floor(
    op: str, size: int, world: int, gpu: str
) -> None:
    analyse, card = family_of(op).analyse, find(gpu)
    once, twice = (analyse(_columns(n * size, world), Context(card, impl="nccl")) for n in (1, 2))
    assert (twice.demand.amounts >= once.demand.amounts).all()
    assert once.base_s[0] <= twice.base_s[0] <= 2 * once.base_s[0]
    faster = analyse(_columns(size, world), Context(card.what_if(link_gbps=2 * card.link_gbps), impl="nccl")).demand
    assert floor_s(faster.seconds(card, "bf16")) <= floor_s(once.demand.seconds(card, "bf16"))


def test_nodes_must_divide_the_world() -> None:
    with pytest.raises(BadInput, match="nodes"):
        pw.all_reduce(1024, 8, nodes=3)


def test_no_measured_collective_is_below_its_floor(corpus: object) -> None:
    pandas = pytest.importorskip("pandas")
    raw = pandas.read_parquet(f"{corpus}/aiconfigurator/h200_sxm/comm/nccl/2.29.2/nccl_perf.parquet")
    rows = raw[(raw["op_name"] == "all_reduce") & (raw["nccl_dtype"] == "half")]
    cols = {"bytes": 2.0 * rows["message_size"], "world": 1.0 * rows["num_gpus"], "nodes": 0.0 * rows["num_gpus"] + 1}
    cols = {name: values.to_numpy(np.float64) for name, values in cols.items()}
    found = family_of("all_reduce").analyse(cols, Context(find("H200"), "fp16", "graph", "nccl-2.29.2", "nccl"))
    assert (rows["latency"].to_numpy() * 1e-3 >= floor_s(found.demand.seconds(find("H200"), "fp16"))).all()


def test_a_rack_of_nvlink_is_one_island() -> None:
    """GB200: hosts of four cards, 72 of them behind one NVLink switch; beyond it, and between other hosts, the network."""
    within, beyond = (pw.predict(pw.all_reduce(1 << 26, world, nodes=world // 4), "GB200") for world in (8, 144))
    alone = pw.predict(pw.all_reduce(1 << 26, 8), "GB200")
    assert within.latency_us == alone.latency_us
    assert beyond.latency_us > 2 * within.latency_us
    assert pw.predict(pw.all_reduce(1 << 26, 8, nodes=2), "B200").latency_us > 2 * within.latency_us


@pytest.mark.parametrize("gpu", ["L40S", "RTX 6000 Ada", "RTX PRO 6000 Server"])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_neighbours_over_pcie_send_as_fast_as_an_all_reduce_of_the_same_traffic(gpu: str, world: int) -> None:
    """All-reduces over PCIe were measured, sends were not."""
    size = 10**8
    reduce = pw.predict(pw.all_reduce(size * world // (2 * (world - 1)), world), gpu).latency_us
    assert pw.predict(pw.send_recv(size, world=world), gpu).latency_us == pytest.approx(reduce, rel=0.6)


def test_more_neighbours_on_a_switch_send_no_slower() -> None:
    four, eight = (pw.predict(pw.send_recv(10**8, world=world), "H200").latency_us for world in (4, 8))
    assert eight == four


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_twice_the_hosts_of_eight_cost_no_more_than_the_ring_says(op: str, hosts: int) -> None:
    """A large message passes the same links once or twice, however many hosts share the ring."""
    few, many = (getattr(pw, op)(1 << 30, 8 * nodes, nodes=nodes) for nodes in (hosts, 2 * hosts))
    grown = pw.predict(many, "H100").latency_us / pw.predict(few, "H100").latency_us
    assert 0.9 < grown < 1.5


@pytest.mark.parametrize("megabytes", [4, 64, 256])
def test_a_pair_of_a40_sends_far_below_its_link_and_other_pairs_do_not(megabytes: int) -> None:
    """GB/s; the A40's are those of Vidur's rows. The PCIe of all three carries 32."""
    size = megabytes << 20
    rates = [size / pw.predict(pw.send_recv(size, 2), gpu, protocol="profiler_warm").latency_us * 1e-3
             for gpu in ("A40", "A100 PCIe", "L40S")]  # fmt: skip
    assert rates[0] < 32.0 / 4 < 32.0 / 2 < min(rates[1:])
