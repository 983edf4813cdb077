"""Template of the contract family: matmul, batched matmul, convolution and its gradients.

`compiler.strategy` has chosen how: `quads` and `tiles` are templates of their own, the one here is registers.
One thread computes a block of TM rows by TN columns in registers, without barriers:

    for k:   a[0..TM) = left(b, m0 + i, k)          loads: TM + TN
             c[0..TN) = right(b, n0 + j, k)
             acc[i][j] += a[i] · c[j]               multiply-adds: TM · TN

Columns go in vec4s. An operand is loaded as vec4s along k, or along its row or column, where its index
map is contiguous and aligned there; else as scalars. Rows and columns past the edge are clamped for loads
and skipped for stores. The epilogue then runs once per element, in a loop. Sums of an operand over k (bias
gradients) are accumulated beside the products.
"""

from __future__ import annotations

from webgrad.compiler.blocks import at_steps, k_steps
from webgrad.compiler.indexing import Expr
from webgrad.compiler.kernels import Contraction, Quads, Store, Tiles
from webgrad.wgsl.operands import Operand, line_exprs, open_loops, vector_index
from webgrad.wgsl.quads import emit_quads
from webgrad.wgsl.rows import Grid, launch
from webgrad.wgsl.tiles import emit_tiles
from webgrad.wgsl.writer import KernelWriter


def emit_contract(w: KernelWriter) -> tuple[str, Grid]:
    """The blocked product."""
    c = w.kernel.body
    assert isinstance(c, Contraction)
    if isinstance(c.strategy, Quads):
        return emit_quads(w, c, c.strategy)
    if isinstance(c.strategy, Tiles):
        return emit_tiles(w, c, c.strategy)
    assert c.strategy is not None
    tm, tn = c.strategy.rows, c.strategy.cols
    lanes = 4 if tn >= 4 else 1
    row_blocks, col_blocks = -(-c.m // tm), -(-c.n // tn)
    threads = c.batch * row_blocks * col_blocks
    size, grid = launch(threads, w.plan.target)
    w.line(f"let nt = t % {col_blocks};")
    w.line(f"let mt = t / {col_blocks}{f' % {row_blocks}' if c.batch > 1 else ''};")
    w.line(f"let b = t / {col_blocks * row_blocks};")
    w.declare("nt", "mt", "b")
    rows = _lines(w, "m", "mt", c.m, tm)
    cols = _lines(w, "n", "nt", c.n, tn)
    acc = {(i, g): f"acc{i}_{g}" for i in range(tm) for g in range(tn // lanes)}
    kind = "vec4<f32>" if lanes == 4 else "f32"
    for name in acc.values():
        w.line(f"var {name}: {kind};")
    sums = {side: [s for s in w.kernel.stores if s.side == side] for side in ("left", "right")}
    for side, count, type_ in (("left", tm, "f32"), ("right", tn // lanes, kind)):
        for number in range(count) if sums[side] else ():
            w.line(f"var {side}{number}: {type_};")
    last = c.loops[-1]
    unroll = 4 if last[1] % 4 == 0 and _wants_unroll(w, c, rows, cols) else 1
    opened = open_loops(w, c.loops, unroll)
    steps, k_var = k_steps(w.ix, last, unroll), w.ix.var(*last)
    left = Operand(w, at_steps(w.ix, c.left, w.ix.var("m", c.m), rows, k_var, steps))
    right = Operand(w, at_steps(w.ix, c.right, w.ix.var("n", c.n), cols, k_var, steps))
    for u in range(unroll):
        for i in range(tm) if sums["left"] else ():
            w.line(f"left{i} += {left.scalar(i, u)};")
        for g in range(tn // lanes):
            column = right.vector(g, u) if lanes == 4 else right.scalar(g, u)
            if sums["right"]:
                w.line(f"right{g} += {column};")
            for i in range(tm):
                w.line(f"{acc[i, g]} += {left.scalar(i, u)} * {column};")
    for _ in range(opened):
        w.close()
    _epilogue(w, c, tm, tn, lanes, acc)
    if sums["left"]:
        _store_sums(w, sums["left"], "left", "nt", ("m", "mt", c.m, tm), 1)
    if sums["right"]:
        _store_sums(w, sums["right"], "right", "mt", ("n", "nt", c.n, tn), lanes)
    return w.module(size, threads, grid), grid


def _lines(w: KernelWriter, name: str, block: str, total: int, count: int) -> list[Expr]:
    """The block's row (or column) numbers."""
    first = w.ix.mul(w.ix.var(block, -(-total // count)), count)
    return line_exprs(w, name, first, total, count, total % count == 0)


def _wants_unroll(w: KernelWriter, c: Contraction, rows: list[Expr], cols: list[Expr]) -> bool:
    """Whether an operand is contiguous along k, so that four steps load one vec4."""
    steps, k_var = k_steps(w.ix, c.loops[-1], 4), w.ix.var(*c.loops[-1])
    for operand, along, lines in ((c.left, w.ix.var("m", c.m), rows), (c.right, w.ix.var("n", c.n), cols)):
        values = at_steps(w.ix, operand, along, lines[:1], k_var, steps)
        if vector_index(w, [values[0, u] for u in range(4)]) is not None:
            return True
    return False


def _epilogue(
    w: KernelWriter, c: Contraction, tm: int, tn: int, lanes: int, acc: dict[tuple[int, int], str]
) -> None:
    """Finish and store each element of the block."""
    groups = tn // lanes
    kind = "vec4<f32>" if lanes == 4 else "f32"
    names = ", ".join(acc[i, g] for i in range(tm) for g in range(groups))
    w.line(f"var block = array<{kind}, {tm * groups}>({names});")
    w.open(f"for (var i = 0; i < {tm}; i++)", "m")
    w.line(f"let m = mt * {tm} + i;")
    if c.m % tm:
        w.line(f"if (m >= {c.m}) {{ break; }}")
    w.open(f"for (var j = 0; j < {tn}; j++)", "n", "total0")
    w.line(f"let n = nt * {tn} + j;")
    if c.n % tn:
        w.line(f"if (n >= {c.n}) {{ break; }}")
    lane = f"block[i * {groups} + j / 4][j % 4]" if lanes == 4 else f"block[i * {groups} + j]"
    w.line(f"let total0 = {lane};")
    w.finish_element()
    w.close()
    w.close()


def _store_sums(
    w: KernelWriter, stores: list[Store], side: str, other: str, line: tuple[str, str, int, int], lanes: int
) -> None:
    """Store the sums of an operand over k, from the first block of the other side."""
    name, block, total, count = line
    kind = "vec4<f32>" if lanes == 4 else "f32"
    parts = ", ".join(f"{side}{number}" for number in range(count // lanes))
    w.open(f"if ({other} == 0)")
    w.line(f"var sums = array<{kind}, {count // lanes}>({parts});")
    w.open(f"for (var i = 0; i < {count}; i++)", name, f"sum_{side}")
    w.line(f"let {name} = {block} * {count} + i;")
    if total % count:
        w.line(f"if ({name} >= {total}) {{ break; }}")
    w.line(f"let sum_{side} = {'sums[i / 4][i % 4]' if lanes == 4 else 'sums[i]'};")
    w.stores(stores)
    w.close()
    w.close()
