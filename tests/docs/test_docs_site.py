"""The site builds without a warning, and its pages fetch nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tools.session import ROOT

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")
FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)="((?:https?:)?//[^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages <= {page.stem for page in site.glob("*.html")}


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = {page.name: FETCHED.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    own = {name: [url for url in urls if "canonical" not in url] for name, urls in fetched.items()}
    assert not any(own.values()), own


def test_figures_are_drawings_without_fonts_or_scripts() -> None:
    figures = list((ROOT / "docs" / "img").glob("*.svg"))
    assert figures
    for figure in figures:
        text = figure.read_text(encoding="utf-8")
        assert "<script" not in text
        assert "@font-face" not in text
