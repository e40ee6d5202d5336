"""Which steps are timed, most telling first, so that a run cut short by its budget still covers the range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PROMPTS = (512, 2048, 8192, 128, 16384, 1024, 4096, 256)
PROMPT_BATCHES = ((4, 2048), (8, 512), (16, 128), (2, 4096), (4, 512), (32, 256))
BATCHES = (1, 32, 8, 128, 256, 4, 64, 2, 16)
FIRST_CONTEXTS = {4096: (1, 16, 64), 16384: (1, 8, 32), 256: (1, 32, 256)}
LARGEST_CONTEXT_TOKENS = 1 << 20
TRACED_PROMPT, TRACED_BATCH, TRACED_CONTEXT = 2048, 32, 1024


@dataclass(frozen=True, slots=True)
class Point:
    """A kind of step. `batch` requests prefill `input_len` tokens each, or decode at about `context` tokens of KV;
    in a mixed step one request prefills `input_len` tokens while `batch` decode.

    `kv`: "seeded" requests are admitted as though their prompt had been computed, over a cache of random values;
    "computed" ones really prefill first. The kernels of a decode step are the same.
    """

    phase: str
    batch: int
    input_len: int = 0
    context: int = 0
    kv: str = "computed"

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that the step needs."""
        return self.batch * (self.context if self.context else self.input_len) + (self.input_len if self.context else 0)


def prefill(batch: int, input_len: int) -> Point:
    """`batch` prompts that arrive together in an idle engine."""
    return Point("prefill", batch, input_len)


def decode(batch: int, context: int, kv: str = "seeded") -> Point:
    """`batch` requests that decode together."""
    return Point("decode", batch, context=context, kv=kv)


def mixed(batch: int, context: int, input_len: int) -> Point:
    """One prompt that arrives while `batch` requests decode."""
    return Point("mixed", batch, input_len, context, "seeded")


def every() -> tuple[Point, ...]:
    """All points, in the order in which they are timed."""
    first = [prefill(1, length) for length in PROMPTS] + [decode(batch, 1024) for batch in BATCHES]
    second = [decode(batch, context) for context, batches in FIRST_CONTEXTS.items() for batch in batches]
    batched = [prefill(batch, length) for batch, length in PROMPT_BATCHES]
    checks = [decode(32, 1024, "computed"), decode(4, 4096, "computed")]
    third = [decode(batch, context) for context in (256, 4096, 16384) for batch in BATCHES]
    last = [mixed(32, 1024, length) for length in (512, 2048, 8160)] + [mixed(128, 1024, 2048)]
    return _distinct([*first, *second, *batched, *checks, *third, *last])


def decoding() -> tuple[Point, ...]:
    """Decode steps alone, the usual context first."""
    return tuple(decode(batch, context) for context in (1024, 4096) for batch in BATCHES)


def kinds() -> tuple[Point, ...]:
    """Points for models whose caches hold more than keys and values, so that nothing is seeded; two come twice."""
    prompts = [prefill(1, length) for length in (512, 2048, 8192)]
    decodes = [decode(batch, context, "computed") for context in (1024, 8192) for batch in (1, 16, 64)]
    return (*prompts, *decodes, prefill(4, 2048), prefill(1, 128), prompts[1], decodes[1])


def traced() -> tuple[Point, ...]:
    """The two steps of which traces are recorded."""
    return prefill(1, TRACED_PROMPT), decode(TRACED_BATCH, TRACED_CONTEXT)


def traced_kinds() -> tuple[Point, ...]:
    """Steps of which traces are recorded where nothing is seeded: prompts that the GPU bounds, and a decode step."""
    return prefill(1, 8192), prefill(4, 2048), decode(16, TRACED_CONTEXT, "computed")


def _distinct(points: Iterable[Point]) -> tuple[Point, ...]:
    return tuple(point for point in dict.fromkeys(points) if point.kv_tokens <= LARGEST_CONTEXT_TOKENS)
