"""A cache of prompt prefixes in the same pool of pages that running requests use, and of recurrent states behind them.

Prompts are lists of block hashes (Mooncake's `hash_ids`). A block is held while a running request uses it, once however
many do; then it stays, idle, until its pages are needed: the least recently used block goes first, and of one prompt
the last blocks before the first ones, as in vLLM's free queue and SGLang's radix tree. With pages in the host's memory
blocks go there first, in the same order, and are copied back when they are found.

Where a model has recurrent states, a prompt whose blocks are all cached still computes what lies behind the last kept
state (`pipewave.software.engine_parts`). Traces tell prompts apart by whole blocks only: a prompt that goes on from
an earlier one need not share that one's last block. A state in there is found by the blocks before it, and used by
longer prompts as far as blocks are shared; one in any other block, only by prompts that share the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipewave.errors import BadInput
from pipewave.simulate.traffic import Ints
from pipewave.software.engine_parts import BRANCHES, EVERY_BLOCK, STEP_ENDS, STEP_ENDS_ON_BLOCK

NO_PROMPT = 1 << 62  # longer than any prompt


class PrefixCache:
    """Blocks of `tokens` tokens by hash, `pages` pages each; `prompts`: the hashes of each request."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        page_size: int,
        host_pages: int = 0,
        checkpoint: StateCheckpoint | None = None,
    ) -> None:
        if tokens % page_size:
            raise BadInput(f"blocks of {tokens} tokens: must be whole pages of {page_size}", field="block_tokens")
        self.prompts, self.tokens, self.pages = prompts, tokens, tokens // page_size
        self.used: dict[int, int] = {}  # block → running requests that hold it
        self.idle = LruPool()
        self.host: OrderedDict[object, None] = OrderedDict()
        self.host_blocks, self.copied = host_pages // self.pages, 0
        self.states = CheckpointStore(checkpoint, prompts, tokens, self.idle) if checkpoint else None

    def shared(self, request: int) -> int:
        """Pages of a request that running ones hold already."""
        return self.pages * sum(block in self.used for block in set(self.prompts[request]))

    def admit(self, request: int, prompt: int, free: int, running: int = 0) -> int:
        """Tokens found of a prompt of `prompt` tokens, whose blocks are held from now on; the last token is computed.

        Args:
            request: its index.
            prompt: its tokens, output before a preemption included.
            free: pages of no running request.
            running: requests that run.
        """
        self.trim(free)
        found = self._found(request)
        for block in set(self.prompts[request]):
            self.used[block] = self.used.get(block, 0) + 1
            self.idle.take(block)
            self.host.pop(block, None)
        found = found if found < prompt else (prompt - 1) // self.tokens * self.tokens
        if self.states is None:
            return found
        self.states.trim(running)
        return self.states.reach(request, prompt, found)

    def _found(self, request: int) -> int:
        """Tokens of a prompt's blocks that are there, from its beginning."""
        found = 0
        for block in self.prompts[request]:
            if block not in self.used and block not in self.idle:
                if block not in self.host:
                    break
                self.copied += self.tokens
            found += self.tokens
        return found

    def passed(self, request: int, before: int, after: int, total: int) -> None:
        """A piece of a prompt of `total` tokens was computed: its states may be kept."""
        if self.states:
            self.states.passed(request, before, after, total)

    def leave(self, request: int) -> int:
        """Let go of a request's blocks; the pages among them that others still hold."""
        kept = 0
        for block in reversed(list(dict.fromkeys(self.prompts[request]))):
            self.used[block] -= 1
            if self.used[block]:
                kept += self.pages
            else:
                del self.used[block]
                self.idle.put(block, self.pages)
        return kept

    def trim(self, free: int) -> None:
        """Evict idle blocks and states beyond the pages that running requests leave."""
        for thing in self.idle.cut(free):
            if self.host_blocks and not isinstance(thing, tuple):
                self.host[thing] = None
        while len(self.host) > self.host_blocks:
            self.host.popitem(last=False)

    def loaded(self) -> int:
        """Tokens copied back from the host since last asked."""
        copied, self.copied = self.copied, 0
        return copied


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

    def __iter__(self) -> Iterator[object]:
        return iter(self.sizes)

    def __contains__(self, thing: object) -> bool:
        return thing in self.sizes

    def put(self, thing: object, size: int) -> None:
        """Add as most recently used, once."""
        self.take(thing)
        self.sizes[thing] = size
        self.size += size

    def take(self, thing: object) -> None:
        """Remove, where it is there."""
        self.size -= self.sizes.pop(thing, 0)

    def touch(self, thing: object) -> None:
        """Mark as most recently used."""
        self.sizes.move_to_end(thing)

    def cut(self, room: int) -> Iterable[object]:
        """Drop the least recently used until so much is left; returns what was dropped."""
        dropped = []
        while self.size > room:
            thing, size = self.sizes.popitem(last=False)
            self.size -= size
            dropped.append(thing)
        return dropped


class CheckpointStore:
    """The kept states of one engine, in the pool of idle blocks or in one of their own."""

    def __init__(
        self, checkpoint: StateCheckpoint, prompts: Sequence[Sequence[int]], tokens: int, idle: LruPool
    ) -> None:
        self.checkpoint, self.prompts, self.tokens = checkpoint, prompts, tokens
        self.pool = LruPool() if checkpoint.slots else idle
        # Block → tokens at which states are kept behind it → how long a prompt must be to use one in that block.
        self.places: dict[int, dict[int, int]] = {}
        self.branches: dict[int, int] = {}  # request → tokens to which the cache knows its prompt, beyond any state

    def reach(self, request: int, prompt: int, found: int) -> int:
        """Tokens up to the last state of a prompt of `prompt` tokens, `found` of which lie in blocks that are there."""
        blocks, reached = self.prompts[request][: found // self.tokens], 0
        for block in reversed(blocks):
            places = self.places.get(block, {}) if (block,) in self.pool else {}
            if reached := max(
                (min(at, found) for at, most in places.items() if at <= found or prompt > most), default=0
            ):
                self.pool.touch((block,))
                break
        if found > reached:
            self.branches[request] = found // self.checkpoint.tokens * self.checkpoint.tokens
        return reached

    def passed(self, request: int, before: int, after: int, total: int) -> None:
        """Store the states that a piece of a prompt of `total` tokens passes."""
        blocks = self.prompts[request]
        for place in self.checkpoint.places(before, after, self.branches.get(request, 0)):
            index = max(place // self.tokens, 1) - 1
            if index < len(blocks):
                self._keep(blocks[index], place, total if place > total // self.tokens * self.tokens else NO_PROMPT)

    def _keep(self, block: int, place: int, open_to: int) -> None:
        """A state at `place`, for prompts that share its block, or have more tokens than `open_to`."""
        if (block,) not in self.pool:
            self.places[block] = {}
        places = self.places[block]
        places[place] = open_to
        self.pool.put((block,), len(places) * (1 if self.checkpoint.slots else self.checkpoint.pages))

    def trim(self, running: int) -> None:
        """Give up states of their own pool beyond those that running requests leave."""
        if self.checkpoint.slots:
            self.pool.cut(max(self.checkpoint.slots - self.checkpoint.each * running, 0))
