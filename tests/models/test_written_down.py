"""What models come to, line by line: any change of a kernel, a part or a size shows where it is."""

from __future__ import annotations

import pytest
from written_down import FAMILIES, PUBLISHED, SHIPPED, lines, written

WRITTEN = written()


@pytest.mark.parametrize("name", [*SHIPPED, *FAMILIES, *PUBLISHED])
def test_a_model_comes_to_what_is_written_down(name: str) -> None:
    assert lines(name) == WRITTEN[name]


def test_nothing_is_written_down_that_no_test_reads() -> None:
    assert list(WRITTEN) == [*SHIPPED, *FAMILIES, *PUBLISHED]
