"""Which steps are timed: prompts that arrive in an idle engine, and staircases of decoding requests."""

from __future__ import annotations

from dataclasses import dataclass

from lab.vllm_engine.points import PROMPT_BATCHES, PROMPTS

STAIRS = ((1024, (256, 128, 64, 32, 8, 1)), (4096, (64, 32, 8, 1)), (16384, (8, 1)))
STAGE_STEPS = 36  # decode steps at each batch size of a staircase
SHORT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Arrival:
    """`batch` prompts of `input_len` tokens that arrive together, `times` times."""

    batch: int
    input_len: int

    @property
    def times(self) -> int:
        """Repetitions: the first compiles and is dropped."""
        return 7 if self.batch * self.input_len <= SHORT_TOKENS else 4


@dataclass(frozen=True, slots=True)
class Staircase:
    """Requests with `context` tokens of prompt that decode together and leave in groups, so that one prefill serves
    every batch size of `batches` (falling).
    """

    context: int
    batches: tuple[int, ...]

    def new_tokens(self) -> list[int]:
        """Tokens that each request makes: the last `batches[i]` of them stay for i + 1 stages."""
        stays = [sum(1 for size in self.batches if index < size) for index in range(self.batches[0])]
        return [1 + STAGE_STEPS * stages for stages in stays]


def arrivals() -> tuple[Arrival, ...]:
    """Prefill points, most telling first."""
    single = tuple(Arrival(1, length) for length in PROMPTS)
    return single + tuple(Arrival(batch, length) for batch, length in PROMPT_BATCHES)


def staircases(kv_tokens: int) -> tuple[Staircase, ...]:
    """Decode points whose requests fit the KV cache with room to spare; sizes that do not are left out."""
    out = []
    for context, sizes in STAIRS:
        longest = context + STAGE_STEPS * len(sizes) + 1
        fitting = tuple(size for size in sizes if size * longest <= 0.8 * kv_tokens)
        if fitting:
            out.append(Staircase(context, fitting))
    return tuple(out)
