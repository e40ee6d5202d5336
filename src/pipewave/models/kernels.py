"""Kernel calls that one rank of a pipeline stage launches for a batch, in order; nothing is predicted here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipewave.calls.families import Attention, Call, FusedMoe, Gemm, SiluAndMul, all_gather, send_recv
from pipewave.calls.operators import HyperConnection
from pipewave.errors import BadInput
from pipewave.models.attention_kernels import steps
from pipewave.models.expert_parallel import exchange, fullest
from pipewave.models.lora_and_drafts import Lora, lora_kernels
from pipewave.models.samplers import sampler
from pipewave.models.shard import padded_vocab
from pipewave.models.spec import Bypass, Ffn, Layer, Mlp, Moe
from pipewave.models.stage import ACT, Batch, Layout, Stage, Use
from pipewave.models.vision import Tower

__all__ = ["ACT", "Batch", "Deployment", "Use", "merge"]


@dataclass(frozen=True, slots=True)
class Deployment(Layout):
    """A layout that lists the kernels it runs for a batch, those of its adapters included."""

    lora: Lora | None = None

    def kernels(self, batch: Batch, stage: int = 0) -> list[Use]:
        """Every kernel one rank of pipeline stage `stage` launches for a batch, in order, equal layers counted once."""
        return merge([*self._walk(batch, stage, lengthy=True), *self._exit(batch, stage)])

    def by_rows(self, batch: Batch, stage: int = 0) -> list[Use]:
        """The kernels that depend on the batch's row count only."""
        return merge(self._walk(batch, stage, lengthy=False))

    def by_requests(self, batch: Batch, stage: int = 0) -> list[Use]:
        """The kernels after the last layer: the head, which sees one row a request, or the next stage's input."""
        return merge(self._exit(batch, stage))

    def by_length(self, batch: Batch, stage: int = 0) -> list[Use]:
        """The kernels that depend on each request's lengths; the three parts together are all of `kernels`."""
        view = Stage(self, batch)
        return merge(
            use.times(count)
            for layer, count in self._grouped(stage)
            for mixer in layer.mixers
            for use in steps(mixer)[1](view, mixer)
        )

    def images(self, count: int) -> list[Use]:
        """Kernels that turn `count` images, each of the tower's own size, into tokens. Raises BadInput without one."""
        return merge(tower_kernels(Stage(self, Batch.of([1], [1])), count))

    def _grouped(self, stage: int) -> Sequence[tuple[Layer, int]]:
        return self.model.grouped(*self.parallel.stages(len(self.model.layers))[stage])

    def _walk(self, batch: Batch, stage: int, *, lengthy: bool) -> Iterator[Use]:
        view = Stage(self, batch)
        if stage == 0:
            yield from _embedding(view)
        for layer, count in self._grouped(stage):
            added = lora_kernels(view, layer, self.lora) if self.lora else ()
            for use in (*_layer(view, layer, lengthy=lengthy), *added):
                yield use.times(count)

    def _exit(self, batch: Batch, stage: int) -> Iterator[Use]:
        view = Stage(self, batch)
        yield from _head(view) if stage == self.parallel.pp - 1 else _handover(view, stage)


def _embedding(stage: Stage) -> Iterator[Use]:
    model = stage.model
    size = stage.rows * model.hidden * ACT
    tables = 2 if model.learned_positions else 1
    yield stage.streaming("embedding", 8 * stage.rows, size, tables * size)
    yield from stage.reduce("embedding_all_reduce")
    for _, width in model.tables:
        size = stage.rows * width * ACT
        yield stage.streaming("per_layer_embedding", 8 * stage.rows, size, size)
    for matrix in model.front:
        yield stage.linear(matrix)


def _layer(stage: Stage, layer: Layer, *, lengthy: bool) -> Iterator[Use]:
    """One layer: a block that mixes tokens and one that feeds forward; parts of a block run side by side."""
    if layer.mixers:
        asked = slice(None) if lengthy else slice(None, None, 2)  # what is before and after that by lengths
        mixing = (use for mixer in layer.mixers for some in list(steps(mixer))[asked] for use in some(stage, mixer))
        yield from _block(stage, "attention", "input_norm", mixing)
    if layer.ffns:
        feeding = (use for part in layer.ffns for use in _FFNS[type(part)](stage, part))
        shares_norm = stage.model.norms == "parallel" and layer.mixers
        summed = stage.parallel.dp > 1 and layer.moes  # by the exchange between data-parallel ranks
        yield from _block(stage, "ffn", "" if shares_norm else "ffn_norm", feeding, reduced=not summed)
    for _ in range(layer.extra_norms):
        yield stage.norm("more_norm", stage.model.hidden)


