"""Contract template for adapters whose loads are dear and whose threads run four abreast (SwiftShader).

Four consecutive threads, a quad, compute a block of TS *shared* lines by 4·TO *own* lines: every thread has
TO lines of its own, and all four need the same shared lines. Each loads a quarter of those, and the quad
hands them round in registers:

    for k:   mine[0..TS/4) = shared(TS/4 · lane + r, k)       loads: TS/4 + TO
             own[0..TO)    = own(o, k)
             for each group g of four shared lines:
               four = quadBroadcast(mine …)                    no memory
               acc[g][o] += four · own[o]                      multiply-adds: TS · TO

A load costs about as much as twelve multiply-adds there. Either side of the product may be the shared one.
"""

from __future__ import annotations

from dataclasses import dataclass

from webgrad.compiler.blocks import at_steps, k_steps
from webgrad.compiler.indexing import Expr
from webgrad.compiler.kernels import Contraction, Quads, Store
from webgrad.wgsl.operands import XYZW, Operand, line_exprs, open_loops
from webgrad.wgsl.rows import Grid, launch
from webgrad.wgsl.writer import KernelWriter

#: the weight of an epilogue that may be written out for every shared line
LIGHT = 40


@dataclass(frozen=True)
class Lines:
    """One side of the product: its variable, its block's variable, its length, its lines in a block."""

    name: str
    block: str
    total: int
    count: int


