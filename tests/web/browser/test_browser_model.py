"""The model view: what `pipewave model --json` says, as blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_blocks_are_the_librarys(page: Any, api: Callable[..., Any]) -> None:
    answer = api("/api/model", {"model": "gpt-oss-20b", "tp": 2})
    page.goto("/model?model=gpt-oss-20b&tp=2")
    page.wait_for_selector("section[aria-label='Block A']")
    for block in answer["blocks"]:
        card = page.locator(f"section[aria-label='Block {block['letter']}']")
        assert card.locator(".stack").count() == 2
        weights = card.locator(".stack").first.locator(".legend-list li").all_inner_texts()
        assert len(weights) == sum(part["weight_bytes"] > 0 for part in block["parts"])
        assert f"{block['count']} ×" in card.inner_text()
    rows = page.locator("section[aria-label='The model'] tbody tr").count()
    assert rows == sum(len(block["parts"]) for block in answer["blocks"])
    assert answer["pattern"] in page.locator("section[aria-label='gpt-oss-20b']").inner_text()


@pytest.mark.refused
def test_a_model_that_cannot_be_split_so_is_said(page: Any) -> None:
    page.goto("/model?model=gpt-oss-20b&tp=3")
    page.locator("[data-field=tp] .field-error").wait_for()
