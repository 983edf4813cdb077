"""The first 20 losses of real models on the page agree with float64, from the same weights and batches.

Training amplifies rounding: Adam divides by the root of tiny second moments. So each loss may be off by 1e-5
and by four times the greatest error that plain float32, op by op, has had by then.
"""

from pathlib import Path

import numpy as np
import pytest

from bench import workloads
from webgrad.runtime.reference import NumpyExecutor

SOURCE = Path(workloads.__file__).read_text()
STEPS = 20


async def in_page(source, name, adapter_class):
    """`twenty_losses` on the page's adapter, compiled for a class of adapters."""
    import dataclasses

    from webgrad.runtime.webgpu import open_webgpu

    executor = await open_webgpu()
    own = executor.target
    if own.adapter_class != adapter_class:
        executor.target = dataclasses.replace(own, adapter_class=adapter_class, quads=False)
    try:
        return await twenty_losses(source, name, executor)
    finally:
        executor.target = own


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


#: so that the transformers have one layer
SHALLOW = [
    ("65, 64, 64, 4, 2, wg.gelu", "65, 64, 64, 4, 1, wg.gelu"),
    ("12, 8, 64, 4, 3, wg.relu", "12, 8, 64, 4, 1, wg.relu"),
    ("(65, 64, 2, 64)", "(65, 64, 1, 64)"),
    ("(12, 8, 3, 64)", "(12, 8, 1, 64)"),
]


@pytest.mark.parametrize(
    ("name", "adapter_class"), [*((name, "software") for name in workloads.WORKLOADS), ("W6", "hardware")]
)
async def test_first_losses_agree_with_float64(page_py, name, adapter_class):
    source = SOURCE
    for deep, shallow in SHALLOW:
        assert deep in source
        source = source.replace(deep, shallow)
    expected = await twenty_losses(source, name, NumpyExecutor("graph", float64=True))
    plain = await twenty_losses(source, name, NumpyExecutor("graph"))
    found = page_py(in_page, source, name, adapter_class, uses=[twenty_losses], timeout=60)
    assert len(expected) == len(found) == STEPS
    rounding = np.maximum.accumulate(np.abs(np.divide(plain, expected) - 1))
    assert rounding.max() < 1e-4, "plain float32 is a useful yardstick"
    error = np.abs(np.divide(found, expected) - 1)
    assert np.all(error <= 1e-5 + 4 * rounding), (error, rounding)
    if (name, adapter_class) != ("W6", "hardware"):  # whose sums run in yet another order
        np.testing.assert_allclose(found, expected, rtol=1e-4)
