"""Pools of a disaggregated deployment whose launch was published: `pipewave.published.public_launches` finds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipewave.errors import CannotShard, DoesNotFit
from pipewave.gpus import find as find_gpu
from pipewave.kernels.collective.fabric import joined
from pipewave.models import ModelSpec, load
from pipewave.models.attention_spec import Mixer, Mla
from pipewave.models.expert_parallel import Balance
from pipewave.models.kernels import Deployment
from pipewave.models.precision import NVFP4
from pipewave.models.shard import ALONE
from pipewave.models.spec import Layer
from pipewave.published.public_launches import Engines, Launch, Wanted, handoff_delay_share, handover_ms, near, send_ms
from pipewave.simulate.disaggregated import Disaggregated, routed
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of as speculative_of
from pipewave.simulate.traffic import Traffic
from pipewave.step import find_engine
from pipewave.step.setting import setting_of

# What launches of whole engines set, and those of pools do not: tokens held back, prompts that wait for company.
BARE: dict[str, Any] = {"stream_interval": 1, "recv_interval": 1, "patience": 0, "wait_steps": 0}
TRIED = 8  # launches, from the nearest on, until one holds the model


def launched(
    model: str, gpu: str, setup: Setup, version: str, gpus_given: int, traffic: Traffic
) -> tuple[Disaggregated, str] | None:
    """The pools of the nearest published launch for some traffic, and a note on them; None where none is near or
    can hold the model.

    version: as the deployment names it; gpus_given: GPUs that a table gives for the deployment. A pool's share of
    memory is the launch's: a deployment's one share cannot say which pool it is of.
    """
    spec = load(model)
    lengths = float(traffic.input_len.mean()), float(traffic.output_len.mean())
    flight = traffic.concurrency or len(traffic)
    facts = setting_of(Deployment(spec, ALONE), find_gpu(gpu))
    engine = find_engine(setup.engine).name
    drafts = setup.speculative is not None
    setup = routed(setup)
    wanted = Wanted(facts, experts_of(spec), engine, version, lengths, flight, gpus_given, drafts)
    for launch in near(wanted)[:TRIED]:
        try:
            served = _weights(spec, launch, facts.dtype)
            first = Server.of(served, gpu, _prefill(setup, launch, spec), traffic.longest)
            then = Server.of(served, gpu, _decode(setup, launch, spec, flight), traffic.longest)
        except (DoesNotFit, CannotShard):
            continue  # a launch of a smaller model, or one that is cut otherwise
        maps = ", attention's output maps in NVFP4" if served is not spec else ""
        return _pools(launch, gpu, engine, first, then), _note(launch) + maps
    return None


def _pools(launch: Launch, gpu: str, engine: str, first: Server, then: Server) -> Disaggregated:
    """Prefill and decode engines as a launch joins them."""
    fabric = _fabric(launch, gpu)
    return Disaggregated(
        first,
        then,
        (launch.prefill.workers, launch.decode.workers),
        fabric=fabric,
        handover_s=1e-3 * handover_ms(engine),
        send_s=1e-3 * send_ms(engine, *fabric),
        handoff_delay_share=handoff_delay_share(engine, first.setup.exchange or ""),
    )


def _fabric(launch: Launch, gpu: str) -> tuple[str, str]:
    """The fabric that caches cross, and the ranks that send them."""
    fabric = "nvlink" if launch.gpus <= joined(find_gpu(gpu)) else "network"
    return fabric, "data_parallel" if launch.prefill.data_parallel else "tensor"


def experts_of(model: ModelSpec) -> int:
    """Routed experts of a layer; 0 of a dense model."""
    return max((moe.experts for layer, _ in model.grouped() for moe in layer.moes), default=0)


def _weights(model: ModelSpec, launch: Launch, dtype: str) -> ModelSpec:
    """The model as the launch's checkpoint holds it: attention's output maps in the experts' type, where the launch
    says so and the model's are in 16 bits. dtype: of the model's experts."""
    if launch.of.get("output_maps") != dtype or dtype != NVFP4.dtype or launch.of["model_type"] != model.model_type:
        return model
    known = {id(layer): _narrowed(layer) for layer in model.layers}  # equal layers stay one object
    return replace(model, layers=tuple(known[id(layer)] for layer in model.layers))


def _narrowed(layer: Layer) -> Layer:
    return replace(layer, mixers=tuple(map(_output_narrowed, layer.mixers)))


def _output_narrowed(mixer: Mixer) -> Mixer:
    if not isinstance(mixer, Mla) or not mixer.out.precision.full:
        return mixer
    return replace(mixer, out=replace(mixer.out, precision=NVFP4))


def _prefill(setup: Setup, launch: Launch, model: ModelSpec) -> Setup:
    """Prefill engines run step after step, without overlap (disable_overlap_scheduler of the launches)."""
    return replace(
        _cut(setup, launch, launch.prefill, model, launch.of.get("prompt_exchange") or launch.of.get("exchange")),
        max_num_seqs=None,
        max_num_batched_tokens=launch.prompt_tokens,
        speculative=None,
        overlaps=False,
    )


def _decode(setup: Setup, launch: Launch, model: ModelSpec, flight: int) -> Setup:
    drafting = setup.speculative
    if launch.drafts and drafting is None:
        drafting = speculative_of({"method": "mtp", "tokens": launch.drafts})
    graphs = launch.of.get("only_graph", setup.graph_limit)
    own = find_engine(setup.engine).scheduler.max_requests if drafting else None
    most = min(filter(None, (setup.max_num_seqs, launch.requests(flight))), default=own)
    return replace(
        _cut(setup, launch, launch.decode, model, launch.of.get("exchange")),
        max_num_seqs=most,
        max_num_batched_tokens=None,
        speculative=drafting,
        graph_limit=graphs if launch.decode.data_parallel else setup.graph_limit,
        graph_step=graphs if launch.decode.data_parallel else None,
    )


def _cut(setup: Setup, launch: Launch, engines: Engines, model: ModelSpec, exchange: str | None) -> Setup:
    """One engine of a pool. Expert parts that do not divide the experts hold copies of some."""
    tp, ep, dp = engines.degrees
    missing = -experts_of(model) % ep
    return replace(
        setup,
        **BARE,
        tp=tp,
        ep=ep,
        dp=dp,
        replicas=1,
        balance=Balance(missing, "even") if missing else setup.balance,
        kv_dtype=launch.of.get("kv_dtype") or setup.kv_dtype,
        gpu_memory_utilization=launch.of.get("memory_fraction") or setup.gpu_memory_utilization,
        message_tokens=launch.of["stream_interval"],
        exchange=exchange if dp > 1 else None,
        gemm_backend=None if dp > 1 and exchange in launch.of.get("plain", ()) else setup.gemm_backend,
    )


def _note(launch: Launch) -> str:
    drafts = f", {launch.drafts} tokens drafted" if launch.drafts else ""
    rank = f", {launch.batch} requests a rank" if launch.batch else ""
    return (
        f"disaggregated, pools not given: as launched in public for {launch.of['model']} on {launch.of['gpu']} at "
        f"{_shown(launch.flights)} requests in flight: prefill {launch.prefill}, decode {launch.decode}{rank}{drafts}"
    )


def _shown(flights: tuple[int, ...]) -> str:
    return str(flights[0]) if len(flights) == 1 else f"{min(flights)} to {max(flights)}"
