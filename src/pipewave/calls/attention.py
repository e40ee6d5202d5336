"""Attention over a batch of requests, with a plain or a compressed cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pipewave.calls.fields import KV_DTYPES, Call, check_lengths, documented, of
from pipewave.errors import BadInput


@dataclass(frozen=True, slots=True)
class Attention(Call):
    """Softmax attention of a batch: one entry of `q_lens`, `kv_lens` a request; kv includes the new tokens.

    `window` counts the keys a query may see (null = all); `page_size` null = contiguous KV.
    """

    kernel: ClassVar[str] = "attention"
    q_lens: tuple[int, ...] = of("ints")
    kv_lens: tuple[int, ...] = of("ints")
    heads: int = of("int", high=4096)
    kv_heads: int = of("int", high=4096)
    head_dim: int = of("int", high=1024)
    head_dim_v: int | None = of("int", None, high=1024)
    causal: bool = of("bool", True)
    window: int | None = of("int", None, low=0)
    kv_dtype: str | None = of("str", None, choices=KV_DTYPES)
    page_size: int | None = of("int", None)
    sinks: bool = of("bool", False)
    softcap: float | None = of("float", None, low=0)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_lengths(self.q_lens, self.kv_lens, causal=self.causal)
        if self.heads % self.kv_heads:
            raise BadInput(f"heads = {self.heads}: must be a multiple of kv_heads = {self.kv_heads}", field="heads")


@dataclass(frozen=True, slots=True)
class Mla(Call):
    """Multi-head latent attention; `context` expands K and V, `generation` works on the compressed cache."""

    kernel: ClassVar[str] = "mla"
    q_lens: tuple[int, ...] = of("ints")
    kv_lens: tuple[int, ...] = of("ints")
    heads: int = of("int", high=4096)
    phase: str = of("str", choices=("context", "generation"))
    kv_lora_rank: int = of("int", 512, high=8192)
    rope_dim: int = of("int", 64, high=1024)
    kv_dtype: str | None = of("str", None, choices=KV_DTYPES)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_lengths(self.q_lens, self.kv_lens, causal=True)


def listed(lens: Any) -> Any:
    """A sequence as a tuple; anything else as it is, for the field's rule to refuse by name."""
    plain = isinstance(lens, list | tuple) or (isinstance(lens, Iterable) and not isinstance(lens, str))
    return tuple(lens) if plain else lens


@documented
def attention(
    q_lens: Sequence[int], kv_lens: Sequence[int], heads: int, kv_heads: int, head_dim: int = 128, **options: Any
) -> Attention:
    """Softmax attention over a batch of requests.

    Args:
        q_lens: new tokens of each request, [request].
        kv_lens: keys of each request, new tokens included, [request].
        heads: query heads.
        kv_heads: heads of K and V; must divide `heads`.
        head_dim: elements of a head.
        **options: fields of `Attention`: `causal`, `window` (keys), `page_size` (tokens), `kv_dtype`, `head_dim_v`,
            `sinks`, `softcap`, {options}.

    {call}

    Work: 2·(head_dim + head_dim_v) FLOPs a visible query-key pair and head (`kernels/attention/tasks.py`).
    """
    return Attention(listed(q_lens), listed(kv_lens), heads, kv_heads, head_dim, **options)


@documented
def mla(q_lens: Sequence[int], kv_lens: Sequence[int], heads: int, phase: str, **options: Any) -> Mla:
    """Multi-head latent attention over a batch of requests.

    Args:
        q_lens: new tokens of each request, [request].
        kv_lens: keys of each request, new tokens included, [request].
        heads: query heads of this rank.
        phase: `context` expands K and V from the latent; `generation` works on the latent itself.
        **options: fields of `Mla`: `kv_lora_rank` and `rope_dim` (elements of the latent), `kv_dtype`, {options}.

    {call}

    Work: FLOPs of the visible pairs at the widths of the phase (`kernels/attention/family.py`).
    """
    return Mla(listed(q_lens), listed(kv_lens), heads, phase, **options)
