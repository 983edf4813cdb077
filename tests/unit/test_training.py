"""Training from given weights and batches gives the losses of a float64 computation written by hand."""

import asyncio

import numpy as np
import pytest

from tests import models
from tests.unit.helpers import EFFORT
from tests.unit.invariants import check_program
from webgrad.runtime.reference import NumpyExecutor

NAMES = list(models.MODELS)


@pytest.mark.parametrize("name", NAMES)
async def test_twenty_losses_agree_with_float64(name, device):
    losses, shapes = await models.losses_of(name, device)
    np.testing.assert_allclose(losses, models.reference_losses(name, shapes), rtol=1e-4)
    assert len(losses) == 20 and losses[-1] < 0.7 * losses[0], "it learns"


@pytest.mark.parametrize("name", NAMES)
async def test_the_float64_executor_agrees_far_closer(name):
    """What is left of the difference is the parameters' storage in float32."""
    losses, shapes = await models.losses_of(name, NumpyExecutor("graph", float64=True))
    np.testing.assert_allclose(losses, models.reference_losses(name, shapes), rtol=2e-6)


@pytest.mark.parametrize("name", NAMES)
async def test_first_gradients_agree_with_float64(name, device):
    program = await models.train(name, device)
    params = await program.download_params()
    batch = models.batches(name)[0]
    loss, expected = models.MODELS[name][2]({k: v.astype(np.float64) for k, v in params.items()}, **batch)
    assert await program.step(batch) == pytest.approx(loss, rel=1e-6)
    for key, found in (await program.download_param_grads()).items():
        scale = np.abs(expected[key]).max()
        np.testing.assert_allclose(found, expected[key], rtol=1e-4, atol=1e-5 * scale, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
async def test_their_programs_keep_every_invariant(name):
    program = await models.train(name, "numpy")
    check_program(program.ir)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_right_about_its_own_gradients(name):
    """The hand-written gradients against finite differences of the hand-written loss."""
    rng = np.random.default_rng(0)
    back, batch = models.MODELS[name][2], models.batches(name)[0]
    shapes = asyncio.run(shapes_of(name))
    params = {k: v.astype(np.float64) for k, v in models.initial_params(shapes).items()}
    _, grads = back(params, **batch)
    for key, value in params.items():
        for _ in range(2 * EFFORT):
            at = tuple(rng.integers(0, n) for n in value.shape)
            moved = []
            for sign in (1, -1):
                other = {**params, key: value.copy()}
                other[key][at] += sign * 1e-5
                moved.append(back(other, **batch)[0])
            slope = (moved[0] - moved[1]) / 2e-5
            assert grads[key][at] == pytest.approx(slope, rel=1e-5, abs=1e-8), (key, at)


async def shapes_of(name):
    """Shapes of a model's parameters by name."""
    return {n: p.shape for n, p in (await models.train(name, "numpy")).params.items()}
