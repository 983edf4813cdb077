"""Keeps the printed data in architecture.md true: runs its example and compares or rewrites the blocks.

``python docs/walkthrough.py --write`` refreshes them; the tests check that they are fresh.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("architecture.md")
BLOCK = re.compile(r"(<!-- (\w+) -->\n```\w+\n)(.*?)(```)", re.DOTALL)


def printed() -> dict[str, str]:
    """What each stage of the page's example prints."""
    source = BLOCK.search(PAGE.read_text("utf-8"))
    assert source is not None and source[2] == "model"
    space: dict[str, object] = {}
    exec(compile(source[3], "model.py", "exec"), space)
    program = asyncio.run(space["main"]())  # type: ignore[operator]
    ir = program.ir
    return {
        "graph": str(ir.graph),
        "schedule": str(ir.schedule),
        "plan": str(ir.plan),
        "kernel": str(ir.kernels[0]).strip(),
        "program": str(ir.program),
    }


def refreshed() -> str:
    """The page with what the code prints now."""
    blocks = printed()

    def replace(match: re.Match[str]) -> str:
        head, name, _, tail = match.groups()
        return match[0] if name not in blocks else f"{head}{blocks[name]}\n{tail}"

    return BLOCK.sub(replace, PAGE.read_text("utf-8"))


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(refreshed(), "utf-8")
    elif refreshed() != PAGE.read_text("utf-8"):
        sys.exit("docs/architecture.md is stale: python docs/walkthrough.py --write")
