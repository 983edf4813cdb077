"""The contract, lines 16 to 19: optimizer state, Adam, forward programs, inputs."""

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import raises_here
from webgrad import nn


class Weights(nn.Module):
    """A vector and a matrix."""

    def __init__(self):
        self.v = self.param((5,), scale=1.0)
        self.m = self.param((2, 5), scale=1.0)


def loss_fn(model, x):
    """Smooth, with gradients of all sizes."""
    return wg.sum(wg.sin(model.v * x) + 0.1 * model.m * model.m * x)


X = {"x": np.array([3.0, 1.0, 0.1, -1.0, 0.0])}


async def compiled(optimizer, device="numpy", forward=loss_fn, **options):
    """A training program over ``x [5]``."""
    return await wg.compile_module(
        Weights, forward, inputs={"x": (5,)}, optimizer=optimizer, device=device, **options
    )


async def reference(train, steps, update):
    """Parameters after ``steps`` of an update rule in float64, from the program's own gradients."""
    params = {k: v.astype(np.float64) for k, v in (await train.download_params()).items()}
    slots = {}
    for t in range(1, steps + 1):
        await train.step(X)
        for name, g in (await train.download_param_grads()).items():
            params[name] = update(params[name], g.astype(np.float64), slots.setdefault(name, {}), t)
    return params


async def assert_follows(train, steps, update):
    expected = await reference(train, steps, update)
    for name, value in (await train.download_params()).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


def adam(lr, b1, b2, eps, decay=0.0):
    """The rule of line 17."""

    def update(p, g, slot, t):
        slot["m"] = b1 * slot.get("m", 0) + (1 - b1) * g
        slot["v"] = b2 * slot.get("v", 0) + (1 - b2) * g * g
        correction = np.sqrt(1 - b2**t)
        lrt = lr * correction / (1 - b1**t)
        return p * (1 - lr * decay) - lrt * slot["m"] / (np.sqrt(slot["v"]) + eps * correction)

    return update


# --- 16 ---------------------------------------------------------------------------------------------


async def test_16_reset_zeroes_the_state_and_the_counter_and_keeps_parameters(device):
    train = await compiled(wg.optim.Adam(lr=0.1), device)
    for _ in range(5):
        await train.step(X)
    before = await train.download_params()
    train.reset_optimizer_state()
    assert train.t == 0
    for name, value in (await train.download_params()).items():
        np.testing.assert_array_equal(value, before[name])
    for slot in (await train.state_dict())["optimizer"].values():
        assert not any(np.any(v) for v in slot.values())

    fresh = await compiled(wg.optim.Adam(lr=0.1), device)
    fresh.upload_params(before)
    for _ in range(3):
        assert await train.step(X) == await fresh.step(X)


async def test_16_reset_is_ordered_in_the_queue(device):
    train = await compiled(wg.optim.SGD(lr=0.1, momentum=0.9), device)
    other = await compiled(wg.optim.SGD(lr=0.1, momentum=0.9), device)
    pending = [train.step(X), train.step(X)]
    train.reset_optimizer_state()
    pending.append(train.step(X))
    for _ in range(2):
        await other.step(X)
    other.reset_optimizer_state()
    await other.step(X)
    assert [await p for p in pending]
    for name, value in (await other.download_params()).items():
        np.testing.assert_array_equal(value, (await train.download_params())[name])


# --- 17 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hyper", [{}, {"lr": 0.3, "b1": 0.5, "b2": 0.9, "eps": 1e-2}, {"eps": 1.0}])
async def test_17_adam_follows_the_formula(device, hyper):
    optimizer = wg.optim.Adam(**hyper)
    train = await compiled(optimizer, device)
    await assert_follows(train, 20, adam(optimizer.lr, optimizer.b1, optimizer.b2, optimizer.eps))


