"""Errors: their classes, and that each blames the user's line before anything is written."""

import pickle

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import Empty, raises_here
from webgrad import nn
from webgrad.errors import WebgradError
from webgrad.sites import Site

BUILTINS = {
    "TraceError": RuntimeError, "ShapeError": ValueError, "DtypeError": TypeError, "InputError": ValueError,
    "CompileError": RuntimeError, "NoAdapterError": RuntimeError, "DeviceLostError": RuntimeError,
    "OutOfMemoryError": MemoryError, "CheckpointError": ValueError, "NonFiniteError": ArithmeticError,
}  # fmt: skip


@pytest.mark.parametrize("name", BUILTINS)
def test_every_error_is_a_webgrad_error_and_a_builtin(name):
    kind = getattr(wg, name)
    assert issubclass(kind, wg.WebgradError) and issubclass(kind, BUILTINS[name])
    assert name in wg.__all__ and kind.__doc__


def test_an_error_names_the_line_that_runs():
    def raises():
        raise wg.InputError("wrong")  # here

    with raises_here(wg.InputError, match=r"^wrong \(at .*test_errors\.py:\d+ in raises\)$"):
        raises()


def test_an_error_may_name_another_line_and_survives_pickling():
    error = WebgradError("wrong", site=Site("model.py", 7, "forward"))
    assert str(error) == "wrong (at model.py:7 in forward)"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.site == error.site


async def test_code_from_a_string_is_blamed_by_its_name_and_line():
    source = "\n\ndef forward(model, x):\n    return x + [1.0, 2.0]\n"
    space = {}
    exec(compile(source, "<exec>", "exec"), space)
    with pytest.raises(wg.ShapeError, match=r"\(at <exec>:4 in forward\)"):
        await wg.compile_forward(Empty, space["forward"], inputs={"x": (3,)}, device="numpy")


IMAGE, KERNEL = np.zeros((1, 1, 5, 5)), np.zeros((1, 1, 3, 3))


