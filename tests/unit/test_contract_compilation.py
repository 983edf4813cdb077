"""The contract, lines 11 to 15: compile_module, parameters and their values."""

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import Empty, raises_here
from webgrad import nn


class Net(nn.Module):
    """Two layers in a list, and a head."""

    def __init__(self):
        self.layers = [nn.Linear(3, 4, scale=1.0), nn.Linear(4, 4, bias=False, scale=1.0)]
        self.head = nn.Linear(4, 1, scale=1.0)

    def __call__(self, x):
        for layer in self.layers:
            x = wg.tanh(layer(x))
        return self.head(x)


X = {"x": np.linspace(-1, 1, 6).reshape(2, 3)}


def loss_fn(model, x):
    """Mean square of the output."""
    return wg.mean(model(x) ** 2)


async def compiled(factory=Net, forward=loss_fn, device="numpy", **options):
    """A training program over ``x [2, 3]``."""
    options.setdefault("optimizer", wg.optim.SGD(lr=0.1))
    return await wg.compile_module(factory, forward, inputs={"x": (2, 3)}, device=device, **options)


# --- 11 ---------------------------------------------------------------------------------------------


async def test_11_a_loss_that_is_no_scalar_raises_and_shows_the_shape():
    def forward(model, x):
        return model(x) ** 2  # here

    with raises_here(wg.ShapeError, match=r"rank-0 f32 scalar, found f32 of shape \(2, 1\)"):
        await compiled(forward=forward)


async def test_11_an_integer_loss_raises():
    def forward(model, x):
        return wg.argmax(model(x))  # here

    with raises_here(wg.ShapeError, match=r"found i32 of shape \(\)"):
        await compiled(forward=forward)


@pytest.mark.parametrize("result", [(1,), {"loss": 1}, 3.0, None])
async def test_11_a_loss_that_is_no_tensor_raises(result):
    with pytest.raises(wg.WebgradError, match="must return"):
        await compiled(forward=lambda model, x: result)
    with pytest.raises(wg.ShapeError, match="must return the loss"):
        await compiled(forward=lambda model, x: (wg.mean(model(x)),))


async def test_11_a_parameter_without_a_path_to_the_loss_gets_a_zero_gradient(device):
    class Unused(Net):
        def __init__(self):
            super().__init__()
            self.spare = self.param((2, 2), scale=1.0)

    train = await compiled(Unused, device=device)
    before = await train.download_params()
    await train.step(X)
    grads, after = await train.download_param_grads(), await train.download_params()
    np.testing.assert_array_equal(grads["spare"], np.zeros((2, 2)))
    np.testing.assert_array_equal(after["spare"], before["spare"])
    assert np.any(grads["head.W"])


async def test_11_without_an_optimizer_parameters_stay_and_gradients_come(device):
    train = await compiled(device=device, optimizer=None)
    before = await train.download_params()
    assert await train.step(X) == await train.step(X)
    after, grads = await train.download_params(), await train.download_param_grads()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    assert np.any(grads["layers.0.W"])


async def test_11_a_stopped_gradient_is_zero(device):
    train = await compiled(
        forward=lambda model, x: wg.mean(wg.stop_gradient(model(x)) + model.head.b), device=device
    )
    await train.step(X)
    grads = await train.download_param_grads()
    np.testing.assert_array_equal(grads["head.W"], np.zeros((4, 1)))
    np.testing.assert_allclose(grads["head.b"], [1.0])


# --- 12 ---------------------------------------------------------------------------------------------


async def test_12_parameters_are_named_by_attribute_path():
    train = await compiled()
    assert list(train.params) == ["layers.0.W", "layers.0.b", "layers.1.W", "head.W", "head.b"]


