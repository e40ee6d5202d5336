"""Recurrent states that an engine keeps for later requests, in the pool of idle pages or in one of their own.

A prompt whose pages are all cached still computes what lies behind the last kept state
(`pipewave.software.engine_parts`). A trace by hashes tells prompts apart by whole blocks only: a prompt that goes on
from an earlier one need not share that one's last block. A state in there is found by the blocks before it, and used by
longer prompts as far as blocks are shared; one in any other block, only by prompts that share the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

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

    def __contains__(self, thing: object) -> bool:
        return thing in self.sizes

    def put(self, thing: object, size: int) -> None:
        """Add as most recently used, once; what has no size is nothing."""
        self.take(thing)
        if size:
            self.sizes[thing] = size
            self.size += size

    def take(self, thing: object) -> None:
        """Remove, where it is there."""
        self.size -= self.sizes.pop(thing, 0)

    def touch(self, thing: object) -> None:
        """Mark as most recently used."""
        self.sizes.move_to_end(thing)

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
            places = self.places.get(block, {}) if block in self.pool else {}
            if reached := max(
                (min(at, found) for at, most in places.items() if at <= found or prompt > most), default=0
            ):
                self.pool.touch(block)
                break
        if found > reached:
            self.branches[request] = found // self.checkpoint.tokens * self.checkpoint.tokens
        return reached

    def passed(self, request: int, before: int, after: int, total: int) -> None:
        """Store the states that a piece of a prompt of `total` tokens passes."""
        for place in self.checkpoint.places(before, after, self.branches.get(request, 0)):
            index = max(place // self.tokens, 1) - 1
            if place <= self.shared.known[request]:
                block = self.shared.blocks(request, index + 1)[-1]
                self._keep(block, place, total if place > total // self.tokens * self.tokens else NO_PROMPT)

    def _keep(self, block: Block, place: int, open_to: int) -> None:
        """A state at `place`, for prompts that share its block, or have more tokens than `open_to`."""
        if block not in self.pool:
            self.places[block] = {}
        places = self.places[block]
        places[place] = open_to
        self.pool.put(block, len(places) * (1 if self.checkpoint.slots else self.checkpoint.pages))

    def trim(self, running: int) -> None:
        """Give up states of their own pool beyond those that running requests leave."""
        if self.checkpoint.slots:
            self.pool.cut(max(self.checkpoint.slots - self.checkpoint.each * running, 0))
