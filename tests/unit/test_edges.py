"""Programs at the edges, each of which once went wrong."""

import numpy as np
import pytest

import webgrad as wg
from tests.programs import Empty
from webgrad import nn
from webgrad.runtime.reference import NumpyExecutor

LEVELS = ["graph", "schedule"]


class Base(nn.Module):
    """One parameter a."""

    def __init__(self):
        self.a = self.param((2,), init=lambda size, shape: np.full(size, 1.0))


class WithB(Base):
    """And b."""

    def __init__(self):
        super().__init__()
        self.b = self.param((2,), init=lambda size, shape: np.full(size, 10.0))


class WithC(Base):
    """And c."""

    def __init__(self):
        super().__init__()
        self.c = self.param((4,), init=lambda size, shape: np.full(size, 100.0))


@pytest.mark.parametrize("level", LEVELS)
async def test_a_sharer_of_a_sharer_has_its_own_parameters(level):
    train = await wg.compile_module(
        Base, lambda m, x: wg.sum(x * m.a), inputs={"x": (2,)}, device=NumpyExecutor(level)
    )
    b = await wg.compile_forward(WithB, lambda m, x: x * m.a + m.b, inputs={"x": (2,)}, shared_params=train)
    c = await wg.compile_forward(WithC, lambda m, x: x * m.a + m.c[:2], inputs={"x": (2,)}, shared_params=b)
    assert (await b.run({"x": [1, 1]})).tolist() == [11, 11]
    assert (await c.run({"x": [1, 1]})).tolist() == [101, 101]


async def test_an_index_beyond_32_bits_is_refused():
    with pytest.raises(wg.OutOfMemoryError, match="32-bit"):
        await wg.compile_forward(
            Empty, lambda m, x: wg.sum(x[:, None] * x[None, :]), inputs={"x": (70_000,)}, device="numpy"
        )


@pytest.mark.parametrize("level", LEVELS)
async def test_bools_are_ordered(level):
    def compare(m, a, b):
        return a < b, a <= b, a > b, a >= b, a > False

    values = {"a": np.array([False, False, True, True]), "b": np.array([False, True, False, True])}
    program = await wg.compile_forward(Empty, compare, inputs=values, device=NumpyExecutor(level))
    assert not any("wg_l" in k.wgsl for k in program.ir.kernels), "bools must not reach the float comparison"
    less, less_equal, greater, greater_equal, true = await program.run(values)
    assert less.tolist() == [False, True, False, False]
    assert less_equal.tolist() == [True, True, False, True]
    assert greater.tolist() == [False, False, True, False]
    assert greater_equal.tolist() == [True, False, True, True]
    assert true.tolist() == [False, False, True, True]


@pytest.mark.parametrize("level", LEVELS)
async def test_long_chains_compile_with_their_gradient(level):
    def chain(m, x):
        y = x
        for _ in range(150):
            y = y * 0.99 + 0.1 * wg.sin(y)
        return y, wg.grad(wg.sum(y), x)

    x = np.linspace(-1, 1, 11)
    program = await wg.compile_forward(Empty, chain, inputs={"x": (11,)}, device=NumpyExecutor(level))
    y, slope = await program.run({"x": x})
    expected, derivative = x, np.ones(11)
    for _ in range(150):
        derivative = derivative * (0.99 + 0.1 * np.cos(expected))
        expected = expected * 0.99 + 0.1 * np.sin(expected)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(slope, derivative, rtol=1e-3)


async def train_line(lr=0.1):
    """A training program of one parameter."""
    return await wg.compile_module(
        Base, lambda m, x: wg.sum(x * m.a), inputs={"x": (2,)}, optimizer=wg.optim.Adam(lr=lr), device="numpy"
    )


async def test_a_checkpoint_carries_what_set_changed():
    train = await train_line()
    train.set(lr=1e-3)
    await train.step({"x": [1, 2]})
    state = await train.state_dict()
    again = await train_line(lr=0.5)
    again.load_state_dict(state)
    assert again.optimizer.lr == 1e-3
    assert await again.step({"x": [1, 2]}) == await train.step({"x": [1, 2]})


@pytest.mark.parametrize(
    "change", [{"t": "x"}, {"params": None}, {"hyper": {"lr": -1.0}}, {"params": {"other": np.zeros(2)}}]
)
async def test_a_wrong_checkpoint_writes_nothing(change):
    train = await train_line()
    state = await train.state_dict()
    changed = {**state, "params": {"a": state["params"]["a"] + 1}, **change}
    with pytest.raises(wg.WebgradError):
        train.load_state_dict(changed)
    assert (await train.download_params())["a"].tolist() == [1, 1]
    with pytest.raises(wg.CheckpointError):
        train.load_state_dict(None)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": wg.optim.Adam},
        {"optimizer": "adam"},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": None},
        {"inputs": [(2,)]},
    ],
)
async def test_impossible_options_are_input_errors(options):
    with pytest.raises(wg.InputError, match=r"test_edges\.py"):
        await wg.compile_module(
            Base, lambda m, x: wg.sum(x * m.a), **{"inputs": {"x": (2,)}, "device": "numpy", **options}
        )


@pytest.mark.parametrize(
    "hyper", [{"lr": "x"}, {"lr": float("nan")}, {"b1": 1.0}, {"b2": 1.5}, {"eps": -1e-8}]
)
def test_impossible_hyperparameters_are_input_errors(hyper):
    with pytest.raises(wg.InputError):
        wg.optim.Adam(**hyper)


def test_arange_of_numpy_integers_counts():
    graph = wg.trace(lambda: wg.arange(np.int64(3)))
    assert graph.outputs[0].dtype == "i32"


async def test_an_empty_list_of_captures_still_brings_the_metrics():
    def loss(m, x):
        wg.capture("x", x * 2)
        return wg.metric("size", wg.sum(x * m.a))

    train = await wg.compile_module(Base, loss, inputs={"x": (2,)}, device="numpy")
    result = await train.step({"x": [1, 2]}, with_captures=[])
    assert result.metrics == {"size": 3.0} and result.captures == {}
