"""A cache of prompts and answers in the same pool of pages that running requests use.

A page is found again when it is full and all tokens in front of it are the same. Running requests hold the pages that
they found or computed; others stay, idle, until their pages are needed: the least recently used go first, of one
request its last pages before its first ones. That is the order of vLLM's queue of free blocks (0.22.1
v1/core/block_pool.py and kv_cache_manager.py: blocks are freed in reverse, pages without a hash stand in the queue,
too) and of leaves of SGLang's radix tree. A prompt that is cached whole computes its last page again, for its last
token has to be computed. With pages in the host's memory idle ones go there first, in the same order, and are copied
back when they are found.

Recurrent states that an engine keeps for later requests stand in the pool of idle pages or in one of their own. A
prompt whose pages are all cached still computes what lies behind the last kept state (`software.engine_parts`). A trace
by hashes tells prompts apart by whole blocks only: a prompt that goes on from an earlier one need not share that one's
last block. A state in there is found by the blocks before it, and used by longer prompts as far as blocks are shared;
one in any other block, only by prompts that share the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from pipewave.errors import BadInput
from pipewave.simulate.shared_tokens import SharedTokens
from pipewave.simulate.traffic import Ints
from pipewave.software.engine_parts import BRANCHES, EVERY_BLOCK, STEP_ENDS, STEP_ENDS_ON_BLOCK

NO_PROMPT = 1 << 62  # longer than any prompt
Block = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StateCheckpoint:
    """At which tokens of a prompt an engine keeps recurrent states for later requests, and what one takes."""

    place: str  # StateRule's: at blocks, at the ends of steps, at branches, or at ends of prompts
    tokens: int  # distance of places
    pages: int = 0  # of the KV cache that one state takes
    slots: int = 0  # of a pool of their own, in place of pages
    each: int = 1  # slots that a running request holds

    def reached(self, found: Ints, step: int = 0) -> Ints:
        """Tokens up to the last state within so many cached ones. `step`: where prompts part behind them, so that no
        piece of an earlier one ended there: tokens of a step, whose ends are all that is kept then (0: they do not).
        """
        if self.place == STEP_ENDS:
            return found // step * step if step else found
        if self.place == STEP_ENDS_ON_BLOCK and step:
            whole = max(step // self.tokens, 1) * self.tokens
            return found // whole * whole
        return found // self.tokens * self.tokens

    def cut(self, done: int, take: int, total: int) -> int:
        """Tokens of a prompt's next piece, `take` at most: where states are kept at steps, pieces end on multiples and
        one ends on the prompt's last (0: none fits).
        """
        if self.place != STEP_ENDS_ON_BLOCK:
            return take
        last = total - total % self.tokens
        if done + take < last:
            return take // self.tokens * self.tokens
        return last - done if done < last < done + take else take

    def places(self, before: int, after: int, branch: int) -> list[int]:
        """Tokens at which states are kept of a piece from `before` to `after`; `branch`: where others know no state."""
        if self.place == EVERY_BLOCK:
            return list(range(before // self.tokens * self.tokens + self.tokens, after + 1, self.tokens))
        if self.place == STEP_ENDS_ON_BLOCK:
            return [] if after % self.tokens else [after]
        if self.place == BRANCHES:
            last = before + (after - before) // self.tokens * self.tokens
            return [branch] if before < branch < after else [last] if last > before else []
        return [after]


class LruPool:
    """Things that no running request uses, each with its size, the least recently used one first."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[object, int] = OrderedDict()
        self.size = 0

    def put(self, thing: object, size: int) -> None:
        """Add as most recently used, once; what has no size is nothing."""
        self.take(thing)
        if size:
            self.sizes[thing] = size
            self.size += size

    def take(self, thing: object) -> None:
        """Remove, where it is there."""
        self.size -= self.sizes.pop(thing, 0)

    def cut(self, room: int) -> Iterable[tuple[object, int]]:
        """Drop the least recently used until so much is left; returns what was dropped, and how much of it: pages of a
        segment (an integer) one by one, a state whole.
        """
        dropped = []
        while self.size > room:
            thing, size = self.sizes.popitem(last=False)
            gone = min(size, self.size - room) if isinstance(thing, int) else size
            if gone < size:
                self.sizes[thing] = size - gone
                self.sizes.move_to_end(thing, last=False)
            self.size -= gone
            dropped.append((thing, gone))
        return dropped


