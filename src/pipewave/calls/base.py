"""What all kernel calls share: a frozen value whose every field is checked on construction.

A call holds numbers about one launch (or one fused operation) and nothing about a GPU. Sizes are in elements,
`bytes` in bytes. A call that exists is well formed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from inspect import cleandoc
from operator import gt
from typing import Any, ClassVar, TypeVar

from pipewave.calls.fields import of, schema
from pipewave.errors import BadInput

# What the docstrings of all functions that make calls have in common, written once.

COMPLETED = {
    "{options}": "`dtype` (of operands), `stack` (such as `vllm-0.22.1`), `impl`",
    "{call}": cleandoc("""
        Returns:
            The call, for `predict`.

        Raises:
            BadInput: a value that cannot be; the message names the field and what it takes.
            TypeError: an option that is no field.
        """),
}
F = TypeVar("F", bound=Callable[..., Any])


def documented(function: F) -> F:
    """The function with its docstring completed: `{options}` of every call, `{call}`: what it gives and raises."""
    text = cleandoc(function.__doc__ or "")  # none at all under `python -OO`
    for place, shared in COMPLETED.items():
        text = text.replace(place, shared)
    function.__doc__ = text
    return function


DTYPES = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4")
KV_DTYPES = ("bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True)
class Call:
    """What all calls share: operand type, and optionally the software that runs it."""

    kernel: ClassVar[str] = ""
    _: KW_ONLY
    dtype: str = of("str", "bf16", choices=DTYPES)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)

    def __post_init__(self) -> None:
        known = schema(type(self))
        for value, (name, check, default) in zip(known.values(self), known.each, strict=True):
            if value is not default:  # defaults are valid
                checked = check(name, value)
                if checked is not value:
                    object.__setattr__(self, name, checked)
        self.check()

    def check(self) -> None:
        """Raise BadInput when fields contradict one another."""

    def to_dict(self) -> dict[str, Any]:
        """The call as a case of the contract (without `id` and `gpu`)."""
        given = {name: getattr(self, name) for name in schema(type(self)).rules}
        return {"kernel": self.kernel} | {name: value for name, value in given.items() if value is not None}


def check_lengths(q_lens: Sequence[int], kv_lens: Sequence[int], *, causal: bool) -> None:
    """Raise BadInput unless there is one kv length per query length, none shorter than its new tokens when causal."""
    if len(q_lens) != len(kv_lens):
        raise BadInput(
            f"kv_lens has {len(kv_lens)} entries: must have as many as q_lens ({len(q_lens)})", field="kv_lens"
        )
    if causal and any(map(gt, q_lens, kv_lens)):
        raise BadInput("kv_lens includes the new tokens: each entry must be at least its q_len", field="kv_lens")
