"""Old place of `pipewave.prediction`."""

from pipewave.prediction import *  # noqa: F403
from pipewave.prediction import predict, predict_cases  # noqa: F401
