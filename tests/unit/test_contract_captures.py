"""The contract, lines 6 to 10: captures."""

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import Empty, raises_here
from webgrad import nn
from webgrad.runtime.reference import NumpySession


class Line(nn.Module):
    """One weight."""

    def __init__(self):
        self.w = self.param((3,), init="ones")


X = np.array([1.0, -2.0, 3.0], np.float32)


def capturing(model, x):
    """A loss with captures of a value, a view, a parameter and a scalar."""
    y = wg.capture("y", x * model.w)
    wg.capture("turned", wg.flip(y))
    wg.capture("w", model.w)
    wg.capture("positive", y > 0)
    wg.capture("argmax", wg.argmax(y))
    return wg.sum(wg.capture("square", y * y))


async def trained(device, forward=capturing, **options):
    """A training program with SGD."""
    return await wg.compile_module(
        Line, forward, inputs={"x": (3,)}, optimizer=wg.optim.SGD(lr=0.1), device=device, **options
    )


def test_06_capture_returns_the_very_same_tensor_and_keeps_the_order():
    def forward():
        x = wg.tensor_input("x", (2,))
        for name in ("b", "a", "c"):
            assert wg.capture(name, x) is x
        return x

    assert list(wg.trace(forward).captures) == ["b", "a", "c"]


def test_06_outside_a_trace_it_does_nothing():
    thing = object()
    assert wg.capture("x", thing) is thing
    assert wg.metric("x", thing) is thing


async def test_06_gradient_and_optimizer_construction_register_nothing(monkeypatch, device):
    from webgrad.ops.elementwise import Mul

    original = Mul.vjp

    def capturing_rule(self, node, dy):
        wg.capture("from the rule", dy)
        return original(self, node, dy)

    monkeypatch.setattr(Mul, "vjp", capturing_rule)

    def forward(model, x):
        loss = wg.sum(model.w * x)
        slope = wg.capture("slope", wg.grad(loss, model.w))
        return loss + wg.sum(slope * 0)

    train = await trained(device, forward)
    assert list(train.ir.graph.captures) == ["slope"]
    result = await train.step({"x": X}, with_captures=True)
    np.testing.assert_array_equal(result.captures["slope"], X)


def test_07_duplicate_capture_name_raises_and_suggests_a_unique_one():
    def forward():
        x = wg.tensor_input("x", (2,))
        for _ in range(2):
            x = wg.capture("hidden", x + 1)  # here
        return x

    with raises_here(wg.TraceError, match=r"'hidden' is used twice.*capture\(f\"hidden\.\{i\}\""):
        wg.trace(forward)


async def test_07_one_tensor_may_have_two_names(device):
    def forward(model, x):
        return wg.capture("second", wg.capture("first", x + 1))

    program = await wg.compile_forward(Empty, forward, inputs={"x": (3,)}, device=device)
    captures = (await program.run({"x": X}, with_captures=True)).captures
    assert list(captures) == ["first", "second"]
    np.testing.assert_array_equal(captures["first"], captures["second"])


async def test_08_the_plan_maps_names_to_buffers_in_order(device):
    train = await trained(device)
    captures = train.ir.plan.captures
    assert list(captures) == ["y", "turned", "w", "positive", "argmax", "square"]
    for buffer, offset, _, _ in captures.values():
        assert 0 <= offset < train.ir.plan.buffers[buffer].bytes
    assert [c[2:] for c in captures.values()] == [
        ((3,), "f32"), ((3,), "f32"), ((3,), "f32"), ((3,), "bool"), ((), "i32"), ((3,), "f32"),
    ]  # fmt: skip


async def test_08_a_capture_is_the_value_at_that_point_of_the_forward(device):
    train = await trained(device)
    await train.step({"x": X})
    before = (await train.download_params())["w"]
    captures = (await train.step({"x": X}, with_captures=True)).captures
    after = (await train.download_params())["w"]
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(captures["w"], before)
    np.testing.assert_array_equal(captures["y"], before * X)
    np.testing.assert_array_equal(captures["turned"], (before * X)[::-1])
    np.testing.assert_array_equal(captures["square"], (before * X) ** 2)