async def test_12_modules_lists_tuples_and_dicts_are_walked():
    class Deep(nn.Module):
        def __init__(self):
            self.parts = {"a": (self.param((1,)), [nn.Linear(1, 1, bias=False)]), "b": {3: self.param((2,))}}
            self.plain = [1, "x", None, np.ones(3)]

    train = await compiled(Deep, lambda model, x: wg.sum(model.parts["a"][0]) + wg.sum(model.parts["b"][3]))
    assert list(train.params) == ["parts.a.0", "parts.a.1.0.W", "parts.b.3"]


async def test_12_the_same_module_reached_twice_is_one_parameter(device):
    class Tied(nn.Module):
        def __init__(self):
            self.table = self.param((3, 3), scale=1.0)
            self.again = self.table
            self.layer = nn.Linear(3, 3, bias=False)
            self.shared = {"layer": self.layer}

    def forward(model, x):
        assert model.again is model.table
        assert model.shared["layer"] is model.layer
        return wg.mean((x @ model.table @ model.layer.W @ model.again) ** 2)

    train = await compiled(Tied, forward, device=device)
    assert list(train.params) == ["table", "layer.W"]
    await train.step(X)
    w = await train.download_param_grads()
    assert w["table"].shape == (3, 3)


async def test_12_a_tied_parameter_sums_its_gradients(device):
    class Tied(nn.Module):
        def __init__(self):
            self.a = self.param((3,), init="ones")
            self.b = self.a

    train = await compiled(Tied, lambda model, x: wg.sum(x * model.a) + wg.sum(model.b), device=device)
    await train.step(X)
    np.testing.assert_allclose((await train.download_param_grads())["a"], X["x"].sum(0) + 1, rtol=1e-6)


async def test_12_a_cycle_of_modules_is_walked_once():
    class Cyclic(nn.Module):
        def __init__(self):
            self.w = self.param((3,))
            self.me = self

    assert list((await compiled(Cyclic, lambda model, x: wg.sum(x * model.me.w))).params) == ["w"]


async def test_12_two_parameters_of_one_path_raise():
    class Clash(nn.Module):
        def __init__(self):
            self.d = {"a.b": self.param((1,)), "a": {"b": self.param((1,))}}

    with pytest.raises(wg.InputError, match=r"two parameters have the path 'd\.a\.b'"):
        await compiled(Clash)


# --- 13 ---------------------------------------------------------------------------------------------


async def initial(**options):
    """The first value of one parameter."""
    shape = options.pop("shape", (300,))

    class One(nn.Module):
        def __init__(self):
            self.p = self.param(shape, **options)

    return (await (await compiled(One, lambda model, x: wg.sum(x))).download_params())["p"]


async def test_13_the_named_inits():
    randn = await initial(shape=(40, 50))
    assert randn.dtype == np.float32
    assert abs(randn.std() - 0.02) < 0.002 and abs(randn.mean()) < 0.002
    assert abs((await initial(scale=3.0)).std() - 3.0) < 0.5
    np.testing.assert_array_equal(await initial(init="zeros"), np.zeros(300))
    np.testing.assert_array_equal(await initial(init="ones"), np.ones(300))


async def test_13_a_callable_init():
    shape = (2, 3)
    ramp = await initial(shape=shape, init=lambda size, shape: np.arange(size).reshape(shape))
    np.testing.assert_array_equal(ramp, np.arange(6).reshape(shape))
    flat = await initial(shape=shape, init=lambda size, shape: [0.5] * size)
    np.testing.assert_array_equal(flat, np.full(shape, 0.5))
    drawn = [await initial(shape=shape, init=lambda size, shape, rng: rng.random(size)) for _ in range(2)]
    np.testing.assert_array_equal(*drawn)


async def test_13_integer_parameters_keep_their_values(device):
    class Counted(nn.Module):
        def __init__(self):
            self.steps = self.param((3,), dtype="i32", init=lambda size, shape: np.arange(size))
            self.w = self.param((3,), dtype=np.float64)

    train = await compiled(
        Counted, lambda model, x: wg.sum(x * model.w * wg.astype(model.steps, "f32")), device=device
    )
    await train.step(X)
    values = await train.download_params()
    assert values["steps"].dtype == np.int32
    np.testing.assert_array_equal(values["steps"], np.arange(3))
    assert values["w"].dtype == np.float32


