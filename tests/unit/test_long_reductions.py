"""Reductions of any length: in as many stages as it takes, with work for every core and short sums."""

from __future__ import annotations

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import Empty
from tests.unit.invariants import check_program
from tests.unit.native import native
from webgrad.compile import build_forward, create_forward_runtime
from webgrad.compiler.kernels import Rows
from webgrad.compiler.target import Target
from webgrad.runtime.reference import NumpyExecutor
from webgrad.wgsl.rows import LONG, RUN, SHARED

TARGETS = {kind: Target(kind) for kind in ("software", "hardware")}


def reductions(ir):
    """(rows, terms) of each row kernel, in order."""
    bodies = [k.body for k in ir.schedule.kernels]
    return [(b.rows, b.length) for b in bodies if isinstance(b, Rows)]


def chain(terms, target):
    """How many roundings one after the other a row's sum takes in its kernel."""
    if target.adapter_class == "hardware" and terms >= SHARED:
        lanes = 256 if terms >= LONG else 64
        return -(-terms // lanes) + 8
    return terms if terms <= RUN else RUN + -(-terms // RUN)


def parts_of(function, target, **inputs):
    """A forward program's parts."""
    return build_forward(Empty, lambda model, **t: function(**t), inputs, None, 0, target)


async def results(parts, executor, **values):
    """What the program computes."""
    program = await create_forward_runtime(parts, executor)
    found = await program.run(values)
    program.destroy()
    return found


def four(x):
    """Every reduction that is split, over the last axis."""
    return wg.sum(x, -1), wg.max(x, -1), wg.min(x, -1), wg.prod(x, -1)


def check_four(found, x):
    """Exact, for values whose sums and products are exact."""
    for result, name in zip(found, ("sum", "max", "min", "prod"), strict=True):
        np.testing.assert_array_equal(result, getattr(x.astype(np.float64), name)(-1), err_msg=name)


def signs(*shape):
    """Ones and minus ones: whatever the order, sums and products are exact."""
    return np.random.default_rng(len(shape)).choice(np.array([1, -1], np.float32), shape)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("length", [1, 64, 1025, 5_000, 5_003, 100_000, 100_003, 10_000_000])
async def test_any_length_is_exact_and_its_sums_are_short(length, kind):
    target, x = TARGETS[kind], signs(length)
    parts = parts_of(lambda x: four(x), target, x=x.shape)
    check_program(parts.ir)
    assert all(chain(terms, target) <= 1024 for _, terms in reductions(parts.ir))
    for level in ("graph", "schedule") if length < 1_000_000 else ("schedule",):
        check_four(await results(parts, NumpyExecutor(level, target=target), x=x), x)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("length", [70_001, 200_000])
async def test_long_rows_are_split_however_many_there_are(length, kind):
    target = TARGETS[kind]
    parts = parts_of(lambda x: wg.sum(x + wg.zeros((300, 1)), 1), target, x=(length,))
    assert all(chain(terms, target) <= 1024 for _, terms in reductions(parts.ir))
    assert max(rows for rows, _ in reductions(parts.ir)) >= 600


def test_few_long_rows_keep_a_hardware_adapter_busy():
    parts = parts_of(lambda x: wg.sum(x, 1), TARGETS["hardware"], x=(8, 25_088))
    (first, terms), second = reductions(parts.ir)
    assert first >= 64 and terms >= 1024 and second == (8, first // 8)


def test_short_rows_take_one_stage():
    for kind, shape in (("hardware", (8, 8192)), ("hardware", (500, 25_088)), ("software", (300, 25_088))):
        assert len(reductions(parts_of(lambda x: wg.sum(x, 1), TARGETS[kind], x=shape).ir)) == 1


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("axes", [1, (0, 1), (1, 2), (0, 2)])
async def test_long_reductions_over_middle_axes(axes, kind):
    x = signs(3, 10_007, 2)
    parts = parts_of(lambda x: (wg.sum(x, axes), wg.max(x, axes)), TARGETS[kind], x=x.shape)
    for level in ("graph", "schedule"):
        found = await results(parts, NumpyExecutor(level, target=TARGETS[kind]), x=x)
        np.testing.assert_array_equal(found[0], x.sum(axes))
        np.testing.assert_array_equal(found[1], x.max(axes))


def specials(length):
    """Rows whose results the neutral elements of padded parts must not change."""
    x = np.full((6, length), -np.inf, np.float32)
    x[1] = np.inf
    x[2, length // 2], x[3, -1] = np.nan, 7
    x[4], x[5] = 0, -3
    return x


def check_specials(found, x):
    """The extremes as NumPy has them, NaN included; and those of whole numbers."""
    np.testing.assert_array_equal(found[0], x.max(1))
    np.testing.assert_array_equal(found[1], x.min(1))
    np.testing.assert_array_equal(found[2], x[4:].sum(1))
    np.testing.assert_array_equal(found[3], [-(2**31), 2**31 - 1])


def extremes(x, i):
    """Of floats and of whole numbers."""
    whole = wg.stack([wg.max(i[0]), wg.min(i[1])])
    return wg.max(x, 1), wg.min(x, 1), wg.sum(x[4:], 1), whole


async def special_results(executor, length):
    """`extremes` of `specials` and of the ends of i32."""
    x = specials(length)
    i = np.stack([np.full(length, -(2**31)), np.full(length, 2**31 - 1)]).astype(np.int32)
    parts = parts_of(extremes, executor.target, x=x.shape, i=i)
    return await results(parts, executor, x=x, i=i), x


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("length", [5_003, 20_011])
async def test_what_fills_the_last_part_changes_nothing(length, kind):
    for level in ("graph", "schedule"):
        check_specials(*await special_results(NumpyExecutor(level, target=TARGETS[kind]), length))


@pytest.mark.parametrize("kind", TARGETS)
async def test_long_reductions_on_the_adapter(kind):
    executor, x = native(kind), signs(2, 100_003)
    check_four(await results(parts_of(lambda x: four(x), executor.target, x=x.shape), executor, x=x), x)
    check_specials(*await special_results(executor, 20_011))
