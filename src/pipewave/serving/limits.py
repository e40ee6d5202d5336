"""What an engine's scheduler may put into one step, and what its cache holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Scheduler limits of one engine: tokens a step, requests at once, cache pages, tokens a page.

    mixed: decode tokens ride along with prompts. chunks: prompts may be cut. prompt_tokens: most prompt tokens of a
    step (0: whatever fits). reserve, reserve_least: share of the outputs still to come that must fit the cache when a
    request is admitted, at first and once settled. wait_steps, wait_share: while others decode, prompts wait so many
    steps for company, or until a step holds this share of its tokens.
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

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens`."""
        return -(-tokens // self.page_size)