class CheckpointStore:
    """The kept states of one engine. `pool`: where they stand; the cache's own pages where they have no slots."""

    def __init__(self, checkpoint: StateCheckpoint, shared: SharedTokens) -> None:
        self.checkpoint, self.shared, self.tokens = checkpoint, shared, shared.block_tokens
        self.pool = LruPool()
        # Block → tokens at which states are kept behind it → how long a prompt must be to use one in that block.
        self.places: dict[Block, dict[int, int]] = {}
        self.branches: dict[int, int] = {}  # request → tokens to which the cache knows its prompt, beyond any state

    def reach(self, request: int, prompt: int, found: int) -> int:
        """Tokens up to the last state of a prompt of `prompt` tokens, `found` of which lie in pages that are there."""
        reached = 0
        for block in reversed(self.shared.blocks(request, found // self.tokens)):
            places = self.places.get(block, {}) if block in self.pool.sizes else {}
            used = (min(at, found) for at, most in places.items() if at <= found or prompt > most)
            if reached := max(used, default=0):
                self.pool.sizes.move_to_end(block)  # as most recently used
                break
        if found > reached:
            self.branches[request] = found // self.checkpoint.tokens * self.checkpoint.tokens
        return reached

    def passed(self, request: int, before: int, after: int, total: int) -> None:
        """Store the states that a piece of a prompt of `total` tokens passes."""
        kept = self.checkpoint.places(before, after, self.branches.get(request, 0))
        blocks = self.shared.blocks(request, max(after // self.tokens, 1)) if kept else []
        for place in kept:
            if place <= self.shared.known[request]:
                block = blocks[max(place // self.tokens, 1) - 1]
                if block not in self.pool.sizes:
                    self.places[block] = {}
                places = self.places[block]
                # For prompts that share the block; of one behind the prompt's last whole block, not for longer ones.
                places[place] = total if place > total // self.tokens * self.tokens else NO_PROMPT
                self.pool.put(block, len(places) * (1 if self.checkpoint.slots else self.checkpoint.pages))

    def trim(self, running: int) -> None:
        """Give up states of their own pool beyond those that running requests leave."""
        if self.checkpoint.slots:
            self.pool.cut(max(self.checkpoint.slots - self.checkpoint.each * running, 0))


@dataclass(frozen=True, slots=True)
class Match:
    """What a waiting request would find."""

    tokens: int  # of its prompt, in pages or states that are there
    on_gpu: int  # pages of them that need not come from the host
    takes: int  # free pages that it would take in all, idle ones that it found among them


class PrefixCache:
    """Pages of one engine by segment of `shared`; `host_pages` in the host's memory; states by `checkpoint`."""

    def __init__(
        self, shared: SharedTokens, page_size: int, host_pages: int = 0, checkpoint: StateCheckpoint | None = None
    ) -> None:
        if shared.block_tokens % page_size and page_size % shared.block_tokens:
            raise BadInput(
                f"blocks of {shared.block_tokens} tokens: must be whole pages of {page_size}", field="block_tokens"
            )
        self.page, self.paths, self.known = page_size, shared.paths, shared.known
        self.begins = [tokens // page_size for tokens in shared.begins]
        self.ends = [tokens // page_size for tokens in shared.ends]
        self.cached = list(self.begins)  # page up to which each segment is in the pool
        self.users = [0] * len(self.ends)  # running requests that hold a segment
        self.held: dict[int, list[int]] = {}  # running request → segments that it holds
        self.filled: dict[int, int] = {}  # running request → pages of its path that it found or computed
        self.copies: dict[int, int] = {}  # running request → those among them that the pool had already
        self.idle, self.unnamed = LruPool(), count(1)
        self.host_pages, self.host = host_pages, OrderedDict[int, int]()  # segment → page up to which the host has it
        self.host_used = self.copied = 0
        self.states = CheckpointStore(checkpoint, shared) if checkpoint else None
        if self.states and checkpoint and not checkpoint.slots:
            self.states.pool = self.idle

    def match(self, request: int, prompt: int, held: int, free: int, running: int = 0) -> Match:
        """What a waiting request of so many `prompt` tokens (output before a preemption included) finds, which takes
        `held` pages in all; `free`: pages of no running request.
        """
        self.trim(free)
        found, on_gpu = 0, -1
        for segment in self.paths[request]:
            cached, end = self.cached[segment], self.ends[segment]
            found = max(cached, self.host.get(segment, 0))
            if on_gpu < 0 and cached < end:
                on_gpu = cached
            if found < end:
                break
        on_gpu = found if on_gpu < 0 else on_gpu
        tokens = min(found, (prompt - 1) // self.page) * self.page
        if self.states:
            self.states.trim(running)
            tokens = self.states.reach(request, prompt, tokens)
        on_gpu = min(on_gpu, tokens // self.page)
        idle = sum(self.cached[s] - self.begins[s] for s in self._within(request, on_gpu) if not self.users[s])
        return Match(tokens, on_gpu, held - on_gpu + idle)

    def admit(self, request: int, match: Match) -> None:
        """Hold what a request found, from now until it leaves."""
        self.held[request], self.copies[request], self.filled[request] = [], 0, match.on_gpu
        for segment in self._within(request, match.on_gpu):
            self._hold(request, segment)
        self.copied += match.tokens - match.on_gpu * self.page
        self._fill(request, match.tokens)

    def _within(self, request: int, pages: int) -> list[int]:
        """Segments with any of the first so many pages of a request."""
        return [s for s in self.paths[request] if self.begins[s] < min(self.ends[s], pages)]

    def _hold(self, request: int, segment: int) -> None:
        if not self.users[segment]:
            self.idle.take(segment)
        self.users[segment] += 1
        self.held[request].append(segment)

    def passed(self, request: int, before: int, after: int, total: int) -> None:
        """A piece of a prompt of `total` tokens is computed: others find its pages from now on, and its states."""
        self._fill(request, after)
        if self.states:
            self.states.passed(request, before, after, total)

    def _fill(self, request: int, tokens: int) -> None:
        """A request has its first so many tokens in pages: those that nobody else has are cached."""
        at, upto = self.filled[request], min(tokens, self.known[request]) // self.page
        for segment in self.paths[request]:
            end = min(self.ends[segment], upto)
            if end <= at:
                continue
            cached, holds = self.cached[segment], segment in self.held[request]
            if not holds and cached == self.begins[segment] == at:
                self._hold(request, segment)
                holds = True
            if holds and cached < end:
                self._leave_host(segment, end)
                self.cached[segment] = end
            self.copies[request] += max(min(cached, end) - at, 0) if holds else end - at
            at = end
        self.filled[request] = max(at, self.filled[request])

    def leave(self, request: int, held: int, tokens: int) -> int:
        """Let go of a request of `held` pages, so many tokens of which were computed; the pages that become free."""
        self._fill(request, tokens)
        freed = held - self.filled.pop(request) + self.copies.pop(request)
        self.idle.put(-next(self.unnamed), freed)
        for segment in reversed(self.held.pop(request)):
            self.users[segment] -= 1
            if not self.users[segment]:
                pages = self.cached[segment] - self.begins[segment]
                self.idle.put(segment, pages)
                freed += pages
        return freed

    def trim(self, free: int) -> None:
        """Evict what is idle beyond the pages that running requests leave."""
        for thing, pages in self.idle.cut(free):
            if isinstance(thing, int) and thing >= 0:
                self.cached[thing] -= pages
                if self.host_pages:
                    self.host[thing] = max(self.host.pop(thing, 0), self.cached[thing] + pages)
                    self.host_used += pages
        while self.host_used > self.host_pages:
            segment, upto = self.host.popitem(last=False)
            gone = min(upto - self.cached[segment], self.host_used - self.host_pages)
            self.host_used -= gone
            if upto - gone > self.cached[segment]:
                self.host[segment] = upto - gone
                self.host.move_to_end(segment, last=False)

    def _leave_host(self, segment: int, upto: int) -> None:
        """Pages of a segment up to there are in the pool again."""
        hosted = self.host.get(segment, 0)
        self.host_used -= max(min(hosted, upto) - self.cached[segment], 0)
        if 0 < hosted <= upto:
            del self.host[segment]

    def loaded(self) -> int:
        """Tokens copied back from the host since last asked."""
        copied, self.copied = self.copied, 0
        return copied
