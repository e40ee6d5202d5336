"""Recurrent states in a cache of prefixes: at which tokens they are kept, and how far a new prompt can use them.

A prompt whose blocks of keys and values are all there still has to compute what lies behind the last kept state
(`pipewave.software.engine_parts`). Traces tell prompts apart by whole blocks only: one that goes on from an earlier
one need not share that one's last block. A state in there is found by the blocks before it, and used by longer prompts
as far as blocks are shared; one in any other block, only by prompts that share the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipewave.simulate.traffic import Ints
from pipewave.software.engine_parts import BRANCHES, EVERY_BLOCK, STEP_ENDS, STEP_ENDS_ON_BLOCK

NOBODY = 1 << 62  # longer than any prompt


@dataclass(frozen=True, slots=True)
class Kept:
    """States of one deployment. keeps, tokens: StateRule's, with tokens settled. pages: that one state takes of the
    pool of pages; or slots: of a pool of their own, of which each running request holds `each`."""

    keeps: str
    tokens: int
    pages: int = 0
    slots: int = 0
    each: int = 1

    def reached(self, found: Ints, step: int = 0) -> Ints:
        """Tokens up to the last state within so many cached ones. `step`: where prompts part behind them, so that no
        piece of an earlier one ended there: tokens of a step, whose ends are all that is kept then (0: they do not)."""
        if self.keeps == STEP_ENDS:
            return found // step * step if step else found
        if self.keeps == STEP_ENDS_ON_BLOCK and step:
            whole = max(step // self.tokens, 1) * self.tokens
            return found // whole * whole
        return found // self.tokens * self.tokens

    def cut(self, done: int, take: int, total: int) -> int:
        """Tokens of a prompt's next piece, `take` at most: where states are kept at steps, pieces end on multiples and
        one ends on the prompt's last (0: none fits)."""
        if self.keeps != STEP_ENDS_ON_BLOCK:
            return take
        last = total - total % self.tokens
        if done + take < last:
            return take // self.tokens * self.tokens
        return last - done if done < last < done + take else take

    def places(self, before: int, after: int, branch: int) -> list[int]:
        """Tokens at which states are kept of a piece from `before` to `after`; `branch`: where others know no state."""
        if self.keeps == EVERY_BLOCK:
            return list(range(before // self.tokens * self.tokens + self.tokens, after + 1, self.tokens))
        if self.keeps == STEP_ENDS_ON_BLOCK:
            return [] if after % self.tokens else [after]
        if self.keeps == BRANCHES:
            last = before + (after - before) // self.tokens * self.tokens
            return [branch] if before < branch < after else [last] if last > before else []
        return [after]


class Shelf:
    """What nobody uses at present, each thing with its size, the one to go first at the front."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[object, int] = OrderedDict()
        self.size = 0

    def __iter__(self) -> Iterator[object]:
        return iter(self.sizes)

    def __contains__(self, thing: object) -> bool:
        return thing in self.sizes

    def put(self, thing: object, size: int) -> None:
        """At the back, once."""
        self.take(thing)
        self.sizes[thing] = size
        self.size += size

    def take(self, thing: object) -> None:
        """Off the shelf, where it is there."""
        self.size -= self.sizes.pop(thing, 0)

    def touch(self, thing: object) -> None:
        """To the back."""
        self.sizes.move_to_end(thing)

    def cut(self, room: int) -> Iterable[object]:
        """Drop what goes first until so much is left; what was dropped."""
        dropped = []
        while self.size > room:
            thing, size = self.sizes.popitem(last=False)
            self.size -= size
            dropped.append(thing)
        return dropped


class States:
    """The kept states of one engine, on the shelf of idle blocks or on one of their own."""

    def __init__(self, kept: Kept, prompts: Sequence[Sequence[int]], tokens: int, idle: Shelf) -> None:
        self.kept, self.prompts, self.tokens = kept, prompts, tokens
        self.shelf = Shelf() if kept.slots else idle
        # Block → tokens at which states are kept behind it → how long a prompt must be to use one in that block.
        self.places: dict[int, dict[int, int]] = {}
        self.branches: dict[int, int] = {}  # request → tokens to which the cache knows its prompt, beyond any state

    def reach(self, request: int, prompt: int, found: int) -> int:
        """Tokens up to the last state of a prompt of `prompt` tokens, `found` of which lie in blocks that are there."""
        blocks, reached = self.prompts[request][: found // self.tokens], 0
        for block in reversed(blocks):
            places = self.places.get(block, {}) if (block,) in self.shelf else {}
            if reached := max(
                (min(at, found) for at, most in places.items() if at <= found or prompt > most), default=0
            ):
                self.shelf.touch((block,))
                break
        if found > reached:
            self.branches[request] = found // self.kept.tokens * self.kept.tokens
        return reached

    def passed(self, request: int, before: int, after: int, total: int) -> None:
        """Keep what a piece of a prompt of `total` tokens leaves."""
        blocks = self.prompts[request]
        for place in self.kept.places(before, after, self.branches.get(request, 0)):
            index = max(place // self.tokens, 1) - 1
            if index < len(blocks):
                self._keep(blocks[index], place, total if place > total // self.tokens * self.tokens else NOBODY)

    def _keep(self, block: int, place: int, open_to: int) -> None:
        """A state at `place`, for prompts that share its block, or have more tokens than `open_to`."""
        if (block,) not in self.shelf:
            self.places[block] = {}
        places = self.places[block]
        places[place] = open_to
        self.shelf.put((block,), len(places) * (1 if self.kept.slots else self.kept.pages))

    def trim(self, running: int) -> None:
        """Give up states of their own pool beyond those that running requests leave."""
        if self.kept.slots:
            self.shelf.cut(max(self.kept.slots - self.kept.each * running, 0))
