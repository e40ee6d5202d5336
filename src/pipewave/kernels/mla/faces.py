"""What other rooms need to know of latent attention."""

from __future__ import annotations

from pipewave.kernels.attention.page import LATENT
from pipewave.kernels.faces import Faces
from pipewave.kernels.mla.profile import PROFILE
from pipewave.kernels.mla.rows import ROWS

FACES = Faces(PROFILE, ROWS, LATENT)
