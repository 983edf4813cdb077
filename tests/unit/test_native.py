"""The emitted WGSL by a second compiler (naga) on the machine's own adapters, where there are some.

Every kernel of the tables that the pages' tests use, and of every op, as it is written for either class of
adapters: software and hardware.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import webgrad as wg
from bench import static
from tests import models, programs
from tests.unit.helpers import Empty, examples
from tests.unit.native import CLASSES, native, others
from tests.unit.optable import ROWS
from tests.unit.test_levels import check_forward
from tests.unit.test_programs import assert_close, assert_same_bits
from webgrad.runtime.native_device import accepted
from webgrad.runtime.reference import NumpyExecutor

#: a pack is an arena of updates: the training programs run it. Leaves compute nothing.
OPS = [row for row in ROWS if row.expected is not None and row.op.name != "pack"]


@pytest.fixture(scope="module", params=CLASSES)
def executor(request):
    """The machine's adapter, with the kernels of a class of adapters."""
    return native(request.param)


@pytest.mark.parametrize("name", programs.PROGRAMS)
async def test_programs_agree_with_float64(executor, name):
    expected = await programs.run_program(name, NumpyExecutor("graph", float64=True))
    assert_close(await programs.run_program(name, executor), expected, name, relative=1e-4)


@pytest.mark.parametrize("name", programs.SPECIALS)
async def test_special_values_are_the_same_bits(executor, name):
    expected = await programs.run_special(name, NumpyExecutor("graph"))
    assert_same_bits(await programs.run_special(name, executor), expected, name)


@pytest.mark.parametrize("row", OPS, ids=lambda row: row.op.name)
async def test_every_op_computes_what_numpy_does(executor, row):
    """All cases of an op in one program."""
    cases = [[np.asarray(a) for a in case.arrays] for case in row.cases]
    cases = [[a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays] for arrays in cases]
    inputs = {f"c{c}x{k}": a for c, arrays in enumerate(cases) for k, a in enumerate(arrays)}

    def forward(model, **tensors):
        operands = [[tensors[f"c{c}x{k}"] for k in range(len(arrays))] for c, arrays in enumerate(cases)]
        return [row.op(*given, **case.attrs) for given, case in zip(operands, row.cases, strict=True)]

    with np.errstate(all="ignore"):
        expected = [
            np.asarray(row.expected(*arrays, **case.attrs))
            for arrays, case in zip(cases, row.cases, strict=True)
        ]
    async with await wg.compile_forward(Empty, forward, inputs=inputs, device=executor) as program:
        assert_close(await program.run(inputs), expected, row.op.name)


@pytest.mark.parametrize("name", models.MODELS)
async def test_twenty_losses_agree_with_float64(executor, name):
    losses, shapes = await models.losses_of(name, executor)
    np.testing.assert_allclose(losses, models.reference_losses(name, shapes), rtol=1e-4)


def test_random_programs_agree_with_the_graph_as_traced(executor):
    @examples(15)
    @given(st.data())
    def check(data):
        check_forward(data, executor.target, [executor], relative=1e-4)

    check()


@pytest.mark.parametrize("kind", CLASSES)
async def test_every_other_adapter_of_the_machine_trains_alike(kind):
    """Their kernels may differ, so models that use most of them run there, too."""
    for name, executor in others().items():
        for model in ("mlp", "cnn"):
            losses, shapes = await models.losses_of(model, native(kind, executor))
            expected = models.reference_losses(model, shapes)
            np.testing.assert_allclose(losses, expected, rtol=1e-4, err_msg=f"{model} on {name}")
        executor.close()


async def test_threads_hand_values_round_where_they_run_four_abreast():
    """naga refuses the line that enables subgroups, and computes with them all the same."""
    executors = [native().executor, *others().values()]
    executor = next((e for e in executors if e.target.quads), None)
    if executor is None:
        pytest.skip("no SwiftShader on this machine (it comes with Chromium)")
    given = {"a": np.ones((64, 32), np.float32), "b": np.arange(32.0 * 48).reshape(32, 48) / 512}
    async with await wg.compile_forward(
        Empty, lambda model, a, b: a @ b, inputs=given, device=native("software", executor)
    ) as program:
        assert any("quadBroadcast" in text for text in program.ir.program.modules)
        np.testing.assert_allclose(await program.run(given), given["a"] @ given["b"], rtol=1e-5)


@pytest.mark.parametrize("adapter_class", static.TARGETS)
@pytest.mark.parametrize("name", static.WORKLOADS)
def test_naga_takes_every_kernel_of_the_benchmark(name, adapter_class):
    device = native().executor.device
    _, ir = static.measure(name, adapter_class)
    for text in ir.program.modules:
        device.create_shader_module(code=accepted(text))