@pytest.mark.parametrize("init", ["normal", None, 3, np.ones(3)])
def test_13_any_other_init_raises(init):
    with raises_here(wg.InputError, match="init must be one of"):
        nn.Module().param((3,), init=init)  # here


async def test_13_an_init_of_the_wrong_size_raises():
    with pytest.raises(wg.ShapeError, match=r"'p': init gave \(4,\), expected 3"):
        await initial(shape=(3,), init=lambda size, shape: np.ones(4))
    with pytest.raises(wg.DtypeError, match="expected numbers"):
        await initial(shape=(3,), init=lambda size, shape: ["a"] * size)
    with pytest.raises(wg.ShapeError, match="negative"):
        nn.Module().param((3, -1))
    with pytest.raises(wg.DtypeError, match="complex"):
        nn.Module().param((3,), dtype="complex64")


async def test_13_more_inits_in_nn_init():
    kaiming = await initial(shape=(200, 50), init=nn.init.kaiming_normal())
    assert abs(kaiming.std() / np.sqrt(2 / 200) - 1) < 0.05
    xavier = await initial(shape=(100, 200), init=nn.init.xavier_uniform())
    bound = np.sqrt(6 / 300)
    assert (
        xavier.max() <= bound and xavier.min() >= -bound and abs(xavier.std() * np.sqrt(3) / bound - 1) < 0.05
    )
    conv = await initial(shape=(8, 4, 3, 3), init=nn.init.kaiming_normal())
    assert abs(conv.std() / np.sqrt(2 / 36) - 1) < 0.2
    assert np.abs(await initial(init=nn.init.uniform(0.1))).max() <= 0.1
    assert abs((await initial(shape=(50, 50), init=nn.init.normal(2.0))).std() - 2) < 0.1


# --- 14 ---------------------------------------------------------------------------------------------


async def test_14_the_seed_decides_the_initial_values():
    a, b, c = [await (await compiled(seed=s)).download_params() for s in (1, 1, 2)]
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
    assert not np.array_equal(a["head.W"], c["head.W"])


async def test_14_a_new_layer_changes_no_other():
    class Wider(Net):
        def __init__(self):
            self.first = nn.Linear(3, 3)
            super().__init__()
            self.last = self.param((7,))

    a, b = [await (await compiled(f)).download_params() for f in (Net, Wider)]
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


async def test_14_two_parameters_of_one_shape_differ():
    values = await (await compiled()).download_params()
    assert not np.array_equal(values["layers.1.W"][:3], values["layers.0.W"])


async def test_14_upload_initial_params_writes_them_again(device):
    train = await compiled(device=device, seed=5)
    first = await train.download_params()
    await train.step(X)
    train.upload_initial_params()
    for name, value in (await train.download_params()).items():
        np.testing.assert_array_equal(value, first[name])
    train.upload_initial_params(seed=6)
    other = await (await compiled(seed=6)).download_params()
    np.testing.assert_array_equal((await train.download_params())["head.W"], other["head.W"])


async def test_14_with_shared_params_only_the_others_are_initialised(device):
    class More(Net):
        def __init__(self):
            super().__init__()
            self.extra = self.param((3,), scale=1.0)

    train = await compiled(device=device)
    await train.step(X)
    trained = await train.download_params()
    infer = await wg.compile_forward(
        More,
        lambda model, x: model(x + model.extra),
        inputs={"x": (2, 3)},
        shared_params=train.params,
        seed=3,
    )
    np.testing.assert_array_equal((await train.download_params())["head.W"], trained["head.W"])
    alone = await wg.compile_forward(
        More, lambda model, x: model(x + model.extra), inputs={"x": (2, 3)}, seed=3, device="numpy"
    )
    mine, theirs = await infer.download_params(), await alone.download_params()
    np.testing.assert_array_equal(mine["extra"], theirs["extra"])
    np.testing.assert_array_equal(mine["head.W"], trained["head.W"])
    infer.upload_initial_params()
    np.testing.assert_array_equal((await train.download_params())["head.W"], trained["head.W"])


