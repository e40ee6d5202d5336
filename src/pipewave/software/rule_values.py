"""What rules of software answer with: the type of each rule's value, its parts and units.

`VALUES` declares the rules of `stack_rules.json` whose values have a class here; all others say their `type` there. A
value that is not of its type is refused when the file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Literal, NamedTuple


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


PLAIN: Mapping[str, Any] = {"flag": bool, "number": float, "integer": int, "word": str}
VALUES: Mapping[str, Any] = {
    "gemm_quantize_unfused": UnfusedQuantize | None,
    "attention_costs": AttentionCosts,
    "attention_prefill_cycles": PrefillCycles | None,
    "attention_decode_cycles": DecodeCycles | None,
    "attention_decode_companions": Companions,
    "attention_companions": Companions,
    "step_write_back": Mapping[str, float],
    "step_waiting": tuple[float, float] | None,
    "moe_costs": MoeCosts,
    "all_reduce_algorithms": Mapping[str, tuple[SizeLimit, ...]],
    "norm_scalar": ScalarNorm | None,
    "module_pool": IndexPoolCopy,
    "module_tiles": SparseTiles,
    "module_block_major": BlockMajor,
}


def type_of(said: Any) -> Any:
    """The type that a rule's `type` says: `number?` (or null), `all | local` (one of), `["integer"]` (many), a dict."""
    if isinstance(said, Mapping):
        return NamedTuple("Record", [(name, type_of(each)) for name, each in said.items()])
    if isinstance(said, list):
        return GenericAlias(tuple, (type_of(said[0]), ...))
    if "|" in said:
        return Literal[tuple(word.strip() for word in said.split("|"))]
    plain = PLAIN[said.removesuffix("?")]
    return plain | None if said.endswith("?") else plain
