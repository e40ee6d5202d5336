"""Prompts: time of thread blocks that each take a tile of queries over all visible keys."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

from pipewave.kernels.attention.setting import AttentionSetting, Estimate, reach
from pipewave.kernels.attention.software import AttentionKernel
from pipewave.kernels.attention.split import FEWEST_BLOCKS, FULL, fa3_part
from pipewave.kernels.attention.tasks import Amount, AnyRequests, Shape, tile_steps, visible_keys
from pipewave.kernels.base import features_of
from pipewave.physics.cache import MISSES, PREFILL_DRAM_SHARE, missing_share
from pipewave.physics.overlap import overlapped
from pipewave.physics.overlap import waves as waves_of

# Chunked and mixed batches, too: query tiles over KV tiles, dealt to the SMs.

COPY_BYTES = 16.0  # an SM moves a clock in the small kernels around attention
PARTIAL_BYTES = 8.0  # of one output element of a part: written and read in 32 bits
TAIL_SORTED, TAIL = 0.3, 0.6  # share of the longest block that the last SM runs alone
ALIKE = 0.3  # relative difference of blocks up to which they share waves


class PrefillWork(NamedTuple):
    """Thread blocks of all heads per call."""

    rows: Amount  # of a query tile
    blocks: Amount
    steps: Amount  # KV tiles that all blocks visit
    longest: Amount  # of them, by one block
    span: Amount  # of them, one after another on the busiest place
    unshared: Amount  # of them, by query tiles that share their keys with no other tile
    parts: Amount  # blocks per query tile: 1 where the keys of a tile are not split
    merges: Amount  # whether a second kernel merges parts, if only parts of one


def estimate(shape: Shape, setting: AttentionSetting) -> Estimate:
    """Base seconds and features of calls that bring more than one query a request."""
    work, xp, slots = work_of(shape, setting), shape.xp, setting.sms * setting.engine.prefill.ctas
    times, waves = times_of(shape, work, setting), work.blocks / slots
    running, memory = times["compute"] + times["fixed"], times["memory"] * setting.missing(shape.moved, xp)
    busy = overlapped(3, running, memory)
    base = setting.companions.launches * setting.launch_s + busy + times["merge"] + times["copies"]
    plain = {
        "round_off": xp.minimum(waves_of(waves, xp) / waves, 4.0),
        "even": work.steps / (work.blocks * work.longest),
        **_loads(shape, work, setting),
        **setting.lineages,
    }
    launches, load = 1.0 / setting.launch_s, work.steps / slots
    sizes = {"base": 1e6 * base} | {name: took * launches for name, took in times.items()}
    sizes |= {"waves": waves, "span": xp.maximum(work.span, load) / load}
    known: dict[str, Any] = {"shape": shape, "work": work, "setting": setting, "tile": setting.engine.prefill}
    known |= {"queries": shape.tokens / shape.batch, "keys": shape.keys / shape.batch}
    sizes |= features_of("attention_prefill", xp=xp, reach=reach(shape.layout, known["keys"], xp), **known)
    if not setting.engine.heads_last:
        return Estimate(base, sizes, plain)
    again = overlapped(3, running, memory + _again(shape, work, setting))
    return Estimate(base + again - busy, sizes, plain)  # no row a net saw reads again: its features stay


def _again(shape: Shape, work: PrefillWork, setting: AttentionSetting) -> Amount:
    """Seconds to read keys and values once more for heads of a group whose blocks do not run side by side.

    Of requests with one query tile, whose blocks for two heads lie a walk over all requests apart; as many heads as
    have room at once share what they read. Tiles of one long prompt run side by side and share it, too.
    """
    requests, layout, tile, xp = shape.requests, shape.layout, setting.engine.prefill, shape.xp
    keys = visible_keys(requests.q, requests.kv, shape.window, requests.each)
    each = layout.kv_heads * layout.kv_bytes * layout.cached
    alone = requests.total(keys * (requests.q <= tile.rows)) * each
    together = xp.maximum(setting.sms * tile.ctas * layout.heads / work.blocks, 1.0)
    reads = xp.maximum(shape.group / together, 1.0)
    missing = missing_share(MISSES["least"], setting.l2_bytes, shape.cache_bytes / layout.kv_heads, xp)
    return (reads - 1.0) * alone * missing / (PREFILL_DRAM_SHARE * setting.dram_rate)


def work_of(shape: Shape, setting: AttentionSetting) -> PrefillWork:
    """The blocks that an engine cuts calls into, and what they visit."""
    engine, requests, layout = setting.engine, shape.requests, shape.layout
    height = _tile_rows(engine, shape)
    queries = height / shape.group if engine.packs else height  # packed rows of a query may straddle tiles
    units = layout.kv_heads if engine.packs else layout.heads
    window = shape.window if engine.skips else None
    keys, causal = engine.prefill.keys, layout.causal
    tiles, steps, longest = tile_steps(
        requests.q, requests.kv, window, requests.spread(queries), keys, causal, requests.each
    )
    whole = requests.total(tiles) * units
    parts, merges = _parts(shape, setting, tiles, units, longest) if engine.splits else (None, False)
    grid, deepest = (tiles, longest) if parts is None else (tiles * parts, requests.each.ceil(longest / parts))
    blocks = whole if parts is None else requests.total(grid) * units
    return PrefillWork(
        rows=height,
        blocks=blocks,
        steps=requests.total(steps) * units,
        longest=requests.largest(deepest),
        span=makespan(requests, requests.spread(units), grid, steps, deepest, setting),
        unshared=requests.total(steps * (tiles == 1.0)) * units,
        parts=blocks / whole,
        merges=merges,
    )


def _parts(
    shape: Shape, setting: AttentionSetting, tiles: Amount, units: Amount, longest: Amount
) -> tuple[Amount | None, Amount | bool]:
    """Parts that the keys of tiles are cut into where SMs would idle, None where nothing is cut; whether any may be."""
    requests, sms, xp, each = shape.requests, setting.sms, shape.xp, shape.requests.each
    together = requests.largest(tiles) * units
    splits = (together < FULL * sms) & (requests.largest(longest) > FEWEST_BLOCKS)
    if not xp.any(splits):
        return None, False
    depth = each.ceil(requests.kv / setting.engine.prefill.keys)
    part = fa3_part(requests.total(tiles * depth) * units, together, requests.largest(depth), sms, xp)
    return each.maximum(each.ceil(depth / requests.spread(xp.where(splits, part, math.inf))), 1.0), splits


def makespan(
    requests: AnyRequests, units: Amount, tiles: Amount, steps: Amount, longest: Amount, setting: AttentionSetting
) -> Amount:
    """Steps until the last block is done when blocks start in the order of requests, each where a place is free.

    Blocks of one request fill whole waves on top of the level that earlier requests left; requests of like blocks share
    their waves. Handing out the blocks of our own mixed batches one by one ends within 5 % of this in the mean (of a
    form that knows no order: 8.5 %).
    """
    share = units / (setting.sms * setting.engine.prefill.ctas)
    tail = TAIL_SORTED if setting.engine.sorts else TAIL
    steps_so_far, tiles_so_far = requests.so_far(steps), requests.so_far(tiles)
    mean, tiles_before = steps / tiles, tiles_so_far - tiles
    at_mean = mean * tiles_before
    off, each = steps_so_far - steps - at_mean, requests.each
    alike = each.maximum(off, -off) < ALIKE * at_mean
    waves = (tiles + alike * tiles_before) * share
    even = mean / longest  # 1: all blocks alike, whole waves count; less: the scheduler fills gaps
    gap = even * even * (each.ceil(waves) - waves) * mean + tail * (longest - mean)
    filled = (tiles_so_far * share > 1.0) * (steps_so_far * share + gap)
    return requests.largest(each.maximum(filled, longest))


def _tile_rows(engine: AttentionKernel, shape: Shape) -> Amount:
    """Query rows of a tile: the lowest that holds the packed queries, where an engine has lower ones."""
    found = rows = float(engine.prefill.rows)
    if engine.lower:
        most = shape.tokens / shape.batch if engine.lower_by_mean else shape.longest
        packed = most * shape.group
        found = engine.lower[-1]
        for taller, height in pairwise(reversed((rows, *engine.lower))):
            found = shape.xp.where(packed > taller, height, found)
    return found


def times_of(shape: Shape, work: PrefillWork, setting: AttentionSetting) -> dict[str, Amount]:
    """Seconds by cause, whatever overlaps; `l2_time`: to read all tiles' keys and values, `copies`: of new tokens."""
    engine, layout, sms, xp = setting.engine, shape.layout, setting.sms, shape.xp
    slots, alone = sms * engine.prefill.ctas, engine.alone
    shared = xp.minimum(xp.maximum(work.blocks / sms, 1.0), float(engine.prefill.ctas))
    if alone is None:
        step_cycles, wave_cycles = work.rows * setting.row_step_cycles, engine.prefill.fixed_cycles
    else:  # a window masks the values, too
        masked = 1.0 if layout.window is None else 1.0 + (alone.window_factor - 1.0) * (layout.window > 0)
        step_cycles, wave_cycles = alone.step_cycles.of(engine.dim) * masked, alone.wave_cycles.of(engine.dim)
    partial = work.parts * shape.tokens * layout.heads * (PARTIAL_BYTES * layout.dim_v / setting.l2_rate)
    return {
        "compute": xp.maximum(work.span, work.steps / slots) * shared * step_cycles / setting.hertz,
        "fixed": waves_of(work.blocks / slots, xp) * (wave_cycles / setting.hertz),
        "memory": shape.moved / (PREFILL_DRAM_SHARE * setting.dram_rate),
        "l2_time": work.steps * (engine.prefill.keys * layout.cached * layout.kv_bytes / setting.l2_rate),
        "merge": work.merges * setting.launch_s + (work.parts > 1.0) * partial,
        "copies": _copies_s(shape, setting),
    }


def _copies_s(shape: Shape, setting: AttentionSetting) -> Amount:
    """Seconds of copies around the kernel: as fast as SMs copy, and half of what the L2 cannot hold waits for DRAM.

    H100 and H200 take the same time for them though their memories differ by 43 %: SMs limit these kernels.
    """
    moved = setting.companions
    queries, keys = shape.new_bytes
    missing = setting.missing(2.0 * (queries + keys), shape.xp)
    copying = 1.0 / (COPY_BYTES * setting.sms * setting.hertz)
    return moved.bytes(queries, keys) * (copying + 0.5 * missing / (PREFILL_DRAM_SHARE * setting.dram_rate))


def _loads(shape: Shape, work: PrefillWork, setting: AttentionSetting) -> dict[str, Amount]:
    """What the copy engine fetches in place of threads: pages of whole tiles, and queries packed by group."""
    packed = shape.longest * shape.group
    grouped = sum([(shape.group == heads) * 1.0 for heads in setting.query_loads])
    return {
        "tma_pages": setting.page_loads * (packed > setting.engine.prefill.rows) * 1.0,
        "tma_queries": grouped * (1.0 - work.merges * 1.0),
    }
