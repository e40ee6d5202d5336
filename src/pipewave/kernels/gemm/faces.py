"""What other rooms need to know of matrix products."""

from __future__ import annotations

from pipewave.kernels.faces import Faces
from pipewave.kernels.gemm.page import PAGE
from pipewave.kernels.gemm.profile import PROFILE
from pipewave.kernels.gemm.rows import ROWS

FACES = Faces(PROFILE, ROWS, PAGE)
