"""`python -m train STAGE [--net NAME ...]`: the shipped weights and the held-out tables, from the corpus.

Stages, each reading what the one before wrote under `--runs`:
  rows    corpus → RUNS/<net>/rows.npz, plain.npz (what ceilings learn from), the plans, what the card adds
  fit     train.fit of both plans, on CPU or GPU (numpy, torch, safetensors suffice from here on)
  export  RUNS/<net> → src/pipewave/data/weights, cards included
  tables  RUNS/<net> → train/tables/<net>.json, errors on every kind of split by GPU
  all     the four in order
  ceiling  corpus → the ceiling alone, put beside the weights that ship, and its table
  software  corpus → the record of which software was trained on alone, put into the cards that ship
  versions  RUNS/<net>/rows.npz and the weights that ship → RUNS/weights/<split>: trained further on every version
  unseen  RUNS/<net>/rows.npz → members without a GPU or an architecture, their tables and intervals
  heldout  RUNS/<net> → train/heldout/<net>.npz, a sample of what members said of rows that they never saw
  power    corpus and own loops → src/pipewave/physics/power.json (all nets at once)
  intervals  train/heldout → the intervals of GPUs never seen alone, put into the cards that ship
  refresh  new tables of the corpus → what is concerned by them, weights and intervals (`train.refresh`)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from train.ceilings import main as ceilings
from train.evaluate import main as evaluate
from train.kept import FOLDER, nets
from train.predictions import load_predictions
from train.rows import load

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / ".cache" / "runs"
WEIGHTS = ROOT / "src" / "pipewave" / "data" / "weights"
TABLES = Path(__file__).with_name("tables")


def rows(net: str, options: argparse.Namespace) -> None:
    """Build and save the rows and plans of a net."""
    from train.registry import extra, frame_of, plain, plan, rows_of

    folder = options.runs / net
    folder.mkdir(parents=True, exist_ok=True)
    frame = frame_of(net, options.data)
    built, low = rows_of(net, frame), plain(net, frame)
    built.save(folder / "rows.npz")
    low.save(folder / "plain.npz")
    files = {"net": plan(net, "net", built), "ceiling": plan(net, "ceiling", low), "card": extra(net, built)}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{net}: {len(built):,} rows, {len(built.names)} features", flush=True)


def fit(net: str, options: argparse.Namespace) -> None:
    """Train what the plans ask for."""
    from train.fit import main as train

    folder = options.runs / net
    for kind, rows in (("net", "rows.npz"), ("ceiling", "plain.npz")):
        where = ["--in", str(folder / rows), "--plan", str(folder / f"{kind}.json"), "--out", str(folder / kind)]
        print(net, kind, flush=True)
        train(where + (["--device", options.device] if options.device else []))


def versions(net: str, options: argparse.Namespace) -> None:
    """Train shipped weights further on rows of every version, and beside them members that know nothing of some."""
    from train.export import replace_net
    from train.fit import main as train
    from train.registry import further

    folder, card = options.runs / net, options.weights / f"{net}.json"
    start = (options.start or options.weights) / card.name
    rows = load(folder / "rows.npz")
    plan, run = folder / "versions.json", folder / "versions"
    plan.write_text(json.dumps(further(net, rows, start), indent=1) + "\n", encoding="utf-8")
    train(["--in", str(folder / "rows.npz"), "--plan", str(plan), "--out", str(run), "--start", str(start)])
    extra = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    for split in json.loads(plan.read_text(encoding="utf-8"))["splits"]:
        print(replace_net(card, rows, run, options.runs / "weights" / split, split=split, **extra), flush=True)


def unseen(net: str, options: argparse.Namespace) -> None:
    """Train members without a GPU or an architecture; put their intervals into the card that ships."""
    from train.export import replace_unseen
    from train.fit import main as train
    from train.registry import unseen as planned

    folder, card = options.runs / net, options.weights / f"{net}.json"
    rows, plan, run = load(folder / "rows.npz"), folder / "unseen.json", folder / "unseen"
    plan.write_text(json.dumps(planned(net, rows, card), indent=1) + "\n", encoding="utf-8")
    device = ["--device", options.device] if options.device else []
    train(["--in", str(folder / "rows.npz"), "--plan", str(plan), "--out", str(run), *device])
    print(replace_unseen(card, rows, load_predictions(run)), flush=True)
    _tables(net, folder / "rows.npz", run, options.tables, "--add")


def export(net: str, options: argparse.Namespace) -> None:
    """Write weights and card."""
    from train.export import export as write

    folder = options.runs / net
    extra = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    low = {"ceiling": folder / "ceiling", "ceiling_rows": load(folder / "plain.npz")}
    has_low = (folder / "ceiling").is_dir()
    print(write(net, load(folder / "rows.npz"), folder / "net", options.weights, **(low if has_low else {}), **extra))
    _not_knowing(net, options, folder / "net", extra)


def _not_knowing(net: str, options: argparse.Namespace, run: Path, extra: Mapping[str, Any]) -> None:
    """Weights of a run's members that do not know some versions, for `python -m train.software`."""
    from train.export import replace_net

    rows, splits = load(options.runs / net / "rows.npz"), json.loads((run / "log.json").read_text(encoding="utf-8"))
    for split in (name for name in splits["plan"]["splits"] if name.startswith("ver:")):
        card = options.weights / f"{net}.json"
        print(replace_net(card, rows, run, options.runs / "weights" / split, split=split, **extra), flush=True)


