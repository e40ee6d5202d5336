"""The kernels between the projections: index scores, choice of the top, and attention over what was chosen."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.kernels.attention_module.parts import Counts, Module
from pipewave.kernels.base import Context
from pipewave.kernels.stages import Stage, rate
from pipewave.physics.demand import Array
from pipewave.physics.overlap import waves
from pipewave.software.rule_values import BlockMajor, SparseTiles

SCORE_BYTES, INDEX_BYTES = 4.0, 4.0
KEYS_A_BLOCK = 64.0
BLOCK_STEP_S = 0.9e-6  # a block of gathered keys of one tile, one after the other
KEY_SCORE_S = 1.0e-9  # a key that a tile of the indexer walks past
# Clocks of an SM a score of one head: rectified, weighted and added up over heads on CUDA cores. An H100's SM takes 9 a
# key and 128 of them, of which its tensor cores take 4.
SCORE_CYCLES = 4.0 / 128.0
KEY_PICK_S = 0.25e-9  # a score that a row's radix select reads, all passes together
# Clocks of an SM a 16-bit value of PyTorch's copy of a view that is not in one piece, which moves values one by one: an
# H200 takes 33 ns a page of 128 keys of 128 that its L2 holds (python -m lab.copy_pages).
COPY_CYCLES = 0.49
FILL = 2.0  # blocks an SM that decoding splits contexts into
PASSES = 2.0


def padded(seen: Counts, dims: Module) -> Array:
    """Pairs of a query and a place of its choice, filled or not."""
    most = np.where(np.isfinite(dims.kept), dims.kept, 0.0)
    return np.asarray(np.maximum(seen.tokens * most, seen.chosen))


@dataclass(frozen=True, slots=True)
class Cores:
    """Kernels of a batch under a context; `decode` splits long contexts over SMs."""

    ctx: Context
    dims: Module
    seen: Counts
    decode: bool

    @property
    def index_type(self) -> str:
        """Operands of the scores: 8 bits, in MSA those of the cache."""
        return "bf16" if self.dims.separate else "fp8"

    @property
    def attention_type(self) -> str:
        """Operands of the attention: 16 bits, or the cache's 8 where the stack multiplies those."""
        narrow = self.dims.cached_bytes == 1.0 and self.ctx.gpu.supports("fp8")
        return str(self.ctx.rule("module_multiplies")) if narrow else "bf16"

    def indexer(self) -> Stage:
        """Scores of every visible key for every head of the indexer, summed over heads."""
        dims, seen = self.dims, self.seen
        size = ACTIVATION_BYTES * seen.tokens * dims.index_heads * dims.index_dim
        keys = seen.context / dims.ratio * dims.index_bytes
        tiles = np.ceil(seen.tokens * dims.index_heads / 128.0)
        most = np.maximum(seen.deepest / dims.ratio / 256.0, 1.0)
        key_s, once = np.asarray(KEY_SCORE_S), np.zeros_like(keys)
        scores = seen.scored * dims.index_heads
        if not self.ctx.rule("module_index_splits", kind=dims.kind, decode=self.decode):
            most, scores = np.ones_like(most), seen.scored / seen.tokens * tiles * 128.0
        if dims.separate:  # both of its kernels walk blocks of keys of a request, as fast as an SM draws them
            most = np.minimum(most, self._splits())
            tiles = seen.batch * np.ceil(seen.tokens / seen.batch * dims.index_heads / 128.0)
            once = keys  # what comes from DRAM counts once
            key_s = np.maximum(KEY_SCORE_S, dims.index_bytes / (1e9 * self.ctx.gpu.l2_peak_gbps / self.ctx.gpu.sms))
        split = np.clip(FILL * self.ctx.gpu.sms / tiles, 1.0, most)
        return Stage(
            "indexer",
            2.0 * scores * dims.index_dim,
            self.index_type,
            fresh=keys,
            read=size,
            written=self._scores(),
            gathered=np.maximum(tiles * seen.scored / seen.tokens * dims.index_bytes - once, 0.0),
            blocks=tiles * split,
            cycles=self._reduced(scores),
            chain_s=key_s * seen.deepest / dims.ratio / split,
        )

    def _reduced(self, scores: Array) -> Array:
        """Clocks of SMs that summing scores over heads takes, and the products where the same warps wait for them."""
        if self.dims.separate:
            return np.zeros_like(scores)
        gpu = self.ctx.gpu
        a_clock = rate(gpu, self.index_type) / (gpu.sms * gpu.sustained_clock_mhz * 1e6)
        waits = self.ctx.rule("module_index_waits") * 2.0 * self.dims.index_dim / a_clock
        return np.asarray(scores * (SCORE_CYCLES + waits))

    def pooled(self) -> Stage:
        """The indexer's keys of every page of the pool, written in one piece where the pool does not hold them so."""
        dims, seen, pool = self.dims, self.seen, self.ctx.rule("module_pool", kind=self.dims.kind)
        # Buffers of one size lie side by side in a page: the view of one of them is not in one piece.
        mixed = (dims.kv_heads * dims.head_dim == dims.index_dim) * (pool.pages_per_used > 0.0)
        pages = pool.pages_per_used * (np.ceil((seen.context / seen.batch + 1.0) / self._merged()) + pool.spare_pages)
        values = mixed * seen.batch * pages * self._merged() * dims.index_dim
        size = dims.cached_bytes * values
        return Stage("indexer", read=size, written=size, cycles=COPY_CYCLES * values, launches=1.0 * mixed)

    def topk(self) -> Stage:
        """The best of each query's scores: a radix select by one block a query."""
        seen, rows = self.seen, self.seen.tokens
        rounds = waves(rows / (2.0 * self.ctx.gpu.sms))
        chosen = INDEX_BYTES * rows * np.minimum(self.dims.topk, seen.deepest)
        chain = KEY_PICK_S * seen.scored / rows * rounds
        return Stage("topk", read=PASSES * self._scores(), written=chosen, blocks=rows, chain_s=chain)

    def attention(self) -> Stage:
        """Attention of every head over chosen entries, which each query gathers for itself."""
        dims, seen, tiling, by_block = self.dims, self.seen, self._tiling(), self._block_major()
        groups = np.ceil(dims.heads / np.maximum(dims.kv_heads, 1.0) / tiling.heads) * np.maximum(dims.kv_heads, 1.0)
        walked = seen.chosen + tiling.empty_share * (padded(seen, dims) - seen.chosen)
        tiles, each = seen.tokens * groups * tiling.sms, walked / seen.tokens
        most = np.minimum(np.maximum(each / 256.0, 1.0), self._splits())
        split = np.clip(FILL * self.ctx.gpu.sms / tiles, 1.0, most)
        io = ACTIVATION_BYTES * seen.tokens * dims.heads * (dims.multiplied / 2.0)
        prompt = (seen.longest > 1.0) | np.bool_(self.decode)  # one new token a request is decoding, to engines
        partial = self._partial_bytes() * prompt if by_block.partials else 0.0
        shared = np.maximum(by_block.tile_rows / np.maximum(dims.heads / np.maximum(dims.kv_heads, 1.0), 1.0), 1.0)
        places = seen.chosen + tiling.empty_read_share * (padded(seen, dims) - seen.chosen)
        drawn = places * groups / np.maximum(dims.kv_heads, 1.0)  # entries
        again = np.maximum(drawn / shared - seen.entries, 0.0) * dims.entry_bytes  # what comes from DRAM counts once
        rounds = waves(tiles * split / self.ctx.gpu.sms)
        return Stage(
            "attention",
            2.0 * self._rows(by_block, walked * groups * tiling.heads) * tiling.slowdown * dims.multiplied,
            self.attention_type,
            fresh=seen.entries * dims.entry_bytes,
            read=io + partial,
            written=io + partial,
            gathered=again + partial,
            cycles=drawn * dims.entry * tiling.widen_clk,
            blocks=tiles * split,
            chain_s=BLOCK_STEP_S * np.maximum(each / KEYS_A_BLOCK, 1.0) / split * np.minimum(rounds, 1.0),
            launches=1.0 + self.decode + by_block.launches * prompt,
        )

    def _rows(self, by_block: BlockMajor, padded_heads: Array) -> Array:
        """Pairs of a key and a row of a tile: heads padded for each query, or queries of a block that fill tiles."""
        filled, least = self.seen.chosen * self.dims.heads, self.seen.entries * by_block.tile_rows * self.dims.kv_heads
        return np.asarray(np.maximum(filled, least) if by_block.tile_rows else padded_heads)

    def _block_major(self) -> BlockMajor:
        """How blocks of keys find the queries that chose them, where a kernel goes through blocks."""
        if not self.dims.separate:
            return BlockMajor()
        found: BlockMajor = self.ctx.rule("module_block_major", kind=self.dims.kind, decode=self.decode)
        return found

    def _partial_bytes(self) -> Array:
        """Partial outputs of all chosen blocks, the one that a query is in among them."""
        blocks = np.minimum(
            self.seen.chosen / self._merged() + 0.5 * self.seen.tokens, self.seen.tokens * self.dims.topk
        )
        return np.asarray(ACTIVATION_BYTES * blocks * self.dims.heads * self.dims.head_dim)

    def _splits(self) -> float:
        """Parts that decoding cuts a context into at most; prompts have tiles enough."""
        return float(self.ctx.rule("module_splits", kind=self.dims.kind)) if self.decode else 1.0

    def _tiling(self) -> SparseTiles:
        """How the sparse kernel goes through a choice; stacks that widen the cache first run the 16-bit one."""
        narrow = self.dims.cached_bytes == 1.0
        own, wide = (
            self.ctx.rule("module_tiles", kind=self.dims.kind, narrow=each, decode=self.decode)
            for each in (narrow, False)
        )
        never = self.decode or not self.dims.latent
        widened = self.dims.heads >= (np.inf if never else self.ctx.rule("module_widens_from"))
        return SparseTiles(*(np.where(widened, *pair) for pair in zip(astuple(wide), astuple(own), strict=True)))

    def dense(self) -> Stage:
        """Causal attention of every head with keys and values of its own."""
        dims, seen = self.dims, self.seen
        width = dims.nope_dim + dims.rope_dim + dims.v_dim
        io = ACTIVATION_BYTES * seen.context * dims.heads * width
        tiles = np.ceil(seen.tokens / 128.0) * dims.heads
        flops = 2.0 * seen.causal * dims.heads * width
        chain = 0.6e-6 * np.ceil(seen.deepest / 128.0)
        return Stage(
            "attention", 1.2 * flops, self.attention_type, read=io, written=io / 3.0, blocks=tiles, chain_s=chain
        )

    def _scores(self) -> Array:
        return SCORE_BYTES * self.seen.scored * (self.dims.index_heads if self.dims.separate else 1.0) / self._merged()

    def _merged(self) -> Array:
        """Keys whose scores are one: the best of a block."""
        return np.maximum(self.dims.block_size, 1.0)