# --- 15 ---------------------------------------------------------------------------------------------


async def test_15_upload_and_download_round_trip(device):
    train = await compiled(device=device)
    rng = np.random.default_rng(0)
    values = {n: rng.normal(size=p.shape).astype(np.float32) for n, p in train.params.items()}
    train.upload_params(values)
    found = await train.download_params()
    assert list(found) == list(values)
    for name in values:
        np.testing.assert_array_equal(found[name], values[name])
        assert found[name].flags.c_contiguous and found[name].flags.owndata and found[name].flags.writeable


async def test_15_uploads_take_anything_numpy_reads(device):
    train = await compiled(device=device)
    values = {
        "layers.0.W": np.arange(12).reshape(4, 3).T.astype(">f8"),
        "layers.0.b": [1, 2, 3, 4],
        "head.W": np.arange(4),  # a flat array of the right size
    }
    train.upload_params(values, partial=True)
    found = await train.download_params()
    np.testing.assert_array_equal(found["layers.0.W"], np.arange(12).reshape(4, 3).T)
    np.testing.assert_array_equal(found["layers.0.b"], [1, 2, 3, 4])
    np.testing.assert_array_equal(found["head.W"], np.arange(4).reshape(4, 1))


@pytest.mark.parametrize(
    ("change", "partial", "kind", "message"),
    [
        ({"nothing": [1.0]}, False, wg.InputError, r"unknown \['nothing'\]"),
        ({"nothing": [1.0]}, True, wg.InputError, r"unknown \['nothing'\]"),
        ({"head.b": None}, False, wg.InputError, r"missing \['head\.b'\]"),
        ({"head.b": np.ones(2)}, False, wg.ShapeError, r"'head\.b': expected \(1,\).*found \(2,\)"),
        ({"head.b": ["x"]}, False, wg.DtypeError, r"'head\.b': expected numbers"),
        ({"head.b": [[1.0], [1.0, 2.0]]}, False, wg.ShapeError, "NumPy makes no array"),
    ],
)
async def test_15_a_bad_upload_raises_before_anything_is_written(device, change, partial, kind, message):
    train = await compiled(device=device)
    before = await train.download_params()
    values = {n: np.zeros(p.shape) for n, p in train.params.items()} | change
    values = {n: v for n, v in values.items() if v is not None}
    with raises_here(kind, match=message):
        train.upload_params(values, partial=partial)  # here
    for name, value in (await train.download_params()).items():
        np.testing.assert_array_equal(value, before[name])


async def test_15_gradients_of_the_last_step(device):
    train = await compiled(device=device)
    w = await train.download_params()
    await train.step(X)
    grads = await train.download_param_grads()
    assert list(grads) == list(w)
    epsilon, name = 1e-3, "head.W"
    for index in range(4):
        moved = []
        for sign in (1, -1):
            other = {k: v.copy() for k, v in w.items()}
            other[name][index, 0] += sign * epsilon
            train.upload_params(other)
            moved.append(await train.step(X))
        assert grads[name][index, 0] == pytest.approx(
            (moved[0] - moved[1]) / (2 * epsilon), rel=1e-2, abs=1e-5
        )


async def test_15_a_model_without_parameters_trains_nothing(device):
    train = await compiled(Empty, lambda model, x: wg.sum(x), device=device)
    assert await train.step(X) == pytest.approx(0, abs=1e-6)
    assert await train.download_params() == {}
    train.upload_params({})
