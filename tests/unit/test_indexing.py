"""Index expressions mean what the integers they stand for mean, whatever is simplified."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.helpers import examples
from webgrad.compiler.indexing import Indexer
from webgrad.ops.movement import Broadcast, Flip, Pad, Permute, Reshape, Slice, Windows

SIZES = {"i": 5, "j": 8, "k": 3}
GRID = dict(zip(SIZES, np.meshgrid(*[np.arange(n) for n in SIZES.values()], indexing="ij"), strict=True))
QUICK = examples(200)


def value(e, env):
    """An index expression or mask over all points."""
    kind, args = e.kind, [value(a, env) for a in e.args]
    if kind == "int":
        return np.asarray(e.attr)
    if kind == "var":
        return env[e.attr]
    if kind == "sum":
        return sum((a * c for a, c in zip(args, e.attr[0], strict=True)), np.asarray(e.attr[1]))
    if kind == "div":
        return args[0] // e.attr
    if kind == "mod":
        return args[0] % e.attr
    if kind == "within":  # a promise about the points where a mask holds, which the caller checks
        return args[0]
    return {
        "ge0": lambda: args[0] >= 0,
        "eq0": lambda: args[0] == 0,
        "and": lambda: args[0] & args[1],
        "false": lambda: np.asarray(False),
        "true": lambda: np.asarray(True),
    }[kind]()


def check(e, expected, env=GRID):
    """The expression has these values, lies in its bounds, and divides nothing that may be negative."""
    found = value(e, env)
    np.testing.assert_array_equal(np.broadcast_to(found, np.shape(expected)), expected, err_msg=str(e))
    if e.dtype == "i32":
        assert e.lo <= found.min() and found.max() <= e.hi, f"{e} in [{e.lo}, {e.hi}]"
    stack = [e]
    while stack:
        x = stack.pop()
        stack.extend(x.args)
        if x.kind in ("div", "mod"):
            assert x.args[0].lo >= 0, f"WGSL truncates: {x}"


numbers = st.integers(-12, 12)
divisors = st.integers(1, 12)


@st.composite
def expressions(draw, ix=None, names=tuple(SIZES), depth=5):
    """(expression, its values on the grid)."""
    ix = ix or Indexer()
    pool = [(ix.var(n, SIZES[n]), GRID[n]) for n in names] + [
        (ix.const(c), np.asarray(c)) for c in (draw(numbers),)
    ]
    for _ in range(draw(st.integers(0, depth))):
        a, x = draw(st.sampled_from(pool))
        b, y = draw(st.sampled_from(pool))
        kind, c, d = (
            draw(st.sampled_from(["add", "add", "mul", "div", "mod", "mix"])),
            draw(numbers),
            draw(divisors),
        )
        pool.append({
            "add": lambda a=a, b=b, x=x, y=y: (ix.add(a, b), x + y),
            "mul": lambda a=a, x=x, c=c: (ix.mul(a, c), x * c),
            "div": lambda a=a, x=x, d=d: (ix.div(a, d), x // d),
            "mod": lambda a=a, x=x, d=d: (ix.mod(a, d), x % d),
            "mix": lambda a=a, b=b, x=x, y=y, d=d: (
                ix.add(ix.mul(ix.div(a, d), d), ix.mod(b, d)), x // d * d + y % d
            ),
        }[kind]())  # fmt: skip
    return (ix, *pool[-1])


@QUICK
@given(expressions())
def test_arithmetic_is_integer_arithmetic(case):
    _, e, expected = case
    check(e, expected)


@QUICK
@given(expressions(), divisors, divisors)
def test_division_and_remainder_of_anything(case, n, m):
    ix, e, x = case
    check(ix.div(e, n), x // n)
    check(ix.mod(e, n), x % n)
    check(ix.add(ix.mul(ix.div(e, n), n), ix.mod(e, n)), x)
    check(ix.div(ix.div(e, n), m), x // n // m)
    check(ix.mod(ix.mod(e, n * m), n), x % n)
    check(ix.add(ix.mul(ix.mod(ix.div(e, n), m), n), ix.mod(e, n)), x % (n * m))


@QUICK
@given(expressions(), st.integers(-3, 3), divisors)
def test_masks(case, shift, n):
    ix, e, x = case
    moved = ix.add(e, ix.const(shift))
    for mask, expected in (
        (ix.ge0(moved), x + shift >= 0),
        (ix.eq0(moved), x + shift == 0),
        (ix.eq0(ix.mod(e, n)), x % n == 0),
        (ix.both(ix.ge0(moved), ix.ge0(ix.mul(e, -1))), (x + shift >= 0) & (-x >= 0)),
        (ix.both(ix.ge0(moved), None), x + shift >= 0),
        (ix.both(ix.false, ix.ge0(moved)), np.zeros_like(x, bool)),
        (ix.both(ix.true, ix.eq0(moved)), x + shift == 0),
    ):
        check(ix.true if mask is None else mask, expected)


@QUICK
@given(st.data())
def test_substitution(data):
    ix, e, _ = data.draw(expressions())
    _, new, values = data.draw(expressions(ix, ("j", "k"), 3))
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= SIZES["i"]:  # a variable stands for a value in its range only
        new, values = ix.mod(new, SIZES["i"]), values % SIZES["i"]
    check(ix.substitute(e, {ix.var("i", SIZES["i"]): new}), value(e, {**GRID, "i": values}))


@QUICK
@given(st.lists(st.integers(1, 5), max_size=4))
def test_ravel_and_unravel_are_inverse(shape):
    ix, size = Indexer(), int(np.prod(shape))
    flat = ix.var("n", size)
    env = {"n": np.arange(size)}
    coords = ix.unravel(flat, shape)
    for coord, expected in zip(coords, np.unravel_index(env["n"], shape) if shape else (), strict=True):
        check(coord, expected, env)
    assert ix.ravel(coords, shape) is flat


@pytest.mark.parametrize("shape", [(36,), (9, 4), (4, 9), (9, 2, 2), (2, 3, 6), (12, 3), (2, 2, 3, 3)])
def test_a_products_flat_index_survives_any_reshape(shape):
    ix = Indexer()
    flat = ix.add(ix.mul(ix.var("m", 6), 6), ix.var("n", 6))
    env = dict(zip("mn", np.indices((6, 6)), strict=True))
    check(ix.ravel(ix.unravel(flat, shape), shape), env["m"] * 6 + env["n"], env)


@QUICK
@given(st.data())
def test_a_reshape_there_and_back_is_the_identity(data):
    a = data.draw(st.permutations([2, 3, 4]))
    b = data.draw(st.sampled_from([(24,), (6, 4), (4, 6), (2, 12), (3, 8), (8, 3), (2, 2, 2, 3)]))
    ix = Indexer()
    flat = ix.var("n", 24)
    there = ix.ravel(ix.unravel(flat, a), a)
    back = ix.ravel(ix.unravel(there, b), b)
    assert back is flat


def test_what_the_module_promises_to_collapse():
    ix = Indexer()
    m, n, x = ix.var("m", 8), ix.var("n", 64), ix.var("x", 4096)
    assert ix.div(ix.add(ix.mul(m, 64), n), 64) is m
    assert ix.mod(ix.add(ix.mul(m, 64), n), 64) is n
    assert ix.add(ix.mul(ix.div(x, 8), 8), ix.mod(x, 8)) is x
    assert ix.add(ix.mul(ix.mod(ix.div(x, 8), 4), 8), ix.mod(x, 8)) is ix.mod(x, 32)


def test_equal_expressions_are_one_object():
    ix = Indexer()
    i, j = ix.var("i", 5), ix.var("j", 8)
    assert ix.add(i, j) is ix.add(j, i)
    assert ix.add(ix.mul(i, 2), i) is ix.mul(i, 3)
    assert ix.var("i", 1) is ix.const(0)


@st.composite
def movements(draw):
    """A chain of movement ops on a small array: nodes with shapes, innermost first."""

    class Node:
        """What `index_map` reads of a node."""

        def __init__(self, op, inputs, attrs, shape):
            self.op, self.inputs, self.attrs, self.shape, self.ndim = op, inputs, attrs, shape, len(shape)

    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    node = Node(None, (), {}, shape)
    for _ in range(draw(st.integers(1, 5))):
        rank, size = len(node.shape), int(np.prod(node.shape))
        number = lambda low, high: draw(st.integers(low, high))  # noqa: E731
        kind = draw(st.sampled_from([Reshape, Permute, Broadcast, Slice, Pad, Flip, Windows]))
        if kind is Reshape:
            first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
            attrs = {"shape": (first, size // first)}
        elif kind is Permute:
            attrs = {"axes": tuple(draw(st.permutations(range(rank))))}
        elif kind is Broadcast:
            attrs = {"shape": (number(1, 2), *[number(1, 3) if n == 1 else n for n in node.shape])}
        elif kind is Slice:
            starts = tuple(number(0, n - 1) for n in node.shape)
            steps = tuple(number(1, 3) for _ in node.shape)
            rows = zip(node.shape, starts, steps, strict=True)
            attrs = {
                "starts": starts,
                "steps": steps,
                "sizes": tuple(number(1, -(-(n - s) // t)) for n, s, t in rows),
            }
        elif kind is Pad:
            attrs = {k: tuple(number(0, 2) for _ in node.shape) for k in ("low", "high", "interior")}
            attrs["value"] = -1
        elif kind is Flip:
            attrs = {"axes": tuple(a for a in range(rank) if number(0, 1))}
        else:
            if rank < 2:
                continue
            kernel = tuple(number(1, n) for n in node.shape[-2:])
            attrs = {"kernel": kernel, "stride": (number(1, 2), number(1, 2)), "dilation": (1, 1)}
        op = kind()
        made = Node(op, (node,), attrs, op.out_shape(node.shape, attrs))
        if int(np.prod(made.shape)) > 600 or len(made.shape) > 6:
            break
        node = made
    return node


@QUICK
@given(movements())
def test_index_maps_of_chains_of_movements_read_what_numpy_reads(node):
    chain = []
    while node.inputs:
        chain.append(node)
        (node,) = node.inputs
    source = np.arange(int(np.prod(node.shape))).reshape(node.shape)
    expected = source
    for step in reversed(chain):
        expected = step.op.numpy(step.attrs, expected)
    ix = Indexer()
    shape = expected.shape
    coords, mask = ix.unravel(ix.var("n", expected.size), shape), None
    for step in chain:
        coords, more = step.op.index_map(step, coords, ix)
        mask = ix.both(mask, more)
    env = {"n": np.arange(expected.size)}
    flat = ix.ravel(coords, node.shape)
    inside = np.broadcast_to(True if mask is None else value(mask, env), (expected.size,))
    at = np.broadcast_to(value(flat, env), (expected.size,))
    assert np.all((at[inside] >= 0) & (at[inside] < source.size))
    found = np.where(inside, source.ravel()[np.clip(at, 0, source.size - 1)], -1)
    np.testing.assert_array_equal(found, expected.ravel())
