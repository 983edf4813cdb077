"""The documentation says what the code does."""

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_architecture_page_shows_what_the_stages_print():
    walkthrough = runpy.run_path(str(DOCS / "walkthrough.py"))
    page = (DOCS / "architecture.md").read_text("utf-8")
    assert walkthrough["refreshed"]() == page, "stale: run python docs/walkthrough.py --write"
