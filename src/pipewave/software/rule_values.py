"""What rules of software answer with: the type of each rule's value, its parts and units.

`VALUES` declares the rules of `stack_rules.json` that say no plain `type` there; a value that is not of its type is
refused when the file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Version = tuple[int, ...]


class BlockCycles(NamedTuple):
    """SM cycles of a thread block: fixed, and for each element of an attention head."""

    fixed: float
    per_head_element: float

    def of(self, dim: float) -> float:
        """Cycles for heads of so many elements."""
        return self.fixed + self.per_head_element * dim


class SizeLimit(NamedTuple):
    """An all-reduce algorithm and the bytes of a message that it ends below."""

    algorithm: str
    below_bytes: float


@dataclass(frozen=True, slots=True)
class UnfusedQuantize:
    """Quantisation besides the library's kernel."""

    kernels: float = 0.0
    cycles_per_element: float = 0.0  # of an SM, while L2 holds the operand
    bytes_per_element: float = 0.0  # beyond L2


@dataclass(frozen=True, slots=True)
class AttentionCosts:
    """Costs of an attention library over those at the part's peak."""

    tensor_factor: float  # of products
    exp_factor: float  # of exponentials that products do not hide
    prefill_cycles: BlockCycles  # of a block besides its steps
    decode_cycles: BlockCycles
    bytes_per_clk: float  # fastest stream of keys and values that an SM draws


@dataclass(frozen=True, slots=True)
class PrefillCycles:
    """SM cycles of prompts where no row taught the nets."""

    borrowed_from: Mapping[str, str]  # from an architecture to the one these were measured on
    step_cycles: BlockCycles  # of a KV tile of a block
    window_factor: float  # the same under a window, over that
    wave_cycles: BlockCycles  # of a wave of blocks besides


@dataclass(frozen=True, slots=True)
class DecodeCycles:
    """SM cycles of decode where no row taught the nets."""

    tile_cycles: BlockCycles  # a block's wait for 16 keys
    blocks_per_sm: float
    merge_dram_share: float  # of DRAM's rate at which parts are summed up


@dataclass(frozen=True, slots=True)
class Companions:
    """Kernels that a measured attention operator holds besides attention."""

    launches: float  # of the whole operator
    queries: float  # how often the others move queries
    keys: float  # and new keys and values

    def bytes(self, query_bytes: Any, key_bytes: Any) -> Any:
        """Bytes moved besides attention itself."""
        return self.queries * query_bytes + self.keys * key_bytes


@dataclass(frozen=True, slots=True)
class MoeCosts:
    """Factors on the ideal times of an expert layer's parts."""

    launch: float
    tiles: float
    weights: float
    activate: float
    reduce: float


@dataclass(frozen=True, slots=True)
class ScalarNorm:
    """SM cycles of a loop over a block's threads where each loads one element."""

    l2_cycles: float  # waiting for L2
    dram_cycles: float  # besides, where that misses
    issue_cycles: float  # beside every other block of the SM


@dataclass(frozen=True, slots=True)
class IndexPoolCopy:
    """What an engine copies of its page pool before a kernel that wants the indexer's keys in one piece."""

    pages_per_used: float = 0.0  # 0: nothing is copied
    spare_pages: float = 0.0  # of a request


@dataclass(frozen=True, slots=True)
class SparseTiles:
    """How a kernel of sparse latent attention goes through a query's chosen keys (numbers, or arrays over calls)."""

    heads: Any  # that a tile computes at least
    empty_share: Any = 0.0  # cost of a place without a key over one with a key
    slowdown: Any = 1.0  # over the usual rate of products
    sms: Any = 1.0  # that share a tile
    widen_clk: Any = 0.0  # of an SM, for widening an element of the cache
    empty_read_share: Any = 0.0  # places without a key that are read all the same


@dataclass(frozen=True, slots=True)
class BlockMajor:
    """Sparse attention that goes through blocks of keys and the queries that chose each, instead of through queries."""

    tile_rows: float = 0.0  # heads times queries of a tile, which share one read of a block (0: no such kernel)
    launches: float = 0.0  # kernels that invert the choice, plan and merge
    partials: bool = False  # every chosen block leaves a 16-bit partial output


