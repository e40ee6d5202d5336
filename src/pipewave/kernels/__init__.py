"""Kernel families, one a folder. The built-in ones are the rows of `families.json`; each is loaded when asked for."""

from __future__ import annotations

from pipewave.kernels.base import Analysis as Analysis
from pipewave.kernels.base import Columns as Columns
from pipewave.kernels.base import Context as Context
from pipewave.kernels.base import Family as Family
from pipewave.kernels.base import families as families
from pipewave.kernels.base import family_of as family_of
from pipewave.kernels.base import group_of as group_of
from pipewave.kernels.base import register as register
from pipewave.kernels.base import registered as registered
from pipewave.kernels.base import revision as revision
from pipewave.kernels.base import rows_of as rows_of
