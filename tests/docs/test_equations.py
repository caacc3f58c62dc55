"""Pages show the equations that the code prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import shown_equations  # noqa: E402


@pytest.mark.parametrize("page", shown_equations.pages(), ids=lambda page: page.stem)
def test_pages_show_the_equations_of_their_code(page, capsys):
    text = page.read_text(encoding="utf-8")
    message = f"{page.name} is out of date. Run: python docs/shown_equations.py"
    assert shown_equations.with_equations(text) == text, message


def test_the_theory_shows_equations():
    assert DOCS / "theory.md" in shown_equations.pages()
