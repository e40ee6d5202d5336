"""`python -m train STAGE [--net NAME ...]`: the shipped weights and the held-out tables, from the corpus.

Stages, each reading what the one before wrote under `--runs`:
  rows    corpus → RUNS/<net>/rows.npz, plain.npz (what ceilings learn from), the plans, what the card adds
  fit     train.fit of both plans, on CPU or GPU (no corpus is needed from here on)
  export  RUNS/<net> → src/pipewave/data/weights, cards included
  tables  RUNS/<net> → train/tables/<net>.json, errors on every kind of split by GPU
  all     the four in order
  ceiling  RUNS/<net>/plain.npz → the ceiling alone, put beside the weights that ship, and its table
  versions  RUNS/<net>/rows.npz and the weights that ship → RUNS/weights/<split>: trained further on every version
  unseen  RUNS/<net>/rows.npz → members without a GPU or an architecture, their tables and intervals
  heldout  RUNS/<net> → train/heldout/<net>.npz, a sample of what members said of rows that they never saw
  power    corpus and own loops → src/pipewave/physics/{power,collected}.json (all nets at once)
  intervals  train/heldout → the intervals of GPUs never seen alone, put into the cards that ship
  refresh  new tables of the corpus → what is concerned by them, weights and intervals (`train.refresh`)
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

from train import ceilings, evaluate, export, fit, kept, refresh, registry
from train.cards import RUNS, TABLES, WEIGHTS, read, write
from train.net import nets
from train.rows import Floats, load
from train.run import load_predictions
from train.splits import UNSEEN

PROTOCOLS = ("graph", "cold", "profiler_warm")


def rows(net: str, options: argparse.Namespace) -> None:
    """Build and save the rows and plans of a net."""
    folder = options.runs / net
    frame = nets()[net].rows(net, options.data)
    built, low = registry.rows_of(net, frame), registry.plain(net, frame)
    write(folder / "net.json", registry.plan(net, "net", built))
    write(folder / "ceiling.json", registry.plan(net, "ceiling", low))
    write(folder / "card.json", registry.extra(net, built))
    built.save(folder / "rows.npz")
    low.save(folder / "plain.npz")
    print(f"{net}: {len(built):,} rows, {len(built.names)} features", flush=True)


def fit_both(net: str, options: argparse.Namespace) -> None:
    """Train what the plans ask for."""
    folder = options.runs / net
    for kind, file in (("net", "rows.npz"), ("ceiling", "plain.npz")):
        print(net, kind, flush=True)
        fit.run(load(folder / file), read(folder / f"{kind}.json"), folder / kind, options.device)


def versions(net: str, options: argparse.Namespace) -> None:
    """Train shipped weights further on rows of every version, and beside them members that know nothing of some."""
    folder, card = options.runs / net, options.weights / f"{net}.json"
    start = (options.start or options.weights) / card.name
    known = load(folder / "rows.npz")
    fit.run(known, registry.further(net, known, start), folder / "versions", options.device, start)
    _put_splits(net, options, folder / "versions", ("ship", "ver:"))


def _put_splits(net: str, options: argparse.Namespace, run: Path, kinds: tuple[str, ...]) -> None:
    """Weights of a run's members by split, beside the cards that ship, for `python -m train.software`."""
    folder, known = options.runs / net, load(options.runs / net / "rows.npz")
    for split in (name for name in read(run / "log.json")["plan"]["splits"] if name.startswith(kinds)):
        card, target = options.weights / f"{net}.json", options.runs / "weights" / split
        print(export.replace_net(card, known, run, target, split=split, **read(folder / "card.json")), flush=True)


def unseen(net: str, options: argparse.Namespace) -> None:
    """Train members without a GPU or an architecture; put their intervals into the card that ships."""
    folder, card = options.runs / net, options.weights / f"{net}.json"
    known, run = load(folder / "rows.npz"), folder / "unseen"
    fit.run(known, registry.unseen(net, known, card), run, options.device)
    print(export.replace_unseen(card, known, load_predictions(run)), flush=True)
    _tables(net, options, run)


