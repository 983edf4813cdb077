"""Template of the contract family: matmul, batched matmul, convolution and its gradients.

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

from dataclasses import dataclass

from webgrad.compiler.indexing import Expr
from webgrad.compiler.kernels import Contraction, Store
from webgrad.compiler.target import Target
from webgrad.wgsl.rows import Grid, launch
from webgrad.wgsl.writer import KernelWriter

BLOCKS = [(m, n) for m in (8, 4, 2, 1) for n in (8, 4, 1)]
#: larger blocks, whose longer text takes drivers twice the time, for products of at least this many terms
LARGE_BLOCKS = [(16, 8), (8, 16)]
LARGE = 1 << 24


def choose_block(c: Contraction, target: Target) -> tuple[int, int]:
    """Rows and columns per thread: few loads per multiply-add, little waste at the edges, enough threads.

    The estimate per padded multiply-add: 1/8 for the arithmetic, 1/TM + 1/TN for the loads, scaled up while
    there are fewer threads than the adapter runs at once.
    """
    wanted = 64 if target.adapter_class == "software" else 4096

    def price(block: tuple[int, int]) -> float:
        tm, tn = block
        rows, cols = -(-c.m // tm), -(-c.n // tn)
        threads = c.batch * rows * cols
        lane = 1.0 if tn >= 4 else 3.0
        work = rows * tm * cols * tn * lane * (1 / 8 + 1 / tm + 1 / tn)
        return work * max(1.0, (wanted / threads) ** 0.7)

    large = c.batch * c.m * c.n * c.k >= LARGE
    return min(LARGE_BLOCKS + BLOCKS if large else BLOCKS, key=price)


@dataclass
class Operand:
    """How one operand's block is loaded: names of scalars or vec4 components by (line, step of k)."""

    texts: dict[tuple[int, int], str]
    #: (step of k, column group) -> a ready vec4, when loaded along the columns
    vectors: dict[tuple[int, int], str]


