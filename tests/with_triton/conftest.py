"""Run the kernels on the CPU, in Triton's interpreter. Must be set before the kernels are imported."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