@pytest.mark.parametrize(
    ("kind", "build"),
    [
        (wg.ShapeError, lambda x: x + wg.zeros((4,))),  # here
        (wg.ShapeError, lambda x: x @ wg.zeros((4,))),  # here
        (wg.ShapeError, lambda x: wg.reshape(x, 4)),  # here
        (wg.ShapeError, lambda x: x[5]),  # here
        (wg.ShapeError, lambda x: x[0, 0, 0]),  # here
        (wg.ShapeError, lambda x: wg.sum(x, 3)),  # here
        (wg.ShapeError, lambda x: wg.sum(x, (0, 0))),  # here
        (wg.ShapeError, lambda x: wg.concat([x, x[0]])),  # here
        (wg.ShapeError, lambda x: wg.concat([x, x[:, :1]])),  # here
        (wg.ShapeError, lambda x: wg.stack([x, x[0]])),  # here
        (wg.ShapeError, lambda x: wg.transpose(x, 0, 0)),  # here
        (wg.ShapeError, lambda x: wg.broadcast_to(x, (3, 3))),  # here
        (wg.ShapeError, lambda x: wg.broadcast_to(x[0, 0], (-1,))),  # here
        (wg.ShapeError, lambda x: wg.reshape(x, -2, -3)),  # here
        (wg.ShapeError, lambda x: wg.reshape(x, -1, -1)),  # here
        (wg.ShapeError, lambda x: wg.squeeze(x, 0)),  # here
        (wg.ShapeError, lambda x: wg.pad(x, -1)),  # here
        (wg.ShapeError, lambda x: wg.pad(x, ((1, 1),))),  # here
        (wg.ShapeError, lambda x: wg.max(x[:0], 0)),  # here
        (wg.ShapeError, lambda x: wg.argmax(x[:, :0], 1)),  # here
        (wg.ShapeError, lambda x: wg.mse(x, x[0])),  # here
        (wg.ShapeError, lambda x: wg.concat([])),  # here
        (wg.ShapeError, lambda x: wg.stack([])),  # here
        (wg.ShapeError, lambda x: wg.zeros((2, 1.5))),  # here
        (wg.ShapeError, lambda x: wg.reshape(x, x.shape[0] / 2, -1)),  # here
        (wg.ShapeError, lambda x: wg.one_hot(wg.iota((2,), 0) + 0, -1)),  # here
        (wg.DtypeError, lambda x: wg.full((2,), np.inf, "i32")),  # here
        (wg.DtypeError, lambda x: wg.full((2,), 2**40)),  # here
        (wg.DtypeError, lambda x: wg.full((2,), x)),  # here
        (wg.DtypeError, lambda x: wg.add(x, [[1.0], [1.0, 2.0]])),  # here
        (wg.ShapeError, lambda x: wg.conv2d(x, x)),  # here
        (wg.ShapeError, lambda x: wg.conv2d(IMAGE[..., :2, :2], KERNEL)),  # here
        (wg.ShapeError, lambda x: wg.conv2d(IMAGE, KERNEL[:, [0, 0]])),  # here
        (wg.ShapeError, lambda x: wg.conv2d(IMAGE, KERNEL, x[0])),  # here
        (wg.ShapeError, lambda x: wg.max_pool2d(x, 4)),  # here
        (wg.ShapeError, lambda x: wg.grad(x, x)),  # here
        (wg.ShapeError, lambda x: wg.grad(x, x, x[0])),  # here
        (wg.ShapeError, lambda x: wg.cross_entropy(x, wg.arange(3))),  # here
        (wg.ShapeError, lambda x: wg.embedding(x[0, 0], wg.arange(3))),  # here
        (wg.DtypeError, lambda x: wg.cross_entropy(x, x[:, 0])),  # here
        (wg.DtypeError, lambda x: wg.embedding(x, x)),  # here
        (wg.DtypeError, lambda x: wg.one_hot(x, 3)),  # here
        (wg.DtypeError, lambda x: wg.softmax(wg.arange(3))),  # here
        (wg.DtypeError, lambda x: wg.astype(x, "complex64")),  # here
        (wg.DtypeError, lambda x: wg.arange(3) ** -1),  # here
        (wg.DtypeError, lambda x: wg.grad(wg.sum(wg.arange(3)), x)),  # here
        (wg.DtypeError, lambda x: wg.pad(wg.arange(3), 1, value=0.5)),  # here
        (wg.DtypeError, lambda x: wg.scatter_add(wg.arange(2), x > 0, 2)),  # here
        (wg.InputError, lambda x: wg.dropout(x, 1.5)),  # here
        (wg.InputError, lambda x: wg.mse(x, x, reduction="avg")),  # here
        (wg.InputError, lambda x: wg.gelu(x, "fast")),  # here
        (wg.InputError, lambda x: wg.conv2d(IMAGE, KERNEL, stride=0)),  # here
        (wg.InputError, lambda x: wg.conv2d(IMAGE, KERNEL, padding=-1)),  # here
        (wg.InputError, lambda x: wg.max_pool2d(x, (1, 2, 3))),  # here
        (wg.InputError, lambda x: wg.sum(x, 1.5)),  # here
        (wg.InputError, lambda x: wg.arange(0, 3, 0)),  # here
        (wg.TraceError, lambda x: x[x > 0]),  # here
        (wg.TraceError, lambda x: x[1.5]),  # here
        (wg.TraceError, lambda x: x[True]),  # here
        (wg.TraceError, lambda x: x[:, [0, 1]]),  # here
        (wg.TraceError, lambda x: wg.grad(wg.sum(x), [1.0])),  # here
        (wg.TraceError, lambda x: wg.grad(1.0, x)),  # here
    ],
)
async def test_misuse_of_a_function_blames_the_line(kind, build):
    with raises_here(kind, match="."):
        await wg.compile_forward(Empty, lambda model, x: build(x), inputs={"x": (2, 3)}, device="numpy")


# --- ids --------------------------------------------------------------------------------------------


class Table(nn.Module):
    """Six rows."""

    def __init__(self):
        self.table = self.param((6, 3), scale=1.0)


#: name -> (how ids become an index, the bounds that the host checks)
ROUTES = {
    "embedding": (lambda m, i: wg.embedding(m.table, i), (0, 5)),
    "take": (lambda m, i: m.table[i], (-6, 5)),
    "one_hot": (lambda m, i: wg.one_hot(i, 4), (0, 3)),
    "cross_entropy": (lambda m, i: wg.cross_entropy(m.table[:4], i), (0, 2)),
    "take_along_last": (lambda m, i: wg.take_along_last(m.table[:4], i), (0, 2)),
    "scatter_add": (lambda m, i: wg.scatter_add(i, wg.ones((4,)), 5), (0, 4)),
    "reshaped": (lambda m, i: wg.embedding(m.table, wg.reshape(i, 2, 2).T[0]), (0, 5)),
    "cast": (lambda m, i: wg.embedding(m.table, i.astype("u32").astype("i32")), (0, 5)),
    "joined": (lambda m, i: wg.embedding(m.table, wg.concat([i, i * 0])), (0, 5)),
    "padded": (lambda m, i: wg.embedding(m.table, wg.pad(i, 1)), (0, 5)),
    "used twice": (lambda m, i: (wg.embedding(m.table, i), wg.one_hot(i[1:], 4)), (0, 3)),
}


async def looked_up(route, dtype="i32", device="numpy"):
    """A program that uses the input ``i [4]`` as ids."""
    return await wg.compile_forward(
        Table, lambda model, i: ROUTES[route][0](model, i), inputs={"i": wg.Input((4,), dtype)}, device=device
    )


