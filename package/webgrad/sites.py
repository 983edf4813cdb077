"""Sites: which line of the user's program a node or an error comes from.

It is the innermost frame that belongs neither to webgrad nor to the machinery that webgrad and Python's event
loops stand on; so it is right in scripts, notebooks, PyScript and ``<exec>`` alike.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

#: top-level packages whose frames are never the user's line
_MACHINERY = frozenset(
    ["webgrad", "asyncio", "contextlib", "copy", "dataclasses", "functools", "pyodide", "_pyodide"]
)


@dataclass(frozen=True)
class Site:
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def user_site() -> Site | None:
    """The user's line that is running now, or None when no frame is the user's (in a callback)."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _MACHINERY:
            return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def call_site() -> Site:
    """`user_site`, or a site that says it is unknown."""
    return user_site() or Site("<unknown>", 0, "<unknown>")
