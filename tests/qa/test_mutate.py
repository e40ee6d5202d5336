"""What mutation testing names stands in the tree: texts once, test files at all."""

from __future__ import annotations

import pytest

from qa.mutate import CHECKOUT, NAMED, TESTS, Named


@pytest.mark.parametrize("one", NAMED, ids=lambda one: one.what)
def test_a_named_mutant_changes_one_place(one: Named) -> None:
    assert (CHECKOUT / "src" / "pipewave" / one.path).read_text("utf-8").count(one.old) == 1


@pytest.mark.parametrize("tests", [*TESTS.values(), *(one.tests for one in NAMED)])
def test_the_tests_of_a_room_are_there(tests: str) -> None:
    paths = [word for word in tests.split() if word.startswith("tests/")]
    assert paths and all((CHECKOUT / path).exists() for path in paths)
