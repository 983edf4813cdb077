"""The emitted WGSL by a second compiler (naga) on the machine's own adapter, where there is one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import models, programs
from tests.unit.helpers import examples
from tests.unit.native import native
from tests.unit.test_levels import check_forward
from tests.unit.test_programs import assert_close
from webgrad.runtime.reference import NumpyExecutor

#: programs whose kernels the two classes of adapters shape differently
HARDWARE = [
    "sums", "long sum", "long rows", "max and arg", "any and all", "softmax", "layer norm", "cross entropy",
    "attention", "matmul", "matmul tall", "conv", "convnet", "pool overlapping", "embedding",
]  # fmt: skip


@pytest.fixture(scope="module")
def natives():
    """An executor with the kernels of each class of adapters."""
    return {kind: native(adapter_class=kind) for kind in ("software", "hardware")}


@pytest.mark.parametrize(
    ("name", "kind"), [(n, "software") for n in programs.PROGRAMS] + [(n, "hardware") for n in HARDWARE]
)
async def test_programs_agree_with_float64(natives, name, kind):
    expected = await programs.run_program(name, NumpyExecutor("graph", float64=True))
    assert_close(await programs.run_program(name, natives[kind]), expected, name, relative=1e-4)


@pytest.mark.parametrize("kind", ["software", "hardware"])
@pytest.mark.parametrize("name", models.MODELS)
async def test_twenty_losses_agree_with_float64(natives, name, kind):
    losses, shapes = await models.losses_of(name, natives[kind])
    np.testing.assert_allclose(losses, models.reference_losses(name, shapes), rtol=1e-4)


@pytest.mark.parametrize("kind", ["software", "hardware"])
def test_random_programs_agree_with_the_graph_as_traced(natives, kind):
    @examples(15)
    @given(st.data())
    def check(data):
        executor = natives[kind]
        check_forward(data, executor.target, [executor], relative=1e-4)

    check()
