"""How an engine keeps recurrent states (of delta nets, Mamba, short convolutions) beside its cache of prefixes.

A block of keys and values serves any prompt that begins with it. A state serves only prompts that begin with all the
tokens behind it, so what counts is at which tokens a version keeps one.
"""

from __future__ import annotations

from dataclasses import dataclass

NONE = "none"
BLOCKS, STEPS, ENDS, BRANCHES = "blocks", "steps", "ends", "branches"
PLACES = {
    BLOCKS: "at every block's end",
    STEPS: "where a step's piece of a prompt ends on a block",
    ENDS: "where a step's piece of a prompt ends",
    BRANCHES: "before the end of a step's piece of a prompt, or where prompts part",
}


@dataclass(frozen=True, slots=True)
class StateRule:
    """Where a version keeps states, and what room it gives them.

    keeps: `none`; at `blocks`: every multiple of `tokens`; at `steps`: where a piece of a prompt ends on one, to which
    pieces are cut; at `ends` of pieces wherever they are; at `branches`: the multiple before a piece's end, or where
    the cache knows more of a prompt than it has states for.
    tokens: 0: those of an attention block as large as a state. asked: only where the user asks for a cache of prefixes.
    share: of the cache's memory, a pool of states (0: one pool of pages). each: states that a running request takes;
    room: states without which none is admitted. drafted: states beside one for every drafted token while it drafts.
    serial: nothing is scheduled while a step runs. undrafted: none are kept while tokens are drafted. width: bytes an
    element is stored in (0: those of the model's type).
    """

    keeps: str = NONE
    tokens: int = 0
    asked: bool = False
    share: float = 0.0
    each: int = 1
    room: int = 1
    drafted: int = 0
    serial: bool = False
    undrafted: bool = False
    width: int = 0

    def held(self, prefix_cache: bool | None, drafts: bool) -> StateRule:
        """The rule that holds where a cache of prefixes is wanted, or not, or nothing is said."""
        wanted = (not self.asked if prefix_cache is None else prefix_cache) and not (drafts and self.undrafted)
        unsaid = self.asked and prefix_cache is None
        return (
            self if wanted and self.keeps != NONE else StateRule(asked=unsaid, drafted=self.drafted, width=self.width)
        )


UNKEPT = StateRule()