def put(net: str, options: argparse.Namespace) -> None:
    """Write weights and card."""
    folder = options.runs / net
    low = {"ceiling": folder / "ceiling", "ceiling_rows": load(folder / "plain.npz")}
    extra = read(folder / "card.json") | (low if (folder / "ceiling").is_dir() else {})
    print(export.export(net, load(folder / "rows.npz"), folder / "net", options.weights, **extra))
    _put_splits(net, options, folder / "net", ("ver:",))


def ceiling(net: str, options: argparse.Namespace) -> None:
    """Train the ceiling anew and put it beside the net that ships."""
    folder = options.runs / net
    low = load(folder / "plain.npz")
    fit.run(low, read(folder / "ceiling.json"), folder / "ceiling", options.device)
    print(export.replace_ceiling(options.weights / f"{net}.json", folder / "ceiling", low), flush=True)
    write(options.tables / f"{net}.ceiling.json", ceilings.report(low, folder / "ceiling"))


def heldout(net: str, options: argparse.Namespace) -> None:
    """Keep a sample of what members of the net's runs said of rows that they never saw."""
    folder, found = options.runs / net, dict[str, tuple[Floats, Floats]]()
    known = load(folder / "rows.npz")
    for run in (folder / name for name in ("net", "unseen")):
        found |= load_predictions(run) if (run / "predictions.npz").exists() else {}
    if UNSEEN not in found:
        found[UNSEEN] = kept.as_shipped(options.weights / f"{net}.json", known)
    print(kept.save(net, *kept.thinned(known, found), options.heldout), flush=True)


def intervals(net: str, options: argparse.Namespace) -> None:
    """Settle the intervals of GPUs never seen anew and put them into the card that ships."""
    print(export.replace_unseen(options.weights / f"{net}.json", *kept.load(net, options.heldout)), flush=True)


def tables(net: str, options: argparse.Namespace) -> None:
    """Print the errors by GPU and write them."""
    run = options.runs / net
    _tables(net, options, run / "net")
    if (run / "ceiling").is_dir():
        print(f"== {net} ceiling")
        shares = ceilings.report(load(run / "plain.npz"), run / "ceiling")
        write(options.tables / f"{net}.ceiling.json", shares)


def _tables(net: str, options: argparse.Namespace, run: Path) -> None:
    """Errors by GPU and type of what a run's members held out, a file for each protocol; what its members do not tell
    stays as it was.
    """
    known = load(options.runs / net / "rows.npz")
    counted = ["counted=yes"] if "counted" in known.columns else []
    for protocol in PROTOCOLS:
        print(f"== {net} {protocol}")
        path = options.tables / f"{net}.{protocol}.json"
        found = evaluate.report(known, run, ("gpu", "dtype"), [f"protocol={protocol}", *counted])
        write(path, (read(path) if path.exists() and run.name != "net" else {}) | found)


STAGES: dict[str, Callable[[str, argparse.Namespace], None]] = {
    "rows": rows, "fit": fit_both, "export": put, "tables": tables,
}  # fmt: skip
ALONE = {"ceiling": ceiling, "heldout": heldout, "intervals": intervals, "unseen": unseen, "versions": versions}


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
    parser.add_argument("--heldout", type=Path, default=kept.FOLDER, help="samples of held-out rows")
    parser.add_argument(
        "--start", type=Path, help="versions: weights of newest versions to start from (those that ship)"
    )
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    again = parser.add_argument_group("refresh")
    again.add_argument("--stage", dest="stage_of", choices=("frames", "train", "put"), help="one stage of it alone")
    again.add_argument("--steps", type=int, help="steps of nets that are trained on")
    again.add_argument("--seconds", type=float, default=math.inf, help="at most so long a net, its features included")
    again.add_argument("--anyway", action="store_true", help="put nets that make a known version worse, too")
    options = parser.parse_args(given)
    if options.stage == "refresh":
        return refresh.main(options)
    named = options.net or _default_nets(options)
    for stage in STAGES if options.stage == "all" else [options.stage]:
        for net in named:
            (STAGES | ALONE)[stage](net, options)
    return 0


def _default_nets(options: argparse.Namespace) -> list[str]:
    """All nets, or after the first stage those that have rows, for intervals those with a sample."""
    if options.stage == "intervals":
        return list(kept.nets(options.heldout))
    if options.stage in ("rows", "all"):
        return list(nets())
    return sorted(path.parent.name for path in options.runs.glob("*/rows.npz"))


if __name__ == "__main__":
    sys.exit(main())
