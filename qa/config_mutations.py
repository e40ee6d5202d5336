"""Configs with fields removed or set to null, read here and by transformers: nothing may disagree in silence.

It needs transformers (no torch) beside pipewave:

    python -m qa.config_mutations CONFIGS... --count 5000

Each mutation must be refused here, be an error there, or give the model that the config gives once transformers' own
values of all fields that it leaves out are written into it; else a note has to name the field.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from facts.transformers_defaults import LEFT_OUT, REFUSED, SECTIONS, fields_read
from pipewave.errors import PipewaveError
from pipewave.models.config import parse
from pipewave.models.families import DEFAULTS
from pipewave.models.spec import ModelSpec

MOST_CHANGES = 3
REMOVED = 0.6  # of changed fields; the rest become null
Config = dict[str, Any]


def mutated(config: Config, read: set[str], dice: random.Random) -> tuple[Config, list[str]]:
    """A copy with up to three fields removed or null, and their names."""
    found, changed = copy.deepcopy(config), []
    for _ in range(dice.randint(1, MOST_CHANGES)):
        holder = dice.choice([found, *(found[name] for name in SECTIONS if isinstance(found.get(name), dict))])
        names = [name for name in holder if name in read - LEFT_OUT - {"torch_dtype"}]
        if names:
            changed.append(dice.choice(names))
            if dice.random() < REMOVED:
                del holder[changed[-1]]
            else:
                holder[changed[-1]] = None
    return found, changed


def filled(config: Config, classes: dict[str, Any]) -> Config:
    """The config with transformers' values of what it leaves out. Raises one of REFUSED where transformers does."""
    made = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    found = _with_values(config, made, classes)
    for name in SECTIONS:
        if isinstance(config.get(name), dict) and hasattr(section := getattr(made, name, None), "model_type"):
            found[name] = _with_values(config[name], section, classes)
    return found


def _with_values(stated: Config, made: Any, classes: dict[str, Any]) -> Config:
    row = classes.get(made.model_type, {"defaults": {}})
    given = {row.get("synonyms", {}).get(name, name) for name, value in stated.items() if value is not None}
    found = dict(stated)
    for name in set(row["defaults"]) - given:
        try:
            value = getattr(made, name, None)
        except RuntimeError:  # values that differ from layer to layer have no one name
            continue
        if isinstance(value, (bool, int, float, str, list)):
            found[name] = value
    return found


def read(config: Config) -> ModelSpec | None:
    """The model, None where the config is refused."""
    try:
        return parse(config, "mutated")
    except PipewaveError:
        return None


def verdict(config: Config, changed: list[str], classes: dict[str, Any]) -> str:
    """`refused` here, an `error` there, `same`, `noted`, or `silent`."""
    model = read(config)
    if model is None:
        return "refused"
    try:
        other = read(filled(config, classes))
    except REFUSED:
        return "error"
    bare, other = replace(model, notes=()), other and replace(other, notes=())
    if bare == other:
        return "same"
    tied = other is not None and replace(other, tied=model.tied) == bare  # whatever was changed, a note tells of it
    named = [*changed, *(["tie_word_embeddings"] if tied else [])]
    return "noted" if any(name in note for name in named for note in model.notes) else "silent"


def main(argv: list[str] | None = None) -> int:
    """Print how many mutations end how; 1 where one is silent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    classes = json.loads(DEFAULTS.read_text("utf-8"))["types"]
    files = [
        p
        for folder in options.folders
        for p in sorted([*Path(folder).glob("*/config.json"), *Path(folder).glob("*.json")])
    ]
    configs = [c for c in (json.loads(path.read_text("utf-8")) for path in files) if c.get("model_type") in classes]
    dice, names, ends = random.Random(options.seed), fields_read(), Counter[str]()
    for _ in range(options.count):
        config, changed = mutated(dice.choice(configs), names, dice)
        ends[end := verdict(config, changed, classes)] += 1
        if end == "silent":
            sys.stdout.write(f"{config['model_type']}: {changed}\n")
    sys.stdout.write(f"{dict(ends)}\n")
    return 1 if ends["silent"] else 0


if __name__ == "__main__":
    sys.exit(main())
