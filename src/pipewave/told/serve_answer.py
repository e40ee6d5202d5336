"""The typed answer of `pw.serve`: means of one deployment under requests, with 90 % intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pipewave.results import Named


@dataclass(frozen=True, slots=True, eq=False)
class ServeAnswer(Named):
    """Means over requests as their clients see them; None where nothing tells, as TPOT of outputs of one token.

    It is read like the JSON of `serve --cases`, too: `answer["tpot_ms"]`.
    """

    ttft_ms: float
    e2e_ms: float
    output_tokens_per_s: float
    tpot_ms: float | None = None
    ttft_ms_low: float | None = None
    ttft_ms_high: float | None = None
    tpot_ms_low: float | None = None
    tpot_ms_high: float | None = None
    e2e_ms_low: float | None = None
    e2e_ms_high: float | None = None
    output_tokens_per_s_low: float | None = None
    output_tokens_per_s_high: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    power_w: float | None = None  # mean of one GPU over the run
    energy_j_per_output_token: float | None = None
    kv_tokens: int | None = None  # that the cache holds
    verdict: str | None = None  # steady, saturated, or too short a run to tell
    traffic: str | None = None
    basis: Mapping[str, float] | None = None  # shares of step time by evidence
    notes: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # what else the answer says, such as intervals of watts

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> ServeAnswer:
        """From the answer of a case."""
        known = {one.name for one in fields(cls)} - {"notes", "more"}
        more = {name: value for name, value in answer.items() if name not in known | {"notes"}}
        said = {name: value for name, value in answer.items() if name in known}
        return cls(**said, notes=tuple(answer.get("notes", ())), more=more)

    def to_dict(self) -> dict[str, Any]:
        """The answer of the contract, less its id."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("notes", "more")}
        said = {name: value for name, value in told.items() if value is not None}
        return said | dict(self.more) | {"notes": list(self.notes)}
