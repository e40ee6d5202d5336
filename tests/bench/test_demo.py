"""The README's first command runs with what `pip install .` brings, no extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXTRAS = ("pandas", "pyarrow", "torch", "scipy", "sklearn", "matplotlib", "fastapi", "triton")


def test_the_demo_needs_no_extra() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r})); import bench.demo"
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", blocked], cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
