"""Every primitive: documented, right in value, shape and dtype on both levels, right in its gradient."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import Empty, check_grads, evaluate, leaf_values
from tests.unit.optable import ROWS, all_op_classes, all_ops
from webgrad.ops.base import Op
from webgrad.runtime.reference import NumpyExecutor

CASES = [pytest.param(row, case, id=f"{row.op.name} {case}") for row in ROWS for case in row.cases]
COMPUTED = [p for p in CASES if p.values[0].expected is not None]
DIFFERENTIABLE = [
    p for p in CASES if p.values[0].order and any(a.dtype.kind == "f" for a in p.values[1].arrays)
]


def test_every_op_has_exactly_one_row():
    assert sorted(row.op.name for row in ROWS) == sorted(all_ops())
    assert {type(op) for op in all_ops().values()} == all_op_classes(), "a class without an instance"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.op.name)
def test_every_op_is_documented_and_says_whether_it_has_a_gradient(row):
    kind = type(row.op)
    assert kind.__doc__ and "__doc__" in vars(kind), "its own docstring, not its base's"
    assert "vjp" in {n for k in kind.__mro__ if k is not Op for n in vars(k)} or not row.op.differentiable
    assert row.op.differentiable == (row.order > 0)
    assert len(row.cases) >= 1


def traced(row, case):
    """The graph of one application."""

    def function():
        tensors = [wg.tensor_input(n, a.shape, a.dtype) for n, a in leaf_values(case.arrays).items()]
        return row.op(*tensors, **case.attrs)

    return wg.trace(function)


@pytest.mark.parametrize(("row", "case"), CASES)
def test_shape_and_dtype_are_inferred(row, case):
    node = traced(row, case).outputs[0]
    if row.expected is None:
        assert (node.shape, node.dtype) == (case.attrs["shape"], case.attrs["dtype"])
        return
    expected = np.asarray(row.expected(*case.arrays, **case.attrs))
    assert node.shape == expected.shape
    assert {"f32": "f", "i32": "i", "u32": "u", "bool": "b"}[node.dtype] == expected.dtype.kind


@pytest.mark.parametrize(("row", "case"), COMPUTED)
def test_values_are_numpys(row, case):
    graph = traced(row, case)
    found = evaluate(graph, leaf_values(case.arrays), float64=True)[graph.outputs[0]]
    with np.errstate(all="ignore"):
        expected = row.expected(*case.arrays, **case.attrs)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


#: a pack is an arena of updates: the training programs of the levels' tests run it
RUN_ALONE = [p for p in COMPUTED if p.values[0].op.name != "pack"]


@pytest.mark.parametrize(("row", "case"), RUN_ALONE)
def test_both_levels_compute_it(row, case):
    arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in map(np.asarray, case.arrays)]
    given = leaf_values(arrays)

    def forward(model, **inputs):
        return row.op(*[inputs[n] for n in given], **case.attrs)

    async def run(level):
        program = await wg.compile_forward(Empty, forward, inputs=given, device=NumpyExecutor(level))
        return await program.run(given)

    graph = traced(row, case)
    expected = evaluate(graph, given)[graph.outputs[0]]
    for level in ("graph", "schedule"):
        found = asyncio.run(run(level))
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6)


# --- gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "case"), DIFFERENTIABLE)
def test_gradients_agree_with_finite_differences(row, case):
    order = 1 if sum(a.size for a in case.arrays) > 24 else row.order
    check_grads(lambda *tensors: row.op(*tensors, **case.attrs), case.arrays, order)


@pytest.mark.parametrize("row", [r for r in ROWS if not r.order], ids=lambda row: row.op.name)
def test_ops_without_a_gradient_let_none_through(row):
    case = row.cases[-1]
    if row.op.name == "pack":
        return  # only optimizers pack, after every gradient
    node = traced(row, case).outputs[0]
    assert all(x is None for x in row.op.vjp(node, None))
    assert len(row.op.vjp(node, None)) == len(node.inputs)
