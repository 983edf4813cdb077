"""The contract, line 20: layers."""

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import raises_here
from webgrad import nn

RNG = np.random.default_rng(3)


async def run(factory, x, values=None, device="numpy"):
    """The layer on one array, with parameters of one's own; and its initial parameters."""
    program = await wg.compile_forward(
        factory, lambda model, x: model(x), inputs={"x": x.shape}, device=device
    )
    initial = await program.download_params()
    if values is not None:
        program.upload_params(values)
    return await program.run({"x": x}), initial


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,), (2, 0, 3)])
async def test_20_linear(device, lead):
    x, w, b = RNG.normal(size=(*lead, 5)), RNG.normal(size=(5, 7)), RNG.normal(size=7)
    y, initial = await run(lambda: nn.Linear(5, 7), x, {"W": w, "b": b}, device)
    assert list(initial) == ["W", "b"]
    assert initial["W"].shape == (5, 7) and initial["W"].std() == pytest.approx(0.02, rel=0.4)
    np.testing.assert_array_equal(initial["b"], np.zeros(7))
    np.testing.assert_allclose(y, x @ w + b, rtol=1e-5, atol=1e-5)


async def test_20_linear_without_bias(device):
    x, w = RNG.normal(size=(4, 5)), RNG.normal(size=(5, 2))
    y, initial = await run(lambda: nn.Linear(5, 2, bias=False), x, {"W": w}, device)
    assert list(initial) == ["W"]
    np.testing.assert_allclose(y, x @ w, rtol=1e-5, atol=1e-5)
    assert nn.Linear(5, 2, bias=False).b is None


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,)])
async def test_20_layer_norm(device, lead):
    x, g, b = RNG.normal(2, 3, size=(*lead, 6)), RNG.normal(size=6), RNG.normal(size=6)
    y, initial = await run(lambda: nn.LayerNorm(6), x, {"g": g, "b": b}, device)
    np.testing.assert_array_equal(initial["g"], np.ones(6))
    np.testing.assert_array_equal(initial["b"], np.zeros(6))
    variance = x.var(-1, keepdims=True)  # biased
    np.testing.assert_allclose(
        y, (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-5) * g + b, rtol=1e-4, atol=1e-5
    )


async def test_20_layer_norms_eps(device):
    x = np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
    y, _ = await run(lambda: nn.LayerNorm(3, eps=1.0), x, device=device)
    np.testing.assert_allclose(y[0], np.zeros(3))
    np.testing.assert_allclose(y[1], np.array([-1, 0, 1]) / np.sqrt(2 / 3 + 1), rtol=1e-6)


async def test_20_the_function_forms_are_the_same(device):
    class Both(nn.Module):
        def __init__(self):
            self.linear, self.norm = nn.Linear(4, 4, scale=1.0), nn.LayerNorm(4)

    def forward(model, x):
        called = model.norm(model.linear(x))
        return called, nn.layer_norm_fwd(model.norm, nn.linear_fwd(model.linear, x))

    program = await wg.compile_forward(Both, forward, inputs={"x": (3, 4)}, device=device)
    np.testing.assert_array_equal(*await program.run({"x": RNG.normal(size=(3, 4))}))


async def test_20_a_model_may_define_call_or_forward(device):
    class Calls(nn.Module):
        def __call__(self, x, *, factor=2):
            return x * factor

    class Forwards(nn.Module):
        def forward(self, x, factor=2):
            return x * factor

    for model in (Calls, Forwards):
        y, _ = await run(model, np.ones(3), device=device)
        np.testing.assert_array_equal(y, np.full(3, 2.0))
    with raises_here(wg.InputError, match="Plain defines neither __call__ nor forward"):
        type("Plain", (nn.Module,), {})()(1)  # here


@pytest.mark.parametrize("layer", [lambda: nn.Linear(5, 7), lambda: nn.LayerNorm(5)])
@pytest.mark.parametrize("shape", [(3, 4), (), (5, 1)])
async def test_20_a_wrong_last_size_raises(layer, shape):
    def forward(model, x):
        return model(x)  # here

    with raises_here(wg.ShapeError, match=r"expects \[\.\.\., 5\], found"):
        await wg.compile_forward(layer, forward, inputs={"x": shape}, device="numpy")
