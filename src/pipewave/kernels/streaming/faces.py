"""What other rooms need to know of kernels that stream memory."""

from __future__ import annotations

from pipewave.kernels.faces import Faces, Page
from pipewave.kernels.streaming import profile, rows
from pipewave.kernels.streaming.elementwise_profile import PROFILE

SWEEP = {"field": "rows", "from": 1, "to": 16384}
NORM = Faces(profile.NORM, rows.NORM, Page({"dim": 4096}, SWEEP))
ACTIVATION = Faces(profile.ACTIVATION, rows.ACTIVATION, Page({"dim": 14336}, SWEEP))
ELEMENTWISE = Faces(
    PROFILE,
    rows.ELEMENTWISE,
    Page({"bytes_written": 1 << 20}, {"field": "bytes_read", "from": 1 << 20, "to": 1 << 28}),
)