def _block(stage: Stage, name: str, norm: str, kernels: Iterator[Use], *, reduced: bool = True) -> Iterator[Use]:
    """The kernels of a block between its norms, and the collective that its parts share."""
    norms, hidden = stage.model.norms, stage.model.hidden
    yield from _streams(stage, "pre")
    if norm and norms in ("pre", "sandwich", "parallel"):
        yield stage.norm(norm, hidden, fused_add=True)
    yield from kernels
    yield from stage.reduce(f"{name}_all_reduce") if reduced else ()
    yield from _streams(stage, "post")
    if norms in ("post", "sandwich"):
        yield stage.norm(f"post_{name}_norm", hidden, fused_add=norms == "post")


def _streams(stage: Stage, part: str) -> Iterator[Use]:
    """Residual streams mixed into one before a block (`pre`), and spread again after it (`post`)."""
    if hyper := stage.model.hyper:
        call = HyperConnection(
            stage.rows, hyper.hidden, mult=hyper.streams, part=part, sinkhorn_iters=hyper.sinkhorn, dtype=stage.dtype
        )
        yield Use(f"hyper_{part}", call)
        for each in hyper.maps if part == "pre" else ():
            yield stage.linear(each)


def _head(stage: Stage) -> Iterator[Use]:
    model, count, vocab = stage.model, stage.batch.sampled, padded_vocab(stage.model)
    if model.final_norm:
        yield stage.norm("final_norm", model.hidden, fused_add=True)
    size = count * model.hidden * ACT
    yield stage.streaming("last_rows", size, size)
    if model.pooled:
        return
    yield stage.linear(replace(model.lm_head, out=vocab), count)
    logits = count * vocab * ACT
    if stage.tp > 1:
        yield Use("logits_all_gather", all_gather(logits, stage.tp, nodes=stage.layout.nodes, dtype=stage.dtype))
    if model.logit_softcap:
        yield stage.streaming("softcap", logits, logits)
    yield stage.streaming("logits_to_float", logits, 2 * logits)
    if stage.choice.sampler:
        yield from sampler(stage.choice.sampler).drawn(count, vocab)
    yield stage.streaming("sample", 2 * logits, 8 * count)