async def test_17_adamw_decays_the_parameter_itself(device):
    train = await compiled(wg.optim.AdamW(lr=0.1, weight_decay=0.2), device)
    await assert_follows(train, 10, adam(0.1, 0.9, 0.999, 1e-8, decay=0.2))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
async def test_17_sgd_follows_torch(device, momentum, nesterov):
    lr, decay = 0.05, 0.1

    def update(p, g, slot, t):
        g = g + decay * p
        slot["v"] = momentum * slot.get("v", 0) + g
        return p - lr * (g + momentum * slot["v"] if nesterov else slot["v"])

    optimizer = wg.optim.SGD(lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov)
    await assert_follows(await compiled(optimizer, device), 10, update)


async def test_17_a_rejected_step_does_not_count(device):
    train = await compiled(wg.optim.Adam(lr=0.1), device)
    other = await compiled(wg.optim.Adam(lr=0.1), device)
    await train.step(X), await other.step(X)
    for bad in ({}, {"x": np.ones(4)}, {"x": X["x"], "y": 1}, {"x": ["a"] * 5}):
        with pytest.raises(wg.WebgradError):
            train.step(bad)
    assert train.t == 1
    assert await train.step(X) == await other.step(X)
    assert (await train.state_dict())["rng_step"] == (await other.state_dict())["rng_step"] == 2


async def test_17_adam_of_every_parameter_is_one_dispatch():
    class Many(nn.Module):
        def __init__(self):
            self.layers = [nn.Linear(3, 3) for _ in range(10)]

    def forward(model, x):
        for layer in model.layers:
            x = wg.tanh(layer(x))
        return wg.sum(x)

    train = await wg.compile_module(
        Many, forward, inputs={"x": (2, 3)}, optimizer=wg.optim.Adam(), device="numpy"
    )
    ir = train.ir
    arena = ir.plan.place[
        next(leaf for leaf, _ in ir.schedule.graph.updates if "param" in leaf.attrs["name"])
    ]
    writers = [k for k in ir.schedule.kernels if any(ir.plan.where(s.node) == arena for s in k.stores)]
    assert len(writers) == 1
    assert len(writers[0].stores) == 3, "m, v and the parameters, together"


# --- 18 ---------------------------------------------------------------------------------------------


async def forwarded(device="numpy", **options):
    """An inference program that returns a dict."""

    def forward(model, x):
        wg.metric("total", wg.sum(x))
        return {"scaled": wg.capture("scaled", model.v * x), "matrix": model.m}

    return await wg.compile_forward(Weights, forward, inputs={"x": (5,)}, device=device, **options)


async def test_18_run_returns_the_whole_output(device):
    infer = await forwarded(device)
    params = await infer.download_params()
    output = await infer.run(X)
    assert set(output) == {"scaled", "matrix"}
    np.testing.assert_allclose(output["scaled"], params["v"] * X["x"].astype(np.float32))
    np.testing.assert_array_equal(output["matrix"], params["m"])
    assert not infer.ir.graph.updates and not infer.ir.param_grads


async def test_18_with_captures_adds_them(device):
    infer = await forwarded(device)
    result = await infer.run(X, with_captures=True)
    assert isinstance(result, wg.RunResult) and result._fields == ("output", "metrics", "captures")
    np.testing.assert_array_equal(result.captures["scaled"], result.output["scaled"])
    full = await infer.run(X, full=True)
    assert full.captures == {} and full.metrics["total"] == pytest.approx(3.1)


async def test_18_sharing_sees_every_step_and_copies_nothing(device):
    train = await compiled(wg.optim.SGD(lr=0.1), device)
    infer = await forwarded(device, shared_params=train.params)
    for _ in range(3):
        await train.step(X)
        params = await train.download_params()
        output = await infer.run(X)
        np.testing.assert_array_equal(output["matrix"], params["m"])
    assert infer.params["m"] == train.params["m"]
    assert infer.stats().bytes < train.stats().bytes
    assert infer.params.own() == {}


