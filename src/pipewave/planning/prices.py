"""What a GPU costs an hour and its energy at the meter: a dated table, the user's own prices, or a bought GPU.

One law for all of them, in `Price.at`:

    USD an hour = rent, or purchase / (years × 8,766 h × utilisation),  + watts × PUE × USD a kWh

Hours in which a bought GPU does not work bear on the others by their share of the purchase; they draw nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path

from pipewave.calls.fields import is_number
from pipewave.errors import BadInput, MissingField, UnknownGPU
from pipewave.files import packaged
from pipewave.gpus import find

FILE = Path(__file__).parent.parent / "data" / "prices.json"
YEAR_H = 8766.0
MWH_J = 3.6e9
ANY = "usd"  # names the purchase of every GPU that has none of its own


@dataclass(frozen=True, slots=True)
class Price:
    """USD per GPU and hour, whose price it is, of when, and whether it was read rather than recalled; and, of a bought
    GPU, USD of the kWh that its board draws, losses of the building (PUE) among them.
    """

    gpu: str
    usd_per_hour: float
    provider: str
    date: str
    verified: bool
    usd_per_kwh: float = 0.0

    def at(self, watts: float) -> float:
        """USD an hour while the board draws so many watts."""
        return self.usd_per_hour + 1e-3 * watts * self.usd_per_kwh


@dataclass(frozen=True, slots=True)
class Owned:
    """GPUs that are bought. Purchases in USD, a GPU with its share of host and network, by name; `usd` of any other."""

    years: float  # of use
    usd_per_kwh: float
    purchases: Mapping[str, float] = field(default_factory=dict)
    pue: float = 1.0  # energy at the meter over that of the boards
    utilisation: float = 1.0  # share of the hours that they work

    def __post_init__(self) -> None:
        numbers = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "purchases"}
        least = {"usd_per_kwh": 0.0, "pue": 1.0}
        for name, value in (numbers | dict(self.purchases)).items():
            low, high = least.get(name, 1e-6), 1.0 if name == "utilisation" else 1e9
            if not (is_number(value) and low <= value <= high):
                raise BadInput(f"owned: {name} = {value!r}: must be from {low:g} to {high:g}", field="owned")
        if not self.purchases:
            raise MissingField("owned: say what a GPU costs to buy: usd=30000, or by name H200=32000", field="owned")

    @classmethod
    def of(cls, said: Owned | str | Mapping[str, float] | None) -> Owned | None:
        """As given, or read from `H200=32000,years=4,usd_per_kwh=0.08,pue=1.2,utilisation=0.8`. Raises BadInput."""
        if said is None or isinstance(said, Owned):
            return said
        if not isinstance(said, (str, Mapping)):
            raise BadInput(f"owned = {said!r}: must be words such as H200=32000,years=4, or a dict", field="owned")
        given = dict(number(word, "owned") for word in said.split(",")) if isinstance(said, str) else dict(said)
        known = {one.name: given.pop(one.name) for one in fields(cls) if one.name in given}
        if missing := [name for name in ("years", "usd_per_kwh") if name not in known]:
            raise MissingField(f"owned: {missing[0]} is missing: years=4,usd_per_kwh=0.08", field="owned")
        return cls(purchases={one if one == ANY else _named(one, "owned"): usd for one, usd in given.items()}, **known)

    def price(self, gpu: str) -> Price | None:
        """What an hour of a GPU costs its owner; None where its purchase is not known."""
        usd = self.purchases.get(gpu, self.purchases.get(ANY))
        if usd is None:
            return None
        capital = usd / (self.years * YEAR_H * self.utilisation)
        return Price(gpu, capital, "owned", "", verified=True, usd_per_kwh=self.pue * self.usd_per_kwh)


@dataclass(frozen=True, slots=True)
class Meter:
    """Energy at the meter: that of the boards times `pue`; and grams of CO₂ that the grid emits for a kWh, if said."""

    pue: float = 1.0
    grid_g_per_kwh: float | None = None

    def __post_init__(self) -> None:
        grid = self.grid_g_per_kwh
        if not (grid is None or (is_number(grid) and (grid == 0 or 1 <= grid <= 5000))):
            raise BadInput(f"grid = {grid!r}: must be 0, or from 1 to 5000 grams of CO2 a kWh", field="grid")

    def per_token(self, joules: float) -> dict[str, float]:
        """Tokens a MWh, and kg of CO₂ a million tokens, where boards take so many joules for one."""
        found = {"tokens_per_mwh": MWH_J / (joules * self.pue)}
        if self.grid_g_per_kwh is not None:
            found["kg_co2_per_million_tokens"] = 1e6 * self.grid_g_per_kwh / found["tokens_per_mwh"]
        return found


AT_BOARDS = Meter()


def cost(
    gpu: str,
    *,
    gpus: int,
    power_w: float,
    output_tokens_per_s: float,
    usd_per_hour: float | None = None,
    owned: Owned | str | Mapping[str, float] | None = None,
    grid_g_per_kwh: float | None = None,
) -> dict[str, float]:
    """What output tokens cost in USD, energy and CO₂.

        pw.cost("H200", gpus=1, power_w=600, output_tokens_per_s=4000, grid_g_per_kwh=380)

    Args:
        gpu: its name.
        gpus: how many of them work.
        power_w: mean watts of the board of one.
        output_tokens_per_s: of all together.
        usd_per_hour: rent of a GPU; the shipped price by default.
        owned: bought ones instead: USD of a GPU by name (`usd`: any), `years`, `usd_per_kwh`, `pue`, `utilisation`.
        grid_g_per_kwh: grams of CO₂ that the grid emits for a kWh.

    Returns:
        `usd_per_hour` and `usd_per_million_tokens` (output tokens; where a price is known), `tokens_per_mwh`, and
        `kg_co2_per_million_tokens` (where the grid is said); energy at the meter where `owned` has a PUE.

    Raises:
        UnknownGPU, MissingField, BadInput: a GPU or number that is missing or cannot be.
    """
    bought = Owned.of(owned)
    meter = Meter(bought.pue if bought else 1.0, grid_g_per_kwh)
    for name, value in (("gpus", gpus), ("power_w", power_w), ("output_tokens_per_s", output_tokens_per_s)):
        if not (is_number(value) and 0 < value < 1e12):
            raise BadInput(f"{name} = {value!r}: must be above 0", field=name)
    price = prices({} if usd_per_hour is None else {gpu: usd_per_hour}, bought, [gpu]).get(find(gpu).name)
    money: dict[str, float] = {}
    if price is not None:
        usd = gpus * price.at(power_w)
        money = {"usd_per_hour": usd, "usd_per_million_tokens": usd / output_tokens_per_s / 3.6e-3}
    return money | meter.per_token(gpus * power_w / output_tokens_per_s)


@cache
def table() -> dict[str, Price]:
    """The shipped prices by GPU name."""
    rows = packaged.document(FILE)["rows"]
    return {row["gpu"]: Price(**row) for row in rows}


def prices(
    own: Mapping[str, float] | None = None, owned: Owned | None = None, gpus: Sequence[str] = ()
) -> dict[str, Price]:
    """Shipped prices, over them those of bought GPUs, over both the caller's rents (USD an hour by any name of a GPU).

    Where GPUs are bought, others than those that have a purchase or a rent of the caller's have no price.
    """
    mine = {}
    for name, usd in (own or {}).items():
        if not (is_number(usd) and 0 < usd < 1e6):
            raise BadInput(f"price of {name} = {usd!r}: must be a positive number of USD per hour", field="price")
        gpu = _named(name, "price")
        mine[gpu] = Price(gpu, float(usd), "yours", "", verified=True)
    known = {find(gpu).name for gpu in gpus}
    if owned and (both := [gpu for gpu in mine if gpu in owned.purchases or known == {gpu}]):
        raise BadInput(f"{both[0]} has a rent (price) and a purchase (owned): leave one out", field="price")
    bought = {gpu: price for gpu in known if (price := owned.price(gpu))} if owned else table()
    return {**bought, **mine}


def number(text: str, field: str) -> tuple[str, float]:
    """`H100=2.5` as a name and a number. Raises BadInput."""
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError as problem:
        raise BadInput(f"{field} = {text!r}: must look like H100=2.5", field=field) from problem


def _named(name: str, field: str) -> str:
    try:
        return find(name).name
    except UnknownGPU as problem:
        raise UnknownGPU(problem.message, field=field) from problem
