"""Collectives: ring traffic against a simulated ring, regimes, link types, the default implementation, laws, rows."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.errors import BadFile, BadInput
from pipewave.gpus import find
from pipewave.kernels.base import Context, family_of
from pipewave.kernels.collective.algorithms import ALGORITHMS, chosen, nccl, own, reachable, ring
from pipewave.kernels.collective.fabric import bridged, link
from pipewave.kernels.collective.family import NETWORK, regime
from pipewave.nets.nets import trained
from pipewave.physics.demand import floor_s
from pipewave.prediction.jsonl import answer_stream

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


def _ways(gpu: str, stack: str, world: int, *sizes: float, protocol: str = "graph") -> list[str]:
    """The ways in which a stack's kernels sum messages of these sizes."""
    ctx, size = Context(find(gpu), "bf16", protocol, stack, "custom"), np.array(sizes)
    ranks = np.full(len(size), float(world))
    found = own(ctx, size, ranks, link(ctx.gpu, ranks, np.ones(len(size)))).algorithm
    return ["" if place < 0 else ALGORITHMS[place] for place in found]


MIB = 1 << 20


def test_vllm_reads_whole_buffers_of_two_ranks_and_of_small_messages() -> None:
    sizes = (1e3, 3e5, 6e5)
    assert _ways("A100", "vllm-0.14.0", 2, *sizes) == ["one_shot"] * 3
    assert _ways("A100", "vllm-0.14.0", 4, *sizes) == ["one_shot", "one_shot", "two_shot"]
    assert _ways("A100", "vllm-0.14.0", 8, *sizes) == ["one_shot", "two_shot", "two_shot"]


def test_frameworks_hand_messages_over_where_their_sources_say() -> None:
    assert _ways("H200", "vllm-0.14.0", 8, 8 * MIB - 16, 8 * MIB) == ["two_shot", ""]
    assert _ways("H200", "sglang-0.5.10", 8, 8 * MIB, 8 * MIB + 16) == ["two_shot", ""]
    assert _ways("H100", "vllm-0.19.0", 8, MIB // 4 - 16, MIB // 4, 64 * MIB) == ["one_shot", "switched", ""]
    assert _ways("H100", "vllm-0.24.0", 8, 64 * MIB, 64 * MIB + 4) == ["switched", ""]
    assert _ways("B200", "vllm-0.24.0", 2, MIB, 2 * MIB, 16 * MIB) == ["one_shot", "symmetric", ""]
    assert _ways("B300", "vllm-0.24.0", 2, 2 * MIB, 4 * MIB) == ["one_shot", ""]
    assert _ways("B200", "sglang-0.5.14", 4, 2 * MIB, 4 * MIB, 32 * MIB) == ["pushed", "two_shot", ""]
    assert _ways("H100", "trtllm-1.3.0rc20", 4, MIB, 4 * MIB, 8 * MIB) == ["pushed", "two_shot", ""]
    assert _ways("L40S", "trtllm-1.0.0", 2, 1e4) == [""]
    assert _ways("H200", "vllm-0.22.1", 2, 32 * MIB, protocol="cold") == ["one_shot"]


def _chosen(gpu: str, world: int, size: float, *, in_switch: bool = True) -> str:
    ranks, card = world * ONE, find(gpu)
    found = chosen(card, size * ONE, ranks, ONE, link(card, ranks, ONE), in_switch=in_switch)
    return next((name for name in ("ll128", "simple", "switched") if getattr(found, name)[0]), "ll")


@pytest.mark.parametrize(("gpu", "turn"), [("A100", MIB), ("H100", 2 * MIB), ("H200", 2 * MIB), ("B200", 4 * MIB)])
def test_nccl_turns_to_simple_where_measured_times_of_two_cards_jump(gpu: str, turn: int) -> None:
    """Rows of nccl-tests: 19 to 41 us, 14 to 28, 14 to 27 and 19 to 37 from one power of two to the next."""
    assert (_chosen(gpu, 2, turn // 2), _chosen(gpu, 2, turn)) == ("ll", "simple")


def test_the_switch_sums_large_messages_of_types_that_it_can_add() -> None:
    assert [_chosen("B200", 8, size) for size in (2 * MIB, 4 * MIB)] == ["ll", "switched"]
    assert _chosen("B200", 8, 64 * MIB, in_switch=False) != "switched"
    assert _chosen("A100", 8, 64 * MIB) == _chosen("L40S", 4, 64 * MIB) == "simple"


def test_kernels_of_frameworks_run_over_nvlink_or_in_pairs() -> None:
    def runs(gpu: str, world: float, nodes: float = 1.0) -> bool:
        return bool(reachable(world * ONE, nodes * ONE, link(find(gpu), world * ONE, nodes * ONE))[0])

    assert runs("H200", 8) and runs("L40S", 2)
    assert not (runs("L40S", 4) or runs("H200", 3) or runs("H200", 8, 2))


@pytest.mark.parametrize("stack", ["vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20"])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_custom_kernel_beats_nccl_on_decode_messages(world: int, stack: str) -> None:
    over, size, ranks = link(find("H200"), world * ONE, ONE), 65536 * ONE, world * ONE
    ours = own(Context(find("H200"), "bf16", "graph", stack, "custom"), size, ranks, over)
    assert 0.0 < ours.seconds < nccl(ring("all_reduce", size, ranks), over).best


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


@pytest.mark.parametrize(("gpu", "off"), [("L40S", 0.25), ("RTX 6000 Ada", 0.2), ("RTX PRO 6000 Server", 0.5)])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_neighbours_over_pcie_send_as_fast_as_an_all_reduce_of_the_same_traffic(
    gpu: str, off: float, world: int
) -> None:
    """All-reduces over PCIe were measured, sends were not."""
    size = 10**8
    reduce = pw.predict(pw.all_reduce(size * world // (2 * (world - 1)), world), gpu).latency_us
    assert pw.predict(pw.send_recv(size, world=world), gpu).latency_us == pytest.approx(reduce, rel=off)


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


def test_an_all_reduce_that_a_rule_names_and_no_formula_knows_is_refused() -> None:
    ctx = SimpleNamespace(
        gpu=find("H200"),
        rule=lambda name, **_: {"8": (("an_unknown_one", 1e9),)} if name.endswith("algorithms") else 0.0,
    )
    over = link(find("H200"), 8 * ONE, ONE)
    with pytest.raises(BadFile, match="an_unknown_one"):
        own(ctx, 1e6 * ONE, 8 * ONE, over)  # type: ignore[arg-type]
