"""What other rooms need to know of collectives."""

from __future__ import annotations

from pipewave.kernels.collective.profile import profile_of
from pipewave.kernels.collective.rows import rows_of
from pipewave.kernels.faces import Faces, Page

SWEEP = {"field": "bytes", "from": 1024, "to": 1 << 28, "scale": "log"}


def faces_of(op: str) -> Faces:
    """All of one collective."""
    world = 2 if op == "send_recv" else 8
    return Faces(profile_of(op), rows_of(op), Page({"world": world}, SWEEP))
