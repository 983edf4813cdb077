"""Contract template for hardware adapters: a workgroup computes a tile of results from tiles of its operands.

    for each tile of k:
      every thread loads its share of both operands' tiles into workgroup memory        (barrier)
      for k in the tile:   a[0..ROWS) = left_tile[k]       loads from workgroup memory: ROWS/4 + COLS/4 vec4s
                           c[0..COLS) = right_tile[k]
                           acc[i][j] += a[i] · c[j]        multiply-adds: ROWS · COLS    (barrier)

A vec4 of a tile holds four lines (rows of the left operand, columns of the right) at one k, and one thread
writes all of it, for a store to one component may touch its neighbours. So a thread loads four lines at one
k, or, where the operand is contiguous along k, four lines at four ks, as four vec4s. Neighbouring threads
load along whatever is contiguous. Thread (y, x) computes the fours of rows y, y + Y, … and of columns x,
x + X, …: what a row of threads reads at once lies side by side.

What lies beyond the last line is clamped for loads and never stored; what lies beyond the last k is zero on
both sides, so that no NaN gets in. All barriers are in uniform control flow: loops with literal bounds. With
slices, groups of threads take turns at k, and their sums go through workgroup memory at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from webgrad.compiler.indexing import Expr, Indexer
from webgrad.compiler.kernels import Contraction, Store, Tiles
from webgrad.ir import numel
from webgrad.wgsl.operands import XYZW, Operand, vector_index
from webgrad.wgsl.rows import Grid, grid_of
from webgrad.wgsl.writer import KernelWriter


@dataclass(frozen=True)
class Edge:
    """One side of a tile: its operand, the variable of its lines, its tiles' variable, its length, the lines
    of a tile and of a thread, and the variable that tells threads apart along it.
    """

    side: str
    operand: Expr
    name: str
    tile: str
    total: int
    lines: int
    each: int
    thread: str

    @property
    def fours(self) -> int:
        """vec4s of lines in a tile."""
        return self.lines // 4

    @property
    def apart(self) -> int:
        """Threads along the edge: so far apart are a thread's fours."""
        return self.lines // self.each

    def four(self, offset: str) -> str:
        """The number of a four of lines that the thread computes."""
        return f"{self.tile} * {self.fours} + {self.thread} + {offset}"

    def line(self, offset: str, lane: str) -> str:
        """The number of one of its lines."""
        return f"({self.four(offset)}) * 4 + {lane}"


