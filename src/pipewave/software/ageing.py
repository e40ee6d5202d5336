"""How answers age: what another version than the one asked for adds to the interval of its rows.

`ageing.json` holds the law, fitted by `python -m train.ageing --write` on versions asked from those before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipewave.files import packaged
from pipewave.software.engine_rules import releases
from pipewave.software.stacks import framework, version

AGEING = Path(__file__).with_name("ageing.json")
MONTH = 30.44  # days


class Age(NamedTuple):
    """How much older the rows of one version are than another version: releases after it, and months between."""

    releases: int
    months: float

    def __str__(self) -> str:
        some = "release" if self.releases == 1 else "releases"
        return f"{self.releases} {some} and {self.months:.1f} months older"

    def factor(self, net: str) -> float:
        """By how much a net's interval of a version a release away is to be widened, by the law of ageing."""
        return float(min(1.0 + _of_net("rates", net) * self.months, packaged.shared(AGEING)["most"]))


def other_kernels(net: str) -> float:
    """Half-width in log time, at least, of answers of a net by a version that ran other kernels than the one asked."""
    return _of_net("other_kernels", net)


def _of_net(part: str, net: str) -> float:
    law: Mapping[str, float] = packaged.shared(AGEING)[part]
    return law.get(net, law["other"])


@cache
def age(answered: str, asked: str) -> Age | None:
    """How much older the stack that answers is than the one asked for (unlisted: as the last before), or None."""
    days = {version(f"{framework(asked)}-{name}"): day for name, day in releases(framework(asked))["versions"].items()}
    two = [max((one for one in days if one <= version(stack)), default=None) for stack in (answered, asked)]
    if framework(answered) != framework(asked) or two[0] is None or two[1] is None or two[0] >= two[1]:
        return None
    passed = (date.fromisoformat(days[two[1]]) - date.fromisoformat(days[two[0]])).days / MONTH
    return Age(sum(two[0] < one <= two[1] for one in days), passed)