async def test_08_views_and_inputs_are_snapshots_too(device):
    def forward(model, x):
        wg.capture("input", x)
        wg.capture("slice", model.w[1:])
        wg.capture("column", wg.reshape(model.w, (3, 1)))
        return wg.sum(x * model.w)

    train = await trained(device, forward)
    captures = (await train.step({"x": X}, with_captures=True)).captures
    np.testing.assert_array_equal(captures["input"], X)
    np.testing.assert_array_equal(captures["slice"], np.ones(2))
    np.testing.assert_array_equal(captures["column"], np.ones((3, 1)))


async def test_08_captured_buffers_are_not_recycled(device):
    """A long chain of kernels that would like the early buffers back."""

    def forward(model, x):
        wanted = []
        for i in range(6):
            x = wg.capture(f"h{i}", wg.softmax(x * (i + 1.0)))
            wanted.append(x)
        return x

    program = await wg.compile_forward(Empty, forward, inputs={"x": (3,)}, device=device)
    captures = (await program.run({"x": X}, with_captures=True)).captures
    h = X.astype(np.float64)
    for i in range(6):
        h = np.exp(h * (i + 1)) / np.exp(h * (i + 1)).sum()
        np.testing.assert_allclose(captures[f"h{i}"], h, rtol=1e-5)
    ranges = [(b, o) for b, o, _, _ in program.ir.plan.captures.values()]
    assert len(set(ranges)) == 6


def test_08_a_capture_of_an_unknown_tensor_raises():
    left = []
    wg.trace(lambda: left.append(wg.tensor_input("x", (2,))) or left[0])

    def forward():
        x = wg.tensor_input("x", (2,))
        wg.capture("other", left[0])  # here
        return x

    with raises_here(wg.TraceError, match="belongs to another trace"):
        wg.trace(forward)
    with pytest.raises(wg.TraceError, match="takes a tensor, found ndarray"):
        wg.trace(lambda: wg.capture("array", np.ones(2)))


async def test_09_step_returns_a_float_or_a_step_result(device):
    train = await trained(device)
    assert type(await train.step({"x": X})) is float
    result = await train.step({"x": X}, with_captures=True)
    assert isinstance(result, wg.StepResult)
    assert result._fields == ("loss", "metrics", "captures")
    assert type(result.loss) is float
    kinds = {name: (a.shape, a.dtype) for name, a in result.captures.items()}
    assert kinds["y"] == ((3,), np.float32)
    assert kinds["positive"] == ((3,), np.bool_)
    assert kinds["argmax"] == ((), np.int32)


async def test_09_the_loss_is_bit_identical_with_and_without(device):
    losses = []
    for with_captures in (False, True):
        train = await trained(device)
        results = [await train.step({"x": X * i}, with_captures=with_captures) for i in range(5)]
        losses.append([r.loss if with_captures else r for r in results])
    assert losses[0] == losses[1]


async def test_09_some_names_of_the_captures(device):
    train = await trained(device)
    result = await train.step({"x": X}, with_captures=["square", "y"])
    assert set(result.captures) == {"square", "y"}
    with raises_here(wg.InputError, match=r"unknown \['z'\].*'y'"):
        train.step({"x": X}, with_captures=["z"])  # here


async def test_09_captures_when_there_are_none_raise(device):
    train = await trained(device, lambda model, x: wg.sum(x * model.w))
    with raises_here(wg.InputError, match="captures nothing"):
        train.step({"x": X}, with_captures=True)  # here
    assert train.t == 0
    program = await wg.compile_forward(Empty, lambda model, x: x, inputs={"x": (3,)}, device=device)
    with pytest.raises(wg.InputError, match="captures nothing"):
        program.run({"x": X}, with_captures=True)


async def test_10_captures_are_read_only_when_asked_and_with_the_loss(device, monkeypatch):
    asked = []
    original = NumpySession.run

    def spy(self, entry, upload, reads):
        asked.append(tuple(reads))
        return original(self, entry, upload, reads)

    monkeypatch.setattr(NumpySession, "run", spy)

    def forward(model, x):
        loss = capturing(model, x)
        wg.metric("double", loss * 2)
        return loss

    train = await trained(device, forward)
    await train.step({"x": X})
    await train.step({"x": X}, full=True)
    await train.step({"x": X}, with_captures=["y"])
    await train.step({"x": X}, read_loss=False)
    assert asked == [
        ("output:0",),
        ("output:0", "metric:double"),
        ("output:0", "metric:double", "capture:y"),
        (),
    ]
    assert train.stats().submissions == 4
