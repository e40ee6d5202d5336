"""Measure with the implementations of `lab.impls`."""

from __future__ import annotations

import sys

from lab.impls import register
from pipewave.cli import main
from pipewave.measure import supervise

if __name__ == "__main__":
    register()
    supervise.PROGRAM[:] = ["lab.impls"]
    sys.argv.insert(1, "measure")
    main()