def ceiling(net: str, options: argparse.Namespace) -> None:
    """Train the ceiling anew and put it beside the net that ships."""
    from train.export import replace_ceiling
    from train.fit import main as train
    from train.registry import frame_of, plain, plan

    folder = options.runs / net
    folder.mkdir(parents=True, exist_ok=True)
    given, wanted, run = (folder / part for part in ("plain.npz", "ceiling.json", "ceiling"))
    rows = plain(net, frame_of(net, options.data))
    rows.save(given)
    wanted.write_text(json.dumps(plan(net, "ceiling", rows), indent=1) + "\n", encoding="utf-8")
    train(["--in", str(given), "--plan", str(wanted), "--out", str(run)])
    print(replace_ceiling(options.weights / f"{net}.json", run, rows), flush=True)
    ceilings(["--in", str(given), "--run", str(run), "--json", str(options.tables / f"{net}.ceiling.json")])


def heldout(net: str, options: argparse.Namespace) -> None:
    """Keep a sample of what members of the net's runs said of rows that they never saw."""
    from train.kept import UNSEEN, as_shipped, save, thinned

    folder, found = options.runs / net, {}
    rows = load(folder / "rows.npz")
    for run in (folder / name for name in ("net", "unseen")):
        found |= load_predictions(run) if (run / "predictions.npz").exists() else {}
    if UNSEEN not in found:
        found[UNSEEN] = as_shipped(options.weights / f"{net}.json", rows)
    print(save(net, *thinned(rows, found), options.heldout), flush=True)


def intervals(net: str, options: argparse.Namespace) -> None:
    """Settle the intervals of GPUs never seen anew and put them into the card that ships."""
    from train.export import replace_unseen
    from train.kept import load as sampled

    print(replace_unseen(options.weights / f"{net}.json", *sampled(net, options.heldout)), flush=True)


def software(net: str, options: argparse.Namespace) -> None:
    """Put the record of the software of a net's rows into the card that ships."""
    from train.export import replace_software
    from train.registry import bare_of, frame_of

    print(replace_software(options.weights / f"{net}.json", bare_of(frame_of(net, options.data))), flush=True)


def tables(net: str, options: argparse.Namespace) -> None:
    """Print the errors by GPU and commit-ready JSON."""
    options.tables.mkdir(exist_ok=True)
    run = options.runs / net
    _tables(net, run / "rows.npz", run / "net", options.tables)
    if (run / "ceiling").is_dir():
        print(f"== {net} ceiling")
        out = ["--json", str(options.tables / f"{net}.ceiling.json")]
        ceilings(["--in", str(run / "plain.npz"), "--run", str(run / "ceiling"), *out])


def _tables(net: str, rows: Path, run: Path, tables: Path, *more: str) -> None:
    """Errors by GPU and type of what a run's members held out, a file for each protocol."""
    counted = ["--where", "counted=yes"] if "counted" in load(rows).columns else []
    for protocol in ("graph", "cold", "profiler_warm"):
        out = ["--json", str(tables / f"{net}.{protocol}.json"), "--by", "gpu,dtype", *more]
        print(f"== {net} {protocol}")
        evaluate(["--in", str(rows), "--run", str(run), "--where", f"protocol={protocol}", *counted, *out])


STAGES: dict[str, Callable[[str, argparse.Namespace], None]] = {
    "rows": rows,
    "fit": fit,
    "export": export,
    "tables": tables,
}
ALONE: dict[str, Callable[[str, argparse.Namespace], None]] = {
    "ceiling": ceiling,
    "heldout": heldout,
    "intervals": intervals,
    "software": software,
    "unseen": unseen,
    "versions": versions,
}


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["power"]:
        from train.power import main as power

        power(given[1:])
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m train", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("stage", choices=[*STAGES, *ALONE, "all", "refresh"])
    parser.add_argument("--net", action="append", help="only these nets")
    parser.add_argument("--data", type=Path, help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("--heldout", type=Path, default=FOLDER, help="samples of held-out rows")
    parser.add_argument(
        "--start", type=Path, help="versions: weights of newest versions to start from (those that ship)"
    )
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    again = parser.add_argument_group("refresh")
    again.add_argument("--stage", dest="stage_of", choices=("frames", "train", "put"), help="one stage of it alone")
    again.add_argument("--steps", type=int, help="steps of nets that are trained on")
    again.add_argument("--seconds", type=float, default=math.inf, help="at most so long a net, its features included")
    again.add_argument("--anyway", action="store_true", help="put nets that make a known version worse, too")
    options = parser.parse_args(argv)
    if options.stage == "refresh":
        from train.refresh import main as refresh

        return refresh(options)
    named = options.net or _default_nets(options)
    for stage in STAGES if options.stage == "all" else [options.stage]:
        for net in named:
            (STAGES | ALONE)[stage](net, options)
    return 0


def _default_nets(options: argparse.Namespace) -> list[str]:
    """All nets, or after the first stage those that have rows, for intervals those with a sample."""
    if options.stage == "intervals":
        return list(nets(options.heldout))
    if options.stage in ("rows", "ceiling", "software", "all"):
        from train.registry import names

        return list(names())
    return sorted(path.parent.name for path in options.runs.glob("*/rows.npz"))


if __name__ == "__main__":
    sys.exit(main())
