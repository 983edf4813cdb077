"""Prices of a product's blocks, for the strategies whose best block depends on more than the result's size.

Also what one expression costs, and an operand's value at each step of an unrolled loop over k: prices and
templates must mean the same.
"""

from __future__ import annotations

from functools import cache

from webgrad.compiler.indexing import Expr, Indexer
from webgrad.compiler.kernels import Contraction, Quads, Registers, Side
from webgrad.compiler.target import Target

#: nanoseconds for four threads on SwiftShader; an operation takes about one
LOAD, DIVISION = 13.0, 8.0


def cost(e: Expr) -> float:
    """About how many nanoseconds the expression's own operation takes on SwiftShader."""
    if e.kind == "load":
        return LOAD
    if e.kind in ("div", "mod"):
        return DIVISION
    if e.kind == "apply":
        return float(e.attr[0].cost)
    return float(len(e.args))


def at_steps(
    ix: Indexer, operand: Expr, line_var: Expr, lines: list[Expr], k_var: Expr, steps: list[Expr]
) -> dict[tuple[int, int], Expr]:
    """The operand at every (line, step)."""
    return {
        (i, u): ix.substitute(operand, {line_var: line, k_var: step})
        for i, line in enumerate(lines)
        for u, step in enumerate(steps)
    }


def k_steps(ix: Indexer, k: tuple[str, int], unroll: int) -> list[Expr]:
    """The innermost index of k at each step of one turn of its loop."""
    name, length = k
    turn = ix.mul(ix.var(name, length // unroll), unroll)
    return [ix.add(turn, ix.const(u)) for u in range(unroll)]


# --- registers --------------------------------------------------------------------------------------

BLOCKS = [(m, n) for m in (8, 4, 2, 1) for n in (8, 4, 1)]
#: larger blocks, whose longer text takes drivers twice the time, for products of at least this many terms
LARGE_BLOCKS = [(16, 8), (8, 16)]
LARGE = 1 << 24


def register_blocks(c: Contraction, target: Target) -> list[Registers]:
    """Rows and columns per thread, the best first: few loads per multiply-add, little waste at the edges,
    enough threads.

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
    return [Registers(*block) for block in sorted(LARGE_BLOCKS + BLOCKS if large else BLOCKS, key=price)]


def worth_quads(c: Contraction) -> bool:
    """Whether both sides are long enough to share lines."""
    return min(c.m, c.n) >= 3 and max(c.m, c.n) >= 8


# --- quads ------------------------------------------------------------------------------------------

#: nanoseconds of one SIMD operation, measured on SwiftShader
BROADCAST, MULTIPLY_ADD = 1.5, 1.3
#: of one turn of a loop, and to finish an element
TURN, ELEMENT = 12.0, 45.0
#: nanoseconds to make the pipeline, per operation of one turn of the loop, spread over this many steps
MAKE, STEPS = 350_000.0, 1000
#: threads that keep the adapter busy
BUSY = 64
LARGEST_BLOCK = 128
#: batch, m, n and k of a product
Sizes = tuple[int, int, int, int]


def quad_blocks(ix: Indexer, c: Contraction) -> list[Quads]:
    """Some good blocks, the one that is likely to be fastest first, by what their text would do."""
    sizes = (c.batch, c.m, c.n, c.k)
    good = list(_good_blocks(sizes, c.loops[-1][1]))
    if len(c.loops) == 1:
        return good
    return sorted(good, key=lambda choice: _price(sizes, choice, *_loads(ix, c, choice)))


@cache
def _good_blocks(sizes: Sizes, turns: int) -> tuple[Quads, ...]:
    """The best eight as far as sizes tell, the innermost loop over k taking so many turns."""
    sides: tuple[Side, Side] = ("left", "right")
    options = [
        Quads(shared, own, unroll, side)
        for side in sides
        for shared in (4, 8, 16, 32)
        for own in range(1, 9)
        for unroll in (1, 2, 3, 4)
        if shared * own <= LARGEST_BLOCK and turns % unroll == 0
    ]
    options.sort(key=lambda choice: _price(sizes, choice, choice.shared / 4 + choice.own, 0.0))
    return tuple(options[:8])


def _price(sizes: Sizes, choice: Quads, loads: float, setup: float) -> float:
    """Nanoseconds of one core, where a step of k costs as much as ``loads`` loads."""
    ts, to, unroll = choice.shared, choice.own, choice.unroll
    batch, m, n, k = sizes
    shared, own = (m, n) if choice.side == "left" else (n, m)
    quads = batch * -(-shared // ts) * -(-own // (4 * to))
    step = LOAD * loads + BROADCAST * ts + MULTIPLY_ADD * ts * to
    turns = step * k + (TURN + 0.5 * ts * to) * k / unroll
    idle = max(1.0, BUSY / (4 * quads))
    make = MAKE * unroll * (8 * loads + ts + ts * to) / STEPS
    return (quads * (turns + ELEMENT * ts * to + setup)) * idle**0.7 + make


def _loads(ix: Indexer, c: Contraction, choice: Quads) -> tuple[float, float]:
    """What the loads of a step cost, in loads, and nanoseconds before the loop."""
    last = c.loops[-1]
    steps, k_var = k_steps(ix, last, choice.unroll), ix.var(*last)
    left = choice.side == "left"
    m, n = ix.var("m", c.m), ix.var("n", c.n)
    shared, own = ((c.left, m, c.m), (c.right, n, c.n)) if left else ((c.right, n, c.n), (c.left, m, c.m))
    each = choice.shared // 4
    lane, block = ix.var("lane", 4), ix.var("block", -(-shared[2] // choice.shared))
    mine = ix.add(ix.mul(block, choice.shared), ix.mul(lane, each))
    thread = ix.mul(ix.var("thread", -(-own[2] // choice.own)), choice.own)
    inner = {name for name, _ in c.loops}
    turn, setup = 0.0, 0.0
    for (operand, line, _), first, count in ((shared, mine, each), (own, thread, choice.own)):
        lines = [ix.add(first, ix.const(i)) for i in range(count)]
        values = at_steps(ix, operand, line, lines, k_var, steps)
        stack, seen = list(values.values()), set()
        while stack:
            e = stack.pop()
            if e.uid not in seen:
                seen.add(e.uid)
                stack.extend(e.args)
                if e.free & inner:
                    turn += cost(e)
                else:
                    setup += cost(e)
    return turn / choice.unroll / LOAD, setup