def emit_quads(w: KernelWriter, c: Contraction, choice: Quads) -> tuple[str, Grid]:
    """The blocked product; see the module's text."""
    rows, cols = ("m", "mt", c.m), ("n", "nt", c.n)
    left = choice.side == "left"
    shared = Lines(*(rows if left else cols), choice.shared)
    own = Lines(*(cols if left else rows), choice.own)
    shared_blocks, own_quads = -(-shared.total // shared.count), -(-own.total // (4 * own.count))
    quads = c.batch * shared_blocks * own_quads
    size, grid = launch(4 * quads, w.plan.target)
    w.line(f"let {own.block} = quad % {own_quads} * 4 + lane;")
    w.line(f"let {shared.block} = quad / {own_quads}{f' % {shared_blocks}' if c.batch > 1 else ''};")
    w.line(f"let b = quad / {own_quads * shared_blocks};")
    w.declare("nt", "mt", "b", "lane")
    mine = _shared_lines(w, shared, shared_blocks)
    first = w.ix.mul(w.ix.var(own.block, 4 * own_quads), own.count)
    whole = own.total % (4 * own.count) == 0
    theirs = line_exprs(w, own.name, first, own.total, own.count, whole)
    groups = shared.count // 4
    acc = {(g, o): f"acc{g}_{o}" for g in range(groups) for o in range(own.count)}
    for name in acc.values():
        w.line(f"var {name}: vec4<f32>;")
    sums = {s: [x for x in w.kernel.stores if x.side == s] for s in ("left", "right")}
    side, other = choice.side, "right" if left else "left"
    for g in range(groups) if sums[side] else ():
        w.line(f"var {side}{g}: vec4<f32>;")
    for o in range(own.count) if sums[other] else ():
        w.line(f"var {other}{o}: f32;")

    opened = open_loops(w, c.loops, choice.unroll)
    steps, k_var = k_steps(w.ix, c.loops[-1], choice.unroll), w.ix.var(*c.loops[-1])
    operands = (c.left, c.right) if left else (c.right, c.left)
    a = Operand(w, at_steps(w.ix, operands[0], w.ix.var(shared.name, shared.total), mine, k_var, steps))
    b = Operand(w, at_steps(w.ix, operands[1], w.ix.var(own.name, own.total), theirs, k_var, steps))
    for u in range(choice.unroll):
        for g in range(groups):
            four = _handed_round(w, a, g, u)
            if sums[side]:
                w.line(f"{side}{g} += {four};")
            for o in range(own.count):
                w.line(f"{acc[g, o]} += {four} * {b.scalar(o, u)};")
        for o in range(own.count) if sums[other] else ():
            w.line(f"{other}{o} += {b.scalar(o, u)};")
    for _ in range(opened):
        w.close()
    w.line(f"if (flat >= {4 * quads}) {{ return; }}")
    _epilogue(w, shared, own, acc)
    _store_shared_sums(w, sums[side], side, shared, own)
    _store_own_sums(w, sums[other], other, shared, own)
    return _module(w, size, quads, grid), grid


def _shared_lines(w: KernelWriter, shared: Lines, blocks: int) -> list[Expr]:
    """The shared lines that this thread loads: neighbours, so that a thread's four may be one vec4."""
    each = shared.count // 4
    block, lane = w.ix.var(shared.block, blocks), w.ix.var("lane", 4)
    first = w.ix.add(w.ix.mul(block, shared.count), w.ix.mul(lane, each))
    return line_exprs(w, shared.name, first, shared.total, each, shared.total % shared.count == 0)


def _handed_round(w: KernelWriter, mine: Operand, group: int, step: int) -> str:
    """Shared lines 4·group … 4·group + 3, from the threads that loaded them."""
    each = mine.lines
    name = w.fresh("s")
    if each % 4 == 0:
        line = 4 * group % each
        w.line(f"let {name} = quadBroadcast({mine.vector(line // 4, step)}, {4 * group // each}u);")
        return name
    parts = []
    for line in range(4 * group, 4 * group + 4):
        parts.append(f"quadBroadcast({mine.scalar(line % each, step)}, {line // each}u)")
    w.line(f"let {name} = vec4<f32>({', '.join(parts)});")
    return name


def _epilogue(w: KernelWriter, shared: Lines, own: Lines, acc: dict[tuple[int, int], str]) -> None:
    """Finish and store each element of the block, one own line after the other."""
    stores = [s for s in w.kernel.stores if s.side is None]
    light = w.weight([e for s in stores for e in (s.index, s.value)]) <= LIGHT
    if not light:
        w.line(f"var block = array<vec4<f32>, {len(acc)}>({', '.join(acc.values())});")
    w.open(f"for (var o = 0; o < {own.count}; o++)", own.name)
    w.line(f"let {own.name} = {own.block} * {own.count} + o;")
    if own.total % (4 * own.count):
        w.line(f"if ({own.name} >= {own.total}) {{ break; }}")
    if light:
        _column(w, shared, own, acc)
    else:
        w.open(f"for (var s = 0; s < {shared.count}; s++)", shared.name, "total0")
        w.line(f"let {shared.name} = {shared.block} * {shared.count} + s;")
        if shared.total % shared.count:
            w.line(f"if ({shared.name} >= {shared.total}) {{ break; }}")
        w.line(f"let total0 = block[s / 4 * {own.count} + o][s % 4];")
        w.finish_element()
        w.close()
    w.close()


def _column(w: KernelWriter, shared: Lines, own: Lines, acc: dict[tuple[int, int], str]) -> None:
    """Every element of the own line whose sums are first, written out; then the next line's become the first.
    An array in place of this would be looked up lane by lane.
    """
    for s in range(shared.count):
        edge = shared.total % shared.count
        line = f"{shared.block} * {shared.count} + {s}"
        w.open(f"if ({line} < {shared.total})" if 0 < edge <= s else "", shared.name, "total0")
        w.line(f"let {shared.name} = {line};")
        w.line(f"let total0 = {acc[s // 4, 0]}.{XYZW[s % 4]};")
        w.finish_element()
        w.close()
    for g in range(shared.count // 4):
        for o in range(own.count - 1):
            w.line(f"{acc[g, o]} = {acc[g, o + 1]};")


def _store_shared_sums(w: KernelWriter, stores: list[Store], side: str, shared: Lines, own: Lines) -> None:
    """Sums of the shared operand over k, by the first thread of its quad's first block."""
    if not stores:
        return
    groups = shared.count // 4
    w.open(f"if ({own.block} == 0)")
    parts = ", ".join(f"{side}{g}" for g in range(groups))
    w.line(f"var sums = array<vec4<f32>, {groups}>({parts});")
    w.open(f"for (var s = 0; s < {shared.count}; s++)", shared.name, f"sum_{side}")
    w.line(f"let {shared.name} = {shared.block} * {shared.count} + s;")
    if shared.total % shared.count:
        w.line(f"if ({shared.name} >= {shared.total}) {{ break; }}")
    w.line(f"let sum_{side} = sums[s / 4][s % 4];")
    w.stores(stores)
    w.close()
    w.close()


def _store_own_sums(w: KernelWriter, stores: list[Store], side: str, shared: Lines, own: Lines) -> None:
    """Sums of each thread's own lines over k, by the first block of shared lines."""
    if not stores:
        return
    w.open(f"if ({shared.block} == 0)")
    parts = ", ".join(f"{side}{o}" for o in range(own.count))
    w.line(f"var sums = array<f32, {own.count}>({parts});")
    w.open(f"for (var o = 0; o < {own.count}; o++)", own.name, f"sum_{side}")
    w.line(f"let {own.name} = {own.block} * {own.count} + o;")
    if own.total % (4 * own.count):
        w.line(f"if ({own.name} >= {own.total}) {{ break; }}")
    w.line(f"let sum_{side} = sums[o];")
    w.stores(stores)
    w.close()
    w.close()


def _module(w: KernelWriter, size: int, quads: int, grid: Grid) -> str:
    """The whole module. Threads beyond the last quad repeat its work, for a quad must stay together, and
    leave before they would store.
    """
    flat = "gid.x" if grid[1] == 1 else f"gid.x + gid.y * {grid[0] * size}u"
    main = [
        f"@compute @workgroup_size({size})",
        "fn main(@builtin(global_invocation_id) gid: vec3<u32>) {",
        f"  let flat = i32({flat});",
        f"  let quad = min(flat / 4, {quads - 1});",
        "  let lane = flat % 4;",
        *["  " + text for text in w.blocks[0].lines],
        "}",
    ]
    return w.assemble(main, [], ["subgroups"])
