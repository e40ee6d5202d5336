"""What an engine's scheduler keeps to: tokens and requests of a step, pages of the cache, and when prompts wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.simulate.states import Kept
from pipewave.simulate.traffic import Ints


@dataclass(frozen=True, slots=True)
class Limits:
    """Scheduler limits of one engine: tokens a step, requests at once, cache pages, tokens a page.

    mixed: decode tokens ride along with prompts. chunks: prompts may be cut. prompt_tokens: most prompt tokens of a
    step (0: whatever fits). reserve, reserve_least: share of the outputs still to come that must fit the cache when a
    request is admitted, at first and once settled. wait_steps, wait_share: while others decode, prompts wait so many
    steps for company, or until a step holds this share of its tokens. caches: prefixes of prompts are found again;
    state_pages: what a request's recurrent states take beside its tokens; kept: how they are kept for other requests
    (None: the model has none). compile_s: what a step with prompts waits for a kernel to be compiled where none has
    held as many tokens before.
    """

    tokens: int
    requests: int
    pages: int
    page_size: int
    mixed: bool
    chunks: bool = True
    prompt_tokens: int = 0
    reserve: float = 0.0
    reserve_least: float = 0.0
    host_pages: int = 0
    load_s: float = 0.0
    wait_steps: int = 0
    wait_share: float = 0.0
    caches: bool = True
    state_pages: int = 0
    kept: Kept | None = None
    compile_s: float = 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """What is said of a server that compiles while it serves."""
        each = f"each number of prompt tokens that a step has for the first time waits {1e3 * self.compile_s:.0f} ms"
        return (f"{each} for a kernel to be compiled, as on a server just started",) if self.compile_s else ()

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` take."""
        return -(-tokens // self.page_size)

    def held(self, tokens: int) -> int:
        """Pages of a request whose cache has so many tokens, its states' among them."""
        return self.pages_for(tokens) + self.state_pages

    def reached(self, found: Ints, *, parting: bool) -> Ints:
        """What can be used of prefixes of which so many tokens are cached; `parting`: prompts part where they end."""
        if not self.caches:
            return np.zeros_like(found)
        return found if self.kept is None else self.kept.reached(found, self.tokens if parting else 0)
