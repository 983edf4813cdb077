"""What ``WEBGRAD_DEBUG`` prints of each program that was compiled: 1 the time of each stage, 2 also what its
kernels compute, 3 their text. From 1 on `compiler.check` checks the program, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from webgrad.compiled import Compiled


def level() -> int:
    """The number in ``WEBGRAD_DEBUG``; 0 without one."""
    text = os.environ.get("WEBGRAD_DEBUG", "")
    return int(text) if text.isdecimal() else 0


def tell(compiled: Compiled) -> None:
    """Print what the level asks for."""
    wanted = level()
    if wanted < 1:
        return
    program = compiled.ir.program
    stages = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in compiled.timings.items())
    total = 1000 * sum(compiled.timings.values())
    print(f"webgrad: {'/'.join(program.entries)}, {len(program.kernels)} kernels, {total:.0f} ms: {stages}")
    if wanted == 2:
        print(compiled.ir.schedule)
    elif wanted > 2:
        print(*compiled.ir.kernels, sep="\n\n")
