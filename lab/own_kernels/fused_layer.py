"""A fused MoE layer: SiLU-gated experts of bf16 or fp16 weights, as its four or two kernels.

    out = fused_moe(x, w13, w2, weights, chosen)

A few tokens stream the weights of their experts; more are sorted by expert and multiplied on the tensor cores
(`moe_sort`, `moe_experts`), with tiles by the tokens of an expert. `docs/moe-loop.md` compares it with vLLM's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from lab.own_kernels.kernels import moe_experts, moe_sort
from pipewave.errors import BadInput

REREAD = 32e6  # bytes of weights that few tokens may read again before sorting, two launches more, is quicker
FEW_UP = {"BLOCK_N": 4, "BLOCK_K": 512, "num_warps": 1}
FEW_DOWN = {"BLOCK_N": 4, "BLOCK_K": 256, "num_warps": 1}
FEW_DOWN_LONG = {"BLOCK_N": 2, "BLOCK_K": 1024, "num_warps": 1}  # for rows of weights of LONG and more
LONG = 2048
Config = dict[str, int]
_UP = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "SWAP", "GROUP_M", "LOOP")
_DOWN = (*_UP[:6], "ADD", "LOOP", "GROUP_M")
TILES = {  # of both products, by rows of a tile
    16: ((16, 64, 128, 4, 5, 1, 8, 0), (16, 128, 128, 4, 3, 0, 0, 0, 8)),
    64: ((64, 128, 64, 4, 5, 0, 8, 0), (64, 128, 64, 4, 3, 0, 0, 0, 8)),
    128: ((128, 128, 64, 8, 4, 0, 8, 0), (128, 128, 64, 4, 3, 0, 0, 0, 8)),
}


def is_few(tokens: int, experts: int, top_k: int, hidden: int, inter: int) -> bool:
    """Whether the path for few tokens is the quicker one: what it reads more than once is little."""
    hit = experts * (1.0 - (1.0 - top_k / experts) ** tokens)
    return (tokens * top_k - hit) * 6 * hidden * inter <= REREAD


def fused_moe(
    x: Any, w13: Any, w2: Any, weights: Any, chosen: Any, configs: tuple[Config, Config] | None = None
) -> Any:
    """Σ_j weights[t, j] · w2[e] · (SiLU(gate) · up) with (gate, up) = w13[e] · x[t] and e = chosen[t, j].

    Args:
        x: [tokens, hidden]. w13: [experts, 2 · inter, hidden], gate above up. w2: [experts, hidden, inter]; all
            contiguous, of one 16-bit type, with sizes that are multiples of 8 (bulk copies move 16 bytes).
        weights: [tokens, top_k] float32. chosen: [tokens, top_k] int32, below `experts`.
        configs: of the two products, always sorted then; default: by the tokens of an expert.

    Returns [tokens, hidden] like x.

    Raises:
        BadInput: shapes or types that do not fit each other.
    """
    _check(x, w13, w2, weights, chosen)
    (tokens, hidden), (experts, _, inter), top_k = x.shape, w2.shape, chosen.shape[1]
    y = x.new_empty(chosen.numel(), inter)
    if configs is None and is_few(tokens, experts, top_k, hidden, inter):
        moe_experts.launch_few_up(x, w13, y, chosen, FEW_UP)
        down = FEW_DOWN_LONG if inter >= LONG else FEW_DOWN
        return moe_experts.launch_few_down(y, w2, x.new_empty(x.shape), weights, chosen, down)
    up, down = configs or tiles(tokens * top_k / experts)
    order = moe_sort.sort(chosen, experts, up["BLOCK_M"], down["BLOCK_M"])
    sms = multiprocessors(x.device)
    moe_experts.launch_up(x, w13, y, order, top_k, up, sms)
    adds = bool(down["ADD"])
    out = (x.new_zeros if adds else x.new_empty)(x.shape)
    # One expert a token: its row is the sum.
    part = out if adds or top_k == 1 else x.new_empty(chosen.numel(), hidden)
    moe_experts.launch_down(y, w2, part, weights, order, top_k, down, sms)
    return out if part is out else moe_experts.launch_total(part, out, top_k)


def tiles(rows: float) -> tuple[Config, Config]:
    """Configurations of both products for experts that get so many rows each."""
    up, down = TILES[next((size for size in (16, 64) if rows <= size), 128)]
    return dict(zip(_UP, up, strict=True)), dict(zip(_DOWN, down, strict=True))


@cache
def multiprocessors(device: Any) -> int:
    """Multiprocessors of a torch device; 1 of a CPU."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _check(x: Any, w13: Any, w2: Any, weights: Any, chosen: Any) -> None:
    (tokens, hidden), (experts, _, inter) = x.shape, w2.shape
    wanted = {"w13": (w13, (experts, 2 * inter, hidden)), "w2": (w2, (experts, hidden, inter)),
              "weights": (weights, tuple(chosen.shape)), "chosen": (chosen, (tokens, chosen.shape[-1]))}  # fmt: skip
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != shape or not tensor.is_contiguous():
            raise BadInput(f"{name} is {tuple(tensor.shape)}, not contiguous {shape}", field=name)
    if hidden % 8 or inter % 8:
        raise BadInput(
            f"hidden, inter = {hidden}, {inter}: must be multiples of 8, bulk copies move 16 bytes", field="x"
        )
    if not x.is_contiguous() or not x.dtype == w13.dtype == w2.dtype or x.element_size() != 2:
        raise BadInput("x, w13 and w2 must be contiguous and of one 16-bit type", field="x")
    if chosen.element_size() != 4 or weights.element_size() != 4:
        raise BadInput("weights must be float32 and chosen int32", field="chosen")
