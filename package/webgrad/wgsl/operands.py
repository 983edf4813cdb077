"""One operand of a blocked product: how its lines (rows or columns) are loaded at the steps of a loop over k.

Where the index map is contiguous and aligned, four values come as one vec4, along k or along the lines; else
each comes as a scalar. A value is loaded where the text first needs it; equal ones (overlapping windows of a
convolution) are one expression and are loaded once.
"""

from __future__ import annotations

from webgrad.compiler.indexing import Expr
from webgrad.wgsl.writer import KernelWriter

XYZW = "xyzw"


def line_exprs(w: KernelWriter, name: str, first: Expr, total: int, count: int, whole: bool) -> list[Expr]:
    """``first``, ``first + 1``, … as line numbers; named and clamped to the last line unless ``whole``."""
    found = [w.ix.add(first, w.ix.const(i)) for i in range(count)]
    if whole:
        return found
    clamped = []
    for i, e in enumerate(found):
        line = f"{name}{i}"
        w.line(f"let {line} = min({w.text(e)}, {total - 1});")
        w.declare(line)
        clamped.append(w.ix.var(line, total))
    return clamped


class Operand:
    """``values[line, step]`` of one operand as text."""

    def __init__(self, w: KernelWriter, values: dict[tuple[int, int], Expr]) -> None:
        self.w, self.values = w, values
        self.lines = 1 + max(line for line, _ in values)
        self.steps = 1 + max(step for _, step in values)
        self.along_k = self._starts(4, [[(i, u) for u in range(4)] for i in range(self.lines)])
        groups = [(g, u) for g in range(self.lines // 4) for u in range(self.steps)]
        self.along_lines = (
            self._starts(1, [[(4 * g + j, u) for j in range(4)] for g, u in groups])
            if not self.along_k and self.lines % 4 == 0
            else {}
        )
        if not (self.along_k or self.along_lines):
            w.count_uses(list(values.values()))
        self._loaded: dict[tuple[int, int], str] = {}
        self._joined: dict[tuple[int, int], str] = {}

    def _starts(self, steps: int, fours: list[list[tuple[int, int]]]) -> dict[tuple[int, int], Expr]:
        """The vec4 index of each four, by its first place; empty unless all four lie side by side."""
        if steps == 4 and self.steps != 4:
            return {}
        found = {}
        for four in fours:
            start = vector_index(self.w, [self.values[place] for place in four])
            if start is None:
                return {}
            found[four[0]] = start
        return found

    def scalar(self, line: int, step: int) -> str:
        """One value."""
        if self.along_k:
            return f"{self._vector((line, 0), self.along_k)}.{XYZW[step]}"
        if self.along_lines:
            return f"{self.vector(line // 4, step)}.{XYZW[line % 4]}"
        return self.w.value(self.values[line, step])

    def vector(self, group: int, step: int) -> str:
        """Lines 4·group … 4·group + 3 as one vec4."""
        if self.along_lines:
            return self._vector((4 * group, step), self.along_lines)
        place = (4 * group, step)
        if place not in self._joined:
            parts = ", ".join(self.scalar(4 * group + j, step) for j in range(4))
            self._joined[place] = self.w.fresh("c")
            self.w.line(f"let {self._joined[place]} = vec4<f32>({parts});")
        return self._joined[place]

    def _vector(self, place: tuple[int, int], starts: dict[tuple[int, int], Expr]) -> str:
        if place not in self._loaded:
            slot = self.w.slot(self.values[place].attr, vector=True)
            index = self.w.text(starts[place])
            self._loaded[place] = self.w.fresh("v")
            self.w.line(f"let {self._loaded[place]} = {slot.name}[{index}];")
        return self._loaded[place]


def vector_index(w: KernelWriter, four: list[Expr]) -> Expr | None:
    """The vec4 index that loads these four values at once, if they lie side by side and aligned."""
    first = four[0]
    loads = len(w.kernel.loads) + len(w.kernel.stores)
    if loads + 2 > w.plan.target.max_storage_buffers:
        return None  # an operand that is also read as scalars would need a second binding
    if any(e.kind != "load" or e.attr is not first.attr or e.dtype != "f32" for e in four):
        return None
    start = first.args[0]
    if any(w.ix.add(start, w.ix.const(j)) is not e.args[0] for j, e in enumerate(four)):
        return None
    terms, constant = w.ix.terms(start)
    buffer, offset = w.plan.where(first.attr)
    if any(v % 4 for v in (*terms.values(), constant)) or offset % 16 or buffer in w.written:
        return None
    if start.lo < 0 or start.hi + 3 >= first.attr.size:
        return None
    return w.ix.div(start, 4)


def open_loops(w: KernelWriter, loops: tuple[tuple[str, int], ...], unroll: int) -> int:
    """Open the loops over k, the last in steps of ``unroll``; returns how many take more than a turn."""
    turns = [*loops[:-1], (loops[-1][0], loops[-1][1] // unroll)]
    opened = [(name, count) for name, count in turns if count > 1]
    for name, count in opened:
        w.open(f"for (var {name} = 0; {name} < {count}; {name}++)", name)
    return len(opened)