def record(**fields: Any) -> Any:
    """The type of values of one rule alone: a tuple of these fields, each of its type."""
    return NamedTuple("Record", list(fields.items()))


TILE = record(rows=float, columns=float)  # of a thread block
# NCCL's cost model of an all-reduce in a host: starts of its rings, and each of their steps; shares of a link's rate.
NCCL_COST = record(**dict.fromkeys(
    ("link_share", "halved_beyond_ranks", "ll_us", "ll_step_us", "ll128_share", "ll128_us", "ll128_step_us",
     "simple_us", "simple_step_us"), float))  # fmt: skip
GemmLibrary = Literal["cublas", "cutlass", "cutlass_one_tile", "block", "four_bit"]
PLAIN: Mapping[str, Any] = {"flag": bool, "number": float, "word": str}  # by the `type` that a rule of the file says
VALUES: Mapping[str, Any] = {
    "changed_in": tuple[Version, ...],
    "gemm_library": GemmLibrary,
    "gemm_quantize_row_cycles": float | None,
    "gemm_quantize_unfused": UnfusedQuantize | None,
    # Exponent of the time in the inverse clock: of a product bound on the chip, and what one bound by DRAM loses.
    "gemm_clock_exponent": record(on_chip=float, lost_by_dram=float),
    # Log of the clock lost by products that are all tensor work, at 60 µs and from 150 µs on.
    "gemm_clock_drop": record(log_at_60_us=float, log_from_150_us=float) | None,
    # Log of the time lost with the fewest tiles an SM, and more for each doubling of tiles.
    "gemm_row_start": record(log_at_fewest_tiles=float, log_per_doubling=float) | None,
    "attention_costs": AttentionCosts,
    "attention_prefill_cycles": PrefillCycles | None,
    "attention_decode_cycles": DecodeCycles | None,
    "attention_decode_companions": Companions,
    "attention_value_dim": float | None,
    "attention_groups": record(least=float, most=float | None),  # heads of a group that a kernel takes (None: any)
    "attention_widest_window": float | None,
    "attention_query_loads": tuple[int, ...],
    "attention_companions": Companions,
    "step_write_back": Mapping[str, float],
    "step_waiting": tuple[float, float] | None,
    "moe_costs": MoeCosts,
    "moe_remote_pairs": Literal["", "between", "all", "packed"],
    "moe_untuned": TILE | None,
    "moe_kept_as": str | None,
    "moe_multiplies": str | None,
    "moe_rounding_remainder": Literal["spread", "first", "busiest"],
    "moe_rank_tokens": Literal["all", "local"],
    # The router's kernel, and what operations in its place cost beyond its limits: SM cycles for each token and expert.
    "moe_router": record(most_experts=int, most_topk=int, start_s=float, cycles_per_score=float) | None,
    # What a call spends before its products; SM cycles for each element of the tokens that it quantises.
    "moe_before_products": record(start_s=float, cycles_per_element=float),
    # Thread blocks up to so many tokens.
    "moe_blocks": tuple[record(tokens=float, rows=int, columns=int), ...] | None,  # type: ignore[misc]
    # The thread block up to as many tokens as a rank has experts, and beyond.
    "moe_blocks_by_experts": record(few_tokens=TILE, many_tokens=TILE),
    "all_reduce_kernels": str | None,
    "all_reduce_algorithms": Mapping[str, tuple[SizeLimit, ...]],
    "nccl_cost": NCCL_COST,
    # What it grants at most: the LL protocol; a start of a sum in the switch, and its share of a link's rate (0: none).
    "nccl_caps": record(ll_gbps=float, switch_us=float, switch_share=float),
    "network": record(gbps=float, pcie_share=float),  # of a GPU between hosts, at most a share of its PCIe
    # Share of its PCIe that a GPU keeps beside others of a host; up to `staged_gbps` copies are staged.
    "pcie_sharing": record(crowded_share=float, staged_gbps=float),
    "link_times": record(step_s=float, start_s=float),  # of one step of a ring, and of a start
    "norm_scalar": ScalarNorm | None,
    "module_pool": IndexPoolCopy,
    "module_tiles": SparseTiles,
    "module_block_major": BlockMajor,
}
