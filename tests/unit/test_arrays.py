"""Host arrays (DESIGN, section 12): what is accepted, converted once, refused, and returned."""

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import Empty, raises_here

VALUES = np.arange(6).reshape(2, 3)


async def echo(dtype, device="numpy", shape=(2, 3)):
    """A program that returns its input."""
    return await wg.compile_forward(
        Empty, lambda model, x: x, inputs={"x": wg.Input(shape, dtype)}, device=device
    )


ACCEPTED = {
    "float64": VALUES.astype(float),
    "float16": VALUES.astype(np.float16),
    "big-endian": VALUES.astype(">f4"),
    "fortran order": np.asfortranarray(VALUES.astype(np.float32)),
    "every other": np.repeat(VALUES, 2, axis=1)[:, ::2],
    "reversed": VALUES[::-1, ::-1][::-1, ::-1],
    "broadcast": np.broadcast_to(VALUES, (2, 3)),
    "lists": VALUES.tolist(),
    "tuples": tuple(map(tuple, VALUES.tolist())),
    "a list of arrays": [VALUES[0], VALUES[1]],
    "read-only": np.frombuffer(VALUES.astype(np.float32).tobytes(), np.float32).reshape(2, 3),
    "int64": VALUES.astype(np.int64),
    "uint8": VALUES.astype(np.uint8),
    "memoryview": memoryview(VALUES.astype(np.float32)),
    "matrix of a subclass": VALUES.astype(np.float32).view(np.recarray),
}


@pytest.mark.parametrize("kind", ACCEPTED)
async def test_anything_numpy_reads_is_accepted(kind, device):
    program = await echo("f32", device)
    result = await program.run({"x": ACCEPTED[kind]})
    np.testing.assert_array_equal(result, VALUES)
    assert type(result) is np.ndarray and result.dtype == np.float32


@pytest.mark.parametrize(
    "given", [VALUES, VALUES.astype(np.uint64), VALUES.astype(">i8"), VALUES.tolist(), VALUES > 2]
)
@pytest.mark.parametrize("dtype", ["i32", "u32", "f32"])
async def test_integers_of_any_width_and_bools_are_accepted(dtype, given):
    program = await echo(dtype)
    np.testing.assert_array_equal(await program.run({"x": given}), np.asarray(given))


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("i32", 2**31, r"'x'\[0, 1\] = 2147483648: i32 holds -2147483648 to 2147483647"),
        ("i32", -(2**31) - 1, "i32 holds"),
        ("u32", -1, r"'x'\[0, 1\] = -1: u32 holds 0 to 4294967295"),
        ("u32", 2**32, "u32 holds"),
    ],
)
async def test_integers_that_do_not_fit_are_refused(dtype, value, message):
    program = await echo(dtype)
    array = np.zeros((2, 3), np.int64)
    array[0, 1] = value
    with raises_here(wg.InputError, match=message):
        program.run({"x": array})  # here


async def test_the_extremes_fit(device):
    for dtype, low, high in (("i32", -(2**31), 2**31 - 1), ("u32", 0, 2**32 - 1)):
        program = await echo(dtype, device, (2,))
        np.testing.assert_array_equal(await program.run({"x": [low, high]}), [low, high])


@pytest.mark.parametrize(
    ("dtype", "given", "message"),
    [
        ("i32", np.ones((2, 3)), r"expected i32, found float64.*\.astype\(np\.int32\)"),
        ("u32", np.ones((2, 3), np.float32), "expected u32, found float32"),
        ("bool", np.ones((2, 3)), "expected bool, found float64.*mask != 0"),
        ("bool", np.ones((2, 3), int), "expected bool, found int64"),
        ("f32", np.full((2, 3), "a"), "expected numbers"),
        ("f32", np.full((2, 3), None), "expected numbers"),
        ("f32", np.full((2, 3), 2**70, object), "expected numbers"),
        ("f32", np.ones((2, 3), complex), "expected numbers"),
        ("f32", np.zeros((2, 3), "M8[s]"), "expected numbers"),
    ],
)
async def test_lossy_kinds_are_refused_with_a_remedy(dtype, given, message):
    program = await echo(dtype)
    with raises_here(wg.DtypeError, match=message):
        program.run({"x": given})  # here


async def test_special_floats_keep_their_bits(device):
    program = await wg.compile_forward(
        Empty, lambda model, x: (x, wg.capture("x", x)), inputs={"x": (5,)}, device=device
    )
    x = np.array([-0.0, np.nan, np.inf, -np.inf, 1e-30], np.float32)
    result = await program.run({"x": x}, with_captures=True)
    for found in (*result.output, result.captures["x"]):
        assert found.tobytes() == x.tobytes()


async def test_bools_come_back_as_bools(device):
    program = await echo("bool", device)
    found = await program.run({"x": VALUES > 2})
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, VALUES > 2)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (), (1, 1)])
async def test_empty_and_rank_zero_inputs(device, shape):
    program = await echo("f32", device, shape)
    found = await program.run({"x": np.ones(shape)})
    assert found.shape == shape
    np.testing.assert_array_equal(found, np.ones(shape))


async def test_a_tensor_is_no_input():
    left = []
    wg.trace(lambda: left.append(wg.tensor_input("x", (2, 3))) or left[0])
    program = await echo("f32")
    with pytest.raises(wg.TraceError, match=r"np\.asarray\(tensor\)"):
        program.run({"x": left[0]})