async def test_18_extra_names_are_ignored_and_missing_ones_are_the_programs_own(device):
    class Part(nn.Module):
        def __init__(self):
            self.v = self.param((5,), scale=1.0)
            self.own = self.param((5,), init="ones")

    train = await compiled(wg.optim.SGD(lr=0.1), device)
    infer = await wg.compile_forward(
        Part, lambda model, x: (model.v, model.own * 2), inputs={"x": (5,)}, shared_params=train.params
    )
    v, own = await infer.run(X)
    np.testing.assert_array_equal(v, (await train.download_params())["v"])
    np.testing.assert_array_equal(own, np.full(5, 2.0))
    assert list(infer.params.own()) == ["own"]


async def test_18_a_program_may_be_given_instead_of_its_params():
    train = await compiled(None)
    infer = await forwarded(shared_params=train)
    np.testing.assert_array_equal((await infer.run(X))["matrix"], (await train.download_params())["m"])


async def test_18_a_size_mismatch_names_the_parameter_and_both_sizes():
    class Other(nn.Module):
        def __init__(self):
            self.v = self.param((6,))

    train = await compiled(None)
    with raises_here(wg.ShapeError, match=r"'v'.*f32\[6\].*f32\[5\]"):
        await wg.compile_forward(  # here
            Other, lambda model, x: model.v, inputs={"x": (5,)}, shared_params=train.params
        )
    with pytest.raises(wg.InputError, match="shared_params takes"):
        await forwarded(shared_params={"v": np.ones(5)})


async def test_18_destroying_the_sharer_leaves_the_owner():
    train = await compiled(wg.optim.SGD(lr=0.1))
    infer = await forwarded(shared_params=train.params)
    infer.destroy()
    before = await train.download_params()
    await train.step(X)
    assert not np.array_equal((await train.download_params())["v"], before["v"])


async def test_18_destroying_the_owner_is_told_to_the_sharer():
    train = await compiled(wg.optim.SGD(lr=0.1))
    infer = await forwarded(shared_params=train.params)
    train.destroy()
    with raises_here(wg.InputError, match="were destroyed"):
        infer.run(X)  # here
    with pytest.raises(wg.InputError, match="were destroyed"):
        await forwarded(shared_params=train.params)


# --- 19 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        ({"i": [1, 2]}, wg.InputError, r"missing \['x'\]"),
        (
            {"x": np.ones((2, 3)), "i": [1, 2], "z": 1},
            wg.InputError,
            r"unknown \['z'\]; expected \['x', 'i'\]",
        ),
        ({"x": np.ones((2, 4)), "i": [1, 2]}, wg.ShapeError, r"'x': expected shape \(2, 3\), found \(2, 4\)"),
        ({"x": 1.0, "i": [1, 2]}, wg.ShapeError, r"'x': expected shape \(2, 3\), found \(\)"),
        ({"x": np.ones((2, 3)), "i": [1.0, 2.0]}, wg.DtypeError, r"'i': expected i32, found float64"),
        ({"x": [[1, 2, 3], [1, 2]], "i": [1, 2]}, wg.ShapeError, r"'x': NumPy makes no array"),
        (
            {"x": np.ones((2, 3)) * 1j, "i": [1, 2]},
            wg.DtypeError,
            r"'x': expected numbers, found dtype complex",
        ),
        ([np.ones((2, 3)), [1, 2]], wg.InputError, "expected a dict of arrays by name, found list"),
        ({"x": np.ones((2, 3)), "i": [1, 2**31]}, wg.InputError, r"'i'\[1\] = 2147483648: i32 holds"),
    ],
)
async def test_19_bad_inputs_raise_and_are_named(device, inputs, kind, message):
    infer = await wg.compile_forward(
        Weights,
        lambda model, x, i: (x, i),
        inputs={"x": (2, 3), "i": wg.Input((2,), "i32")},
        device=device,
    )
    with raises_here(kind, match=message):
        infer.run(inputs)  # here
