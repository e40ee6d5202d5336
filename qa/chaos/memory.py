"""A process that answers 20,000 calls, most on a GPU of their own: `python -m qa.chaos.memory [--count 20000]`.

Answers of one context share what they need; contexts that never come again must not pile up.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
from itertools import islice
from typing import Any

from qa import snapshot

MOST_MIB = 500
OWN = ("gpu", "id", "protocol")


def ask(count: int, seed: int) -> dict[str, Any]:
    """Peak memory of this process after half of the calls and after all of them, MiB."""
    import pipewave as pw
    from pipewave.gpus import find, names

    pick, gpus, halfway, answered = random.Random(seed), sorted(names()), 0, 0
    for number, case in enumerate(islice(snapshot.cases(1 << 30, seed), count)):
        gpu = find(pick.choice(gpus))
        gpu = gpu.what_if(dram_gbps=pick.uniform(500, 9000)) if pick.random() < 0.7 else gpu
        try:
            pw.predict(
                [{name: value for name, value in case.items() if name not in OWN}], gpu, protocol=case["protocol"]
            )
            answered += 1
        except pw.PipewaveError:
            pass
        if number == count // 2:
            halfway = _peak()
    return {"calls": count, "answered": answered, "peak_mib_halfway": halfway, "peak_mib": _peak()}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def run(count: int, seed: int) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "qa.chaos.memory", "--count", str(count), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print(json.dumps(ask(options.count, options.seed)))


if __name__ == "__main__":
    main()
