"""The first 20 losses of real models on the page agree with float64, from the same weights and batches."""

from pathlib import Path

import numpy as np
import pytest

from bench import workloads
from webgrad.runtime.reference import NumpyExecutor

SOURCE = Path(workloads.__file__).read_text()
STEPS = 20


async def twenty_losses(source, name, device):
    """Losses of the workload's first steps; ``source`` is the module of the workloads."""
    import sys
    import types

    space = types.ModuleType("workloads")
    sys.modules[space.__name__] = space  # where its dataclasses look their module up
    exec(compile(source, "workloads.py", "exec"), vars(space))
    w = space.WORKLOADS[name]
    train = await space.wg.compile_module(
        w.model, w.loss, inputs=w.inputs, optimizer=w.optimizer, device=device, seed=3
    )
    train.upload_params(space.initial_params(name), partial=True)
    batches = space.batches(name)
    losses = [await train.step(batches[i % len(batches)]) for i in range(20)]
    train.destroy()
    return losses


@pytest.mark.parametrize("name", ["W1", "W2", "W4", "W3"])
async def test_first_losses_agree_with_float64(page_py, name):
    source = SOURCE.replace("64, 4, 2, lambda t", "64, 4, 1, lambda t")  # the transformer with one layer
    source = source.replace('(65, 64, 2, 64) if name == "W3"', '(65, 64, 1, 64) if name == "W3"')
    expected = await twenty_losses(source, name, NumpyExecutor("graph", float64=True))
    found = page_py(twenty_losses, source, name, "webgpu", timeout=60)
    assert len(expected) == STEPS
    np.testing.assert_allclose(found, expected, rtol=1e-4)
