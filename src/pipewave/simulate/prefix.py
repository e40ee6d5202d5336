"""A cache of prompt prefixes in the same pool of pages that running requests use.

Prompts are lists of block hashes (Mooncake's `hash_ids`). A block is held while a running request uses it, once however
many do; then it stays, idle, until its pages are needed: the block idle for longest goes first, and of one prompt the
last blocks before the first ones, as vLLM's free queue and SGLang's radix tree have it. With pages in the host's memory
blocks go there first, in the same order, and are copied back when they are found. Where a model has recurrent states,
what is found ends at the last one that was kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pipewave.errors import BadInput
from pipewave.simulate.states import Kept, Shelf, States


class PrefixCache:
    """Blocks of `tokens` tokens by hash, `pages` pages each; `prompts`: the hashes of each request."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        page_size: int,
        host_pages: int = 0,
        kept: Kept | None = None,
    ) -> None:
        if tokens % page_size:
            raise BadInput(f"blocks of {tokens} tokens: must be whole pages of {page_size}", field="block_tokens")
        self.prompts, self.tokens, self.pages = prompts, tokens, tokens // page_size
        self.used: dict[int, int] = {}  # block → running requests that hold it
        self.idle = Shelf()
        self.host: OrderedDict[object, None] = OrderedDict()
        self.host_blocks, self.copied = host_pages // self.pages, 0
        self.states = States(kept, prompts, tokens, self.idle) if kept else None

    def shared(self, request: int) -> int:
        """Pages of a request that running ones hold already."""
        return self.pages * sum(block in self.used for block in set(self.prompts[request]))

    def admit(self, request: int, prompt: int, free: int, running: int = 0) -> int:
        """Tokens found of a prompt of `prompt` tokens, whose blocks are held from now on; `free`: pages nobody runs on,
        `running`: requests that run.

        At least the last token is computed.
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
        """Give up idle blocks and states beyond the pages that nobody runs on."""
        for thing in self.idle.cut(free):
            if self.host_blocks and not isinstance(thing, tuple):
                self.host[thing] = None
        while len(self.host) > self.host_blocks:
            self.host.popitem(last=False)

    def loaded(self) -> int:
        """Tokens copied back from the host since last asked."""
        copied, self.copied = self.copied, 0
        return copied