@pytest.mark.parametrize("route", ROUTES)
async def test_ids_from_inputs_are_checked_on_the_host(route, device):
    program = await looked_up(route, device=device)
    low, high = ROUTES[route][1]
    assert program.ir.graph.id_bounds == {"i": (low, high)}
    await program.run({"i": [low, high, low, high]})
    for bad in (low - 1, high + 1):
        with raises_here(wg.InputError, match=rf"'i'\[2\] = {bad}: .*ids, which must be in {low} to {high}"):
            program.run({"i": [low, low, bad, high]})  # here


@pytest.mark.parametrize("route", ROUTES)
async def test_unsigned_and_wide_ids_are_checked_too(route):
    high = ROUTES[route][1][1]
    program = await looked_up(route, "u32")
    await program.run({"i": np.array([0, 1, 2, high], np.uint64)})
    with pytest.raises(wg.InputError, match="must be in 0 to"):
        program.run({"i": np.array([0, 1, 2, high + 1], np.uint8)})
    with pytest.raises(wg.InputError, match="u32 holds 0 to"):
        program.run({"i": np.array([0, 1, 2, -1])})


async def test_floats_that_become_ids_are_checked_and_nan_is_none():
    program = await wg.compile_forward(
        Table, lambda model, x: wg.embedding(model.table, x.astype("i32")), inputs={"x": (2,)}, device="numpy"
    )
    await program.run({"x": [0.0, 5.9]})
    for bad in (np.nan, np.inf, 6.0, -1.0):
        with raises_here(wg.InputError, match=r"'x'\[1\] = .*must be in 0 to 5"):
            program.run({"x": [0.0, bad]})  # here


async def test_ids_that_the_graph_computes_clamp_and_are_not_checked(device):
    def forward(model, i):
        return wg.embedding(model.table, i + 0)

    program = await wg.compile_forward(Table, forward, inputs={"i": wg.Input((3,), "i32")}, device=device)
    assert program.ir.graph.id_bounds == {}
    table = (await program.download_params())["table"]
    np.testing.assert_array_equal(await program.run({"i": [-3, 2, 99]}), table[[0, 2, 5]])


@pytest.mark.parametrize(
    "build",
    [
        lambda m: wg.embedding(m.table, [0, 6]),  # here
        lambda m: wg.embedding(m.table, np.array([[-1]])),  # here
        lambda m: m.table[[0, -7]],  # here
        lambda m: wg.one_hot(np.array(4), 4),  # here
        lambda m: wg.cross_entropy(m.table, np.full(6, 3)),  # here
    ],
)
async def test_literal_ids_are_checked_while_tracing(build):
    with raises_here(wg.InputError, match="ids must be in"):
        await wg.compile_forward(Table, lambda model: build(model), inputs={}, device="numpy")


# --- before anything is written ---------------------------------------------------------------------


async def test_a_rejected_step_changes_nothing(device):
    def loss(model, i, x):
        return wg.mean(wg.dropout(wg.embedding(model.table, i) * x))

    async def fresh():
        return await wg.compile_module(
            Table,
            loss,
            inputs={"i": wg.Input((2,), "i32"), "x": (2, 3)},
            optimizer=wg.optim.Adam(),
            device=device,
        )

    train, other = await fresh(), await fresh()
    good = {"i": [0, 5], "x": np.ones((2, 3))}
    await train.step(good), await other.step(good)
    before = await train.state_dict()
    bad = [
        {"i": [0, 6], "x": np.ones((2, 3))},
        {"i": [0, -1], "x": np.ones((2, 3))},
        {"i": [0.0, 1.0], "x": np.ones((2, 3))},
        {"i": [0, np.nan], "x": np.ones((2, 3))},
        {"i": [0, 1], "x": np.ones((3, 2))},
        {"i": [0, 1]},
        {"i": [0, 1], "x": np.ones((2, 3)), "y": 0},
    ]
    for inputs in bad:
        with raises_here(wg.WebgradError, match=r"'i'|'x'|'y'"):
            train.step(inputs)  # here
    after = await train.state_dict()
    assert (after["t"], after["rng_step"]) == (before["t"], before["rng_step"]) == (1, 1)
    np.testing.assert_array_equal(after["params"]["table"], before["params"]["table"])
    for slot in ("m", "v"):
        np.testing.assert_array_equal(after["optimizer"][slot]["table"], before["optimizer"][slot]["table"])
    assert await train.step(good) == await other.step(good)


async def test_a_parameter_outside_the_model_is_explained():
    loose = nn.Linear(3, 3)

    def forward(model, x):
        return x @ loose.W  # here

    with raises_here(wg.TraceError, match=r"Parameter is not part of the model"):
        await wg.compile_forward(Empty, forward, inputs={"x": (3, 3)}, device="numpy")