def _handover(stage: Stage, number: int) -> Iterator[Use]:
    """Hidden states and residual to the next stage: each tensor rank sends its slice, the receivers gather it."""
    ranks = stage.parallel.group
    apart = number * ranks // stage.layout.host_gpus < ((number + 2) * ranks - 1) // stage.layout.host_gpus
    streams = stage.model.hyper.streams if stage.model.hyper else 2
    size = streams * stage.rows * stage.model.hidden * ACT
    yield Use("stage_send_recv", send_recv(max(size // stage.tp, 1), 2, nodes=1 + apart, dtype=stage.dtype))
    if stage.tp > 1:
        yield Use("stage_all_gather", all_gather(size, stage.tp, nodes=stage.layout.nodes, dtype=stage.dtype))


def merge(uses: Iterable[Use]) -> list[Use]:
    """Equal kernels of the same name counted together, in order of first appearance."""
    counts: dict[tuple[str, Call], list[int]] = {}
    for use in uses:
        counts.setdefault((use.name, use.call), []).append(use.count)
    return [Use(name, call, sum(each)) for (name, call), each in counts.items()]


def _mlp(stage: Stage, spec: Mlp) -> Iterator[Use]:
    yield stage.linear(spec.up)
    inter = spec.inter // stage.tp
    if spec.gated:
        call = SiluAndMul(stage.rows, inter, dtype=stage.dtype, impl=stage.impl)
        yield Use(spec.up.name.replace("gate_up_proj", "silu_and_mul"), call)
    else:
        size = stage.rows * inter * ACT
        yield stage.streaming("activation", size, size)
    yield stage.linear(spec.down)


def _bypass(stage: Stage, spec: Bypass) -> Iterator[Use]:
    for matrix in spec.maps:
        yield stage.linear(matrix)
    if len(spec.maps) > 1:
        size = stage.rows * spec.maps[0].out * ACT
        yield stage.streaming("activation", 2 * size, size)


def _moe(stage: Stage, spec: Moe) -> Iterator[Use]:
    yield stage.linear(spec.router)
    yield stage.streaming("topk", stage.rows * spec.router.out * ACT, stage.rows * spec.topk * 8, rounds=spec.topk)
    if spec.into:
        yield stage.linear(spec.into)
    yield from exchange(stage, spec, "dispatch")
    call = FusedMoe(
        fullest(stage, spec), spec.experts, spec.topk, spec.hidden, spec.inter, gated=spec.gated,
        tp=stage.parallel.moe_tp, ep=stage.parallel.ep, dtype=spec.precision.dtype,
    )  # fmt: skip
    yield Use("fused_moe", call)
    yield from exchange(stage, spec, "combine")
    if spec.back:
        yield stage.linear(spec.back)
    if spec.shared:
        yield from _mlp(stage, spec.shared)
        hidden = stage.rows * stage.model.hidden * ACT
        if spec.shared_gate:
            yield stage.linear(spec.shared_gate)
        yield stage.streaming("shared_add", 2 * hidden, hidden)


# The kernels of one part, the collective apart.
_FFNS: dict[type[Ffn], Callable[[Stage, Any], Iterator[Use]]] = {Moe: _moe, Mlp: _mlp, Bypass: _bypass}


def tower_kernels(stage: Stage, images: int) -> Iterator[Use]:
    """All kernels for `images` images; layers are cut over the tensor group where its heads and widths divide."""
    tower = stage.model.tower
    if tower is None:
        raise BadInput(f"images = {images}: {stage.model.name} has no vision tower", field="images")
    tp = stage.tp if tower.heads % stage.tp == 0 and tower.inter % stage.tp == 0 else 1
    rows, hidden = images * tower.patches, stage.model.hidden
    yield _tower_product(stage, "patch_embedding", rows, tower.hidden, 3 * tower.patch**2)
    for use in _tower_layer(stage, tower, images, tp):
        yield use.times(tower.layers)
    tokens, merged = images * tower.tokens, tower.hidden * tower.merge**2
    yield stage.norm("tower_norm", tower.hidden, rows)
    yield _tower_product(stage, "merger_in", tokens, merged, merged)
    yield _tower_product(stage, "merger_out", tokens, hidden, merged)


def _tower_product(stage: Stage, name: str, rows: int, out: int, inp: int) -> Use:
    return Use(name, Gemm(rows, max(out, 1), max(inp, 1), dtype=stage.dtype))


def _tower_layer(stage: Stage, tower: Tower, images: int, tp: int) -> Iterator[Use]:
    """One block: attention within each image, then a plain or gated feed-forward block."""
    rows, width, heads = images * tower.patches, tower.hidden, tower.heads // tp
    inter, size = tower.inter // tp, rows * tower.hidden * ACT
    yield stage.norm("tower_norm", width, rows)
    yield _tower_product(stage, "tower_qkv", rows, 3 * width // tp, width)
    yield stage.streaming("tower_rope", 2 * size / tp, 2 * size / tp)
    lens = (tower.patches,) * images
    yield Use(
        "tower_attention", Attention(lens, lens, heads, heads, width // tower.heads, causal=False, dtype=stage.dtype)
    )
    yield _tower_product(stage, "tower_out", rows, width, width // tp)
    yield from stage.reduce("tower_all_reduce", size) if tp > 1 else ()
    yield stage.norm("tower_norm", width, rows, fused_add=True)
    yield _tower_product(stage, "tower_up", rows, inter * (2 if tower.gated else 1), width)
    if tower.gated:
        yield Use("tower_activation", SiluAndMul(rows, inter, dtype=stage.dtype))
    else:
        yield stage.streaming("tower_activation", rows * inter * ACT, rows * inter * ACT)
    yield _tower_product(stage, "tower_down", rows, width, inter)
    yield from stage.reduce("tower_all_reduce", size) if tp > 1 else ()
