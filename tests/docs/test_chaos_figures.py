"""What pages say of `make chaos` is what its last run found."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOUND: dict[str, Any] = json.loads((ROOT / "qa" / "results" / "chaos.json").read_text())


MISSED = {"order"}  # since answers are not repaired after the networks; docs/how-it-works.md says by how much


def test_every_part_of_the_last_run_holds_but_what_pages_name() -> None:
    assert {"inputs", "flips", "order", "kills", "users", "memory", "silent"} == set(FOUND)
    assert {name for name, part in FOUND.items() if not part["holds"]} == MISSED


def test_the_design_page_counts_what_was_tried() -> None:
    text = " ".join((ROOT / "docs" / "design.md").read_text().split())
    inputs = [part for name, part in FOUND["inputs"].items() if name != "holds"]
    assert f"{sum(part['inputs'] for part in inputs):,} wrong inputs" in text
    assert f"flips {FOUND['flips']['flips']:,} bytes" in text
    assert f"kills {sum(part['kills'] for name, part in FOUND['kills'].items() if name != 'holds')} writers" in text
    assert sum(part[name] for part in inputs for name in ("hang", "nan", "traceback")) == 0
    assert FOUND["flips"]["noticed"] == FOUND["flips"]["flips"]


def test_the_walk_states_how_many_pairs_are_out_of_order() -> None:
    text = " ".join((ROOT / "docs" / "how-it-works.md").read_text().split())
    found = re.search(r"(\d+) of ([\d,]+) \(([\d.]+) %\) by more than 2 %", text)
    assert found is not None
    order = FOUND["order"]
    assert (int(found[1]), int(found[2].replace(",", ""))) == (order["out_of_order"], order["pairs"])
    assert float(found[3]) == round(100 * order["out_of_order"] / order["pairs"], 1)