def emit_tiles(w: KernelWriter, c: Contraction, t: Tiles) -> tuple[str, Grid]:
    """The tiled product; see the module's text."""
    rows = Edge("left", c.left, "m", "mt", c.m, t.m, t.rows, "y")
    cols = Edge("right", c.right, "n", "nt", c.n, t.n, t.cols, "x")
    row_tiles, col_tiles = -(-c.m // t.m), -(-c.n // t.n)
    grid = grid_of(t.blocks(c), w.plan.target)
    w.line(f"let nt = tile % {col_tiles};")
    w.line(f"let mt = tile / {col_tiles}{f' % {row_tiles}' if c.batch > 1 else ''};")
    w.line(f"let b = tile / {row_tiles * col_tiles};")
    w.declare("nt", "mt", "b")
    w.line(f"let x = lane % {cols.apart};")
    w.line(f"let y = lane / {cols.apart}{f' % {rows.apart}' if t.slices > 1 else ''};")
    if t.slices > 1:
        w.line(f"let slice = lane / {t.group};")

    acc = [f"acc{r}_{g}" for r in range(t.rows) for g in range(t.cols // 4)]
    sums = {edge: [s for s in w.kernel.stores if s.side == edge.side] for edge in (rows, cols)}
    totals = [f"{e.side}{four}" for e in (rows, cols) if sums[e] for four in range(e.each // 4)]
    for name in acc + totals:
        w.line(f"var {name}: vec4<f32>;")
    w.open(f"for (var kt = 0; kt < {-(-c.k // t.k)}; kt++)", "kt")
    shared = [_stage(w, c, t, edge) for edge in (rows, cols)]
    w.line("workgroupBarrier();")
    _multiply(w, t, rows, cols, sums)
    w.line("workgroupBarrier();")
    w.close()
    if t.slices > 1:
        shared.append(_gather(w, t, acc + totals))
    _epilogue(w, rows, cols, acc)
    for edge, other in ((rows, cols), (cols, rows)):
        _store_sums(w, sums[edge], edge, other)
    return _module(w, t, t.blocks(c), grid, shared), grid


# --- loads ------------------------------------------------------------------------------------------


def _stage(w: KernelWriter, c: Contraction, t: Tiles, edge: Edge) -> str:
    """Load the operand's tile; returns the declaration of its memory."""
    ix = w.ix
    four = ix.var(f"{edge.name}4", -(-edge.total // 4))
    whole = edge.total % 4 == 0
    lines = [
        ix.add(ix.mul(four, 4), ix.const(j)) if whole else ix.var(f"{edge.name}{j}", edge.total)
        for j in range(4)
    ]
    steps = 4 if c.k % 4 == 0 and _four_along_k(w, c, edge, lines) else 1
    turns = t.k // steps
    count = edge.fours * turns
    if count > t.threads:
        w.open(f"for (var unit = lane; unit < {count}; unit += {t.threads})")
    else:
        w.open(f"if (lane < {count})" if count < t.threads else "")
        w.line("let unit = lane;")
    along_k = steps == 4 or _runs_along_k(ix, c, edge, lines[0])
    w.line(f"let four = unit {f'/ {turns}' if along_k else f'% {edge.fours}'};")
    w.line(f"let step = unit {f'% {turns}' if along_k else f'/ {edge.fours}'};")

    place = f"{edge.tile} * {edge.fours} + four"
    last = -(-edge.total // 4) - 1
    w.line(f"let {edge.name}4 = {f'min({place}, {last})' if edge.total % edge.lines else place};")
    w.declare(f"{edge.name}4")
    for j in range(4) if not whole else ():
        w.line(f"let {edge.name}{j} = min({edge.name}4 * 4 + {j}, {edge.total - 1});")
        w.declare(f"{edge.name}{j}")
    terms, ragged = c.k // steps, c.k % t.k != 0
    w.line(f"let k = {f'min(kt * {turns} + step, {terms - 1})' if ragged else f'kt * {turns} + step'};")
    w.declare("k")
    operand = Operand(w, _values(ix, c, edge, lines, steps))
    pitch = _pitch(edge)
    for u in range(steps):
        value = operand.vector(0, u)
        if ragged:
            value = f"select(vec4<f32>(), {value}, kt * {turns} + step < {terms})"
        row = f"step * {steps} + {u}" if steps > 1 else "step"
        w.line(f"{edge.side}_tile[({row}) * {pitch} + four] = {value};")
    w.close()
    return f"var<workgroup> {edge.side}_tile: array<vec4<f32>, {t.k * pitch}>;"


def _pitch(edge: Edge) -> int:
    """vec4s from one k of a tile to the next: one more than there are, to spread them over the banks."""
    return edge.fours + 1


def _values(
    ix: Indexer, c: Contraction, edge: Edge, lines: list[Expr], steps: int
) -> dict[tuple[int, int], Expr]:
    """The operand at the lines and at the terms steps · k … of the flat k."""
    k = ix.mul(ix.var("k", -(-c.k // steps)), steps)
    sizes = [size for _, size in c.loops]
    found = {}
    for u in range(steps):
        at = ix.unravel(ix.add(k, ix.const(u)), sizes)
        inner = {ix.var(name, size): e for (name, size), e in zip(c.loops, at, strict=True)}
        for j, line in enumerate(lines):
            changes = {**inner, ix.var(edge.name, edge.total): line}
            found[j, u] = ix.substitute(edge.operand, changes)
    return found


def _four_along_k(w: KernelWriter, c: Contraction, edge: Edge, lines: list[Expr]) -> bool:
    """Whether four ks of each line are one vec4 in memory."""
    values = _values(w.ix, c, edge, lines, 4)
    return all(vector_index(w, [values[j, u] for u in range(4)]) is not None for j in range(4))


def _runs_along_k(ix: Indexer, c: Contraction, edge: Edge, line: Expr) -> bool:
    """Whether the next k is the next place in memory."""
    if numel([size for _, size in c.loops]) < 2:
        return False
    values = _values(ix, c, edge, [line], 1)
    here = _first_load(values[0, 0])
    k = ix.var("k", c.k)
    if here is None:
        return False
    step = ix.add(ix.substitute(here, {k: ix.add(k, ix.const(1))}), ix.mul(here, -1))
    return step is ix.const(1)


def _first_load(e: Expr) -> Expr | None:
    """The index of the first load in an expression."""
    if e.kind == "load":
        return e.args[0]
    for a in e.args:
        found = _first_load(a)
        if found is not None:
            return found
    return None


# --- arithmetic -------------------------------------------------------------------------------------


def _multiply(w: KernelWriter, t: Tiles, rows: Edge, cols: Edge, sums: dict[Edge, list[Store]]) -> None:
    """The inner product of the staged tiles, one slice of them."""
    share = t.k // t.slices
    w.open(f"for (var i = 0; i < {share}; i++)")
    w.line(f"let at = {f'slice * {share} + i' if t.slices > 1 else 'i'};")
    for edge, name in ((rows, "a"), (cols, "c")):
        for four in range(edge.each // 4):
            place = f"at * {_pitch(edge)} + {edge.thread}" + (f" + {four * edge.apart}" if four else "")
            w.line(f"let {name}{four} = {edge.side}_tile[{place}];")
            if sums[edge]:
                w.line(f"{edge.side}{four} += {name}{four};")
    for r in range(t.rows):
        for g in range(t.cols // 4):
            w.line(f"acc{r}_{g} += a{r // 4}.{XYZW[r % 4]} * c{g};")
    w.close()


def _gather(w: KernelWriter, t: Tiles, names: list[str]) -> str:
    """Add every slice's sums to the first's, in order; the others are done then. Returns the declaration of
    the memory they go through.
    """
    w.open(f"for (var other = 1; other < {t.slices}; other++)")
    w.open("if (slice == other)")
    for e, name in enumerate(names):
        w.line(f"sums[{e * t.group} + lane % {t.group}] = {name};")
    w.close()
    w.line("workgroupBarrier();")
    w.open("if (slice == 0)")
    for e, name in enumerate(names):
        w.line(f"{name} += sums[{e * t.group} + lane];")
    w.close()
    w.line("workgroupBarrier();")
    w.close()
    w.line("if (slice > 0) { return; }")
    return f"var<workgroup> sums: array<vec4<f32>, {t.group * len(names)}>;"


# --- stores -----------------------------------------------------------------------------------------


def _epilogue(w: KernelWriter, rows: Edge, cols: Edge, acc: list[str]) -> None:
    """Finish and store each element: always the first four sums, then the next ones become the first. An
    array in place of this would lie in memory. Four results that lie side by side are stored at once.
    """
    groups = cols.each // 4
    fours = _fours_to_store(w, cols)
    w.open(f"for (var e = 0; e < {len(acc)}; e++)", "m", "n4")
    row = f"e / {groups}" if groups > 1 else "e"
    w.line(f"let m = {rows.line(f'{row} / 4 * {rows.apart}', f'{row} % 4')};")
    if rows.total % rows.lines:
        w.line(f"if (m >= {rows.total}) {{ break; }}")
    w.line(f"let n4 = {cols.four(f'e % {groups} * {cols.apart}' if groups > 1 else '0')};")
    for number in range(len(fours)):
        w.line(f"var four{number}: vec4<f32>;")
    w.open("for (var j = 0; j < 4; j++)", "n", "total0")
    w.line("let n = n4 * 4 + j;")
    if cols.total % cols.lines:
        w.line(f"if (n >= {cols.total}) {{ break; }}")
    w.line(f"let total0 = {acc[0]}[j];")
    if fours:
        for number, (store, _) in enumerate(fours):
            w.line(f"four{number}[j] = {w.text(store.value)};")
    else:
        w.finish_element()
    w.close()
    if fours:
        w.open(f"if (n4 < {cols.total // 4})" if cols.total % cols.lines else "")
        for number, (store, index) in enumerate(fours):
            slot = w.slot(store.node, vector=True, write=True)
            w.line(f"{slot.name}[{w.text(index)}] = four{number};")
        w.close()
    for here, after in pairwise(acc):
        w.line(f"{here} = {after};")
    w.close()


def _fours_to_store(w: KernelWriter, cols: Edge) -> list[tuple[Store, Expr]]:
    """The stores of elements with their vec4 indices, if for each of them the four columns 4 · n4 … are one
    vec4 of a buffer that the kernel does not read; else nothing.
    """
    ix, found = w.ix, []
    read = {w.plan.where(node)[0] for node in w.kernel.loads}
    n, first = ix.var("n", cols.total), ix.mul(ix.var("n4", -(-cols.total // 4)), 4)
    for store in (s for s in w.kernel.stores if s.side is None):
        buffer, offset = w.plan.where(store.node)
        at = [ix.substitute(store.index, {n: ix.add(first, ix.const(j))}) for j in range(4)]
        terms, constant = ix.terms(at[0])
        if (
            cols.total % 4
            or store.node.dtype != "f32"
            or buffer in read
            or offset % 16
            or "i" in store.index.free | store.value.free
            or any(ix.add(at[0], ix.const(j)) is not e for j, e in enumerate(at))
            or any(v % 4 for v in (*terms.values(), constant))
        ):
            return []
        found.append((store, ix.div(at[0], 4)))
    return found


def _store_sums(w: KernelWriter, stores: list[Store], edge: Edge, other: Edge) -> None:
    """Store the sums of an operand over k, by the first threads and tiles of the other side."""
    if not stores:
        return
    w.open(f"if (({other.tile} == 0) & ({other.thread} == 0))")
    for four in range(edge.each // 4):
        w.open("for (var j = 0; j < 4; j++)", edge.name, f"sum_{edge.side}")
        w.line(f"let {edge.name} = {edge.line(str(four * edge.apart), 'j')};")
        if edge.total % edge.lines:
            w.line(f"if ({edge.name} >= {edge.total}) {{ break; }}")
        w.line(f"let sum_{edge.side} = {edge.side}{four}[j];")
        w.stores(stores)
        w.close()
    w.close()


def _module(w: KernelWriter, t: Tiles, tiles: int, grid: Grid, shared: list[str]) -> str:
    """The whole module. Workgroups beyond the last tile, of a grid in two dimensions, leave at once."""
    flat = "wid.x" if grid[1] == 1 else f"wid.x + wid.y * {grid[0]}u"
    main = [
        f"@compute @workgroup_size({t.threads})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) local: u32) {",
        f"  let tile = i32({flat});",
        *([f"  if (tile >= {tiles}) {{ return; }}"] if grid[0] * grid[1] > tiles else []),
        "  let lane = i32(local);",
        *["  " + text for text in w.blocks[0].lines],
        "}",
    ]
    return w.assemble(main, shared)