def emit_contract(w: KernelWriter) -> tuple[str, Grid]:
    """The blocked product."""
    c = w.kernel.body
    assert isinstance(c, Contraction)
    tm, tn = choose_block(c, w.plan.target)
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
    *outer, (name, length) = c.loops
    unroll = 4 if length % 4 == 0 and _wants_unroll(w, c, rows, cols) else 1
    for variable, size_ in outer:
        w.open(f"for (var {variable} = 0; {variable} < {size_}; {variable}++)", variable)
    w.open(f"for (var {name} = 0; {name} < {length // unroll}; {name}++)", name)
    steps = _steps(w, c, unroll)
    tables = _at(w, c.left, "m", rows, c, steps), _at(w, c.right, "n", cols, c, steps)
    w.count_uses([e for table in tables for e in table.values()])
    left, right = (_load(w, table) for table in tables)
    for u in range(unroll):
        for i in range(tm) if sums["left"] else ():
            w.line(f"left{i} += {left.texts[i, u]};")
        for g in range(tn // lanes):
            column = _column(w, right, u, g, lanes)
            if sums["right"]:
                w.line(f"right{g} += {column};")
            for i in range(tm):
                w.line(f"{acc[i, g]} += {left.texts[i, u]} * {column};")
    for _ in c.loops:
        w.close()
    _epilogue(w, c, tm, tn, lanes, acc)
    if sums["left"]:
        _store_sums(w, sums["left"], "left", "nt", ("m", "mt", c.m, tm), 1)
    if sums["right"]:
        _store_sums(w, sums["right"], "right", "mt", ("n", "nt", c.n, tn), lanes)
    return w.module(size, threads, grid), grid


def _lines(w: KernelWriter, name: str, block: str, total: int, count: int) -> list[Expr]:
    """The block's row (or column) numbers; clamped where the last block reaches over the edge."""
    blocks = -(-total // count)
    first = w.ix.mul(w.ix.var(block, blocks), count)
    if total % count == 0:
        return [w.ix.add(first, w.ix.const(i)) for i in range(count)]
    found = []
    for i in range(count):
        line = f"{name}{i}"
        w.line(f"let {line} = min({block} * {count} + {i}, {total - 1});")
        w.declare(line)
        found.append(w.ix.var(line, total))
    return found


def _at(
    w: KernelWriter, operand: Expr, along: str, lines: list[Expr], c: Contraction, steps: list[Expr]
) -> dict[tuple[int, int], Expr]:
    """The operand at every (line, step)."""
    line_var, k_var = w.ix.var(along, c.m if along == "m" else c.n), w.ix.var(*c.loops[-1])
    found = {}
    for i, line in enumerate(lines):
        for u, step in enumerate(steps):
            found[i, u] = w.ix.substitute(operand, {line_var: line, k_var: step})
    return found


def _steps(w: KernelWriter, c: Contraction, unroll: int) -> list[Expr]:
    """The innermost index of k at each step of one turn of its loop."""
    name, length = c.loops[-1]
    turn = w.ix.mul(w.ix.var(name, length // unroll), unroll)
    return [w.ix.add(turn, w.ix.const(u)) for u in range(unroll)]


def _wants_unroll(w: KernelWriter, c: Contraction, rows: list[Expr], cols: list[Expr]) -> bool:
    """Whether an operand is contiguous along k, so that four steps load one vec4."""
    steps = _steps(w, c, 4)
    for operand, along, lines in ((c.left, "m", rows), (c.right, "n", cols)):
        table = _at(w, operand, along, lines[:1], c, steps)
        if _vector(w, [table[0, u] for u in range(4)]) is not None:
            return True
    return False


def _vector(w: KernelWriter, four: list[Expr]) -> Expr | None:
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


def _load(w: KernelWriter, table: dict[tuple[int, int], Expr]) -> Operand:
    """Load an operand's block for this step of the loop."""
    lines = 1 + max(i for i, _ in table)
    unroll = 1 + max(u for _, u in table)
    out = Operand({}, {})
    if unroll == 4:
        starts = [_vector(w, [table[i, u] for u in range(4)]) for i in range(lines)]
        if all(s is not None for s in starts):
            for i, start in enumerate(starts):
                name = _load_vector(w, table[i, 0], start)
                out.texts.update({(i, u): f"{name}.{'xyzw'[u]}" for u in range(4)})
            return out
    if lines % 4 == 0:
        groups = [(u, g) for u in range(unroll) for g in range(lines // 4)]
        found = {(u, g): _vector(w, [table[4 * g + j, u] for j in range(4)]) for u, g in groups}
        if all(s is not None for s in found.values()):
            for (u, g), start in found.items():
                name = _load_vector(w, table[4 * g, u], start)
                out.vectors[u, g] = name
                out.texts.update({(4 * g + j, u): f"{name}.{'xyzw'[j]}" for j in range(4)})
            return out
    for place, e in table.items():
        out.texts[place] = w.value(e)
    return out


def _load_vector(w: KernelWriter, first: Expr, start: Expr | None) -> str:
    assert start is not None
    name = w.fresh("v")
    w.line(f"let {name} = {w.slot(first.attr, vector=True).name}[{w.text(start)}];")
    return name


def _column(w: KernelWriter, right: Operand, u: int, g: int, lanes: int) -> str:
    """The columns of a group at step ``u``."""
    if lanes == 1:
        return right.texts[g, u]
    if (u, g) in right.vectors:
        return right.vectors[u, g]
    name = w.fresh("c")
    w.line(f"let {name} = vec4<f32>({', '.join(right.texts[4 * g + j, u] for j in range(4))});")
    return name


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
    stores = [s for s in w.kernel.stores if s.side is None]
    if any("i" in e.free for s in stores for e in (s.index, s.value)):
        w.line(f"let flat = {w.text(w.kernel.index)};")
        w.rename("i", "flat")
    w.stores(stores)
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
