"""What other rooms need to know of attention."""

from __future__ import annotations

from pipewave.kernels.attention.page import PAGE
from pipewave.kernels.attention.profile import PROFILE
from pipewave.kernels.attention.rows import ROWS
from pipewave.kernels.faces import Faces

FACES = Faces(PROFILE, ROWS, PAGE)
