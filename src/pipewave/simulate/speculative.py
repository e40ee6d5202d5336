"""Speculative decoding as a deployment states it: who drafts, how many tokens, and how many of them are accepted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from pipewave.errors import BadInput, MissingField
from pipewave.files import packaged
from pipewave.models.spec import ModelSpec
from pipewave.software.recorded import ACCEPTANCE, acceptance_range
from pipewave.software.recorded import acceptance as usual

METHODS = ("mtp", "eagle3", "ngram", "draft")
ALIASES = {word: method for method in METHODS for word in packaged.shared(ACCEPTANCE)[method]["also"]}
HEADS_TOO = ("eagle",)  # words for a model's own heads, where it has some (SGLang's EAGLE; its EAGLE3 is never those)
NAMES = ("method", "tokens", "acceptance", "model")
MOST = 64


@dataclass(frozen=True, slots=True)
class Speculative:
    """`tokens` drafted a step; `accepted[i]`: probability that draft i is accepted when those before it were.

    model: the draft model of method `draft`. rates: acceptance of positions, the last one for those that follow, where
    nothing said how many tokens are drafted. assumed: nothing said how many are accepted; by models of model_type.
    heads_too: the word for the method also names heads that a model brings.
    """

    method: str
    tokens: int
    accepted: tuple[float, ...]
    model: str | None = None
    rates: tuple[float, ...] = field(default=(), compare=False)
    assumed: bool = False
    model_type: str = ""
    heads_too: bool = False

    @property
    def mean(self) -> float:
        """Tokens a step makes on average: 1 + a₁ + a₁a₂ + …, for equal a: (1 − a^(k+1)) / (1 − a)."""
        return 1.0 + sum(accumulate(self.accepted, lambda a, b: a * b))

    @property
    def spread(self) -> float:
        """Half the 90 % interval of the logarithm of `mean`: 0 where the acceptance was given."""
        if not self.assumed:
            return 0.0
        rates = acceptance_range(self.method, self.model_type)
        least, most = (replace(self, accepted=(rate,) * self.tokens).mean for rate in rates)
        return 0.5 * math.log(most / least)

    def by(self, model: ModelSpec) -> Speculative:
        """The same by this model: by its own heads where the word means these and it has some, and with what is usual
        for it where nothing said how many are accepted.
        """
        how = replace(self, method="mtp", heads_too=False) if self.heads_too and model.mtp_heads else self
        if not how.assumed:
            return how
        rates = usual(how.method, model.model_type)
        left_open = rates if how.rates else ()
        return replace(how, accepted=_spread(rates, how.tokens), rates=left_open, model_type=model.model_type)

    def drafting(self, tokens: int) -> Speculative:
        """The same with so many tokens drafted, where nothing said how many."""
        return replace(self, tokens=tokens, accepted=_spread(self.rates, tokens)) if self.rates else self

    @property
    def verified(self) -> int:
        """Tokens of a request that a step verifies: the drafts, and the one before them."""
        return self.tokens + 1


NONE = Speculative("none", 0, ())  # said to draft nothing, where deployments of its kind do


def of(given: Any) -> Speculative:
    """From `method=mtp,tokens=3,acceptance=0.8`, a method's name, or a mapping. Raises BadInput or MissingField.

    acceptance: one number for all positions, or one a position (in text separated by `/`).
    """
    if isinstance(given, Speculative):
        return given
    said = _words(given) if isinstance(given, str) else given
    if not isinstance(said, Mapping) or not set(said) <= set(NAMES):
        raise _bad(f"{given!r}: give {', '.join(NAMES)}, such as method=mtp,tokens=3,acceptance=0.8")
    word = str(said.get("method", "")).lower()
    method = ALIASES.get(word, "mtp" if word.endswith("_mtp") else word)  # vLLM: qwen3_next_mtp
    if method not in METHODS:
        raise _bad(f"method = {said.get('method')!r}: must be one of {', '.join(METHODS)}")
    if method == "draft" and not said.get("model"):
        raise MissingField(
            "speculative: method draft needs a model: the name or folder of the draft model", field="speculative"
        )
    tokens, rates = _tokens(said.get("tokens", 1 if method == "mtp" else 3)), _rates(said.get("acceptance"), method)
    left_open = () if "tokens" in said else rates
    assumed = said.get("acceptance") is None
    accepted, heads_too = _spread(rates, tokens), word in HEADS_TOO
    return Speculative(method, tokens, accepted, said.get("model"), left_open, assumed, heads_too=heads_too)


def _words(text: str) -> dict[str, str]:
    """The parts of name=value,name=value; a word by itself is the method."""
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    return {
        (name if equals else "method").strip(): (value if equals else name).strip() for name, equals, value in parts
    }


def _tokens(given: Any) -> int:
    try:
        tokens = int(given)
    except (TypeError, ValueError, OverflowError):
        tokens = 0
    if not 1 <= tokens <= MOST or isinstance(given, bool):
        raise _bad(f"tokens = {given!r}: must be an integer from 1 to {MOST}")
    return tokens


def _rates(given: Any, method: str) -> tuple[float, ...]:
    """Probabilities as given, or as usual; a list ends with the value that further positions take."""
    if given is None:
        given = usual(method)
    listed = given.split("/") if isinstance(given, str) else given if isinstance(given, (list, tuple)) else [given]
    try:
        rates = [float(rate) for rate in listed]
    except (TypeError, ValueError, OverflowError):
        rates = []
    if not rates or not all(math.isfinite(rate) and 0 <= rate <= 1 for rate in rates):
        raise _bad(f"acceptance = {given!r}: must be from 0 to 1, one for all positions or one a position")
    return tuple(rates)


def _spread(rates: tuple[float, ...], tokens: int) -> tuple[float, ...]:
    """One probability a position."""
    return (*rates, *[rates[-1]] * tokens)[:tokens]


def _bad(text: str) -> BadInput:
    return BadInput(f"speculative: {text}", field="speculative")
