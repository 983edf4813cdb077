"""The fine print of numbers (DESIGN, sections 6, 10 and 11): kinks, ties, NaN, guards, masks."""

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import Empty, compute, raises_here, slopes
from webgrad import nn
from webgrad.rng import threefry2x32, uniform
from webgrad.runtime.reference import NumpyExecutor

NAN, INF = np.nan, np.inf


def same(found, expected):
    """Equal, NaN with NaN."""
    np.testing.assert_array_equal(found, np.asarray(expected, np.asarray(found).dtype))


# --- kinks and ties ---------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [wg.relu, wg.abs])
def test_the_slope_at_zero_is_zero(function):
    same(slopes(function, np.array([0.0, -0.0])), [0, 0])
    same(slopes(function, np.array([1.0, -1.0])), [1, 0 if function is wg.relu else -1])


@pytest.mark.parametrize("function", [wg.sign, wg.floor, wg.ceil, wg.round])
def test_steps_have_slope_zero(function):
    same(slopes(function, np.array([-1.5, 0.0, 0.3, 2.0])), [0, 0, 0, 0])


@pytest.mark.parametrize("function", [wg.minimum, wg.maximum])
def test_ties_of_two_share_the_gradient(function):
    left, right = slopes(function, np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    wins = [0.5, 1, 0] if function is wg.minimum else [0.5, 0, 1]
    same(left, wins)
    same(right, 1 - np.array(wins))


@pytest.mark.parametrize("function", [wg.max, wg.min])
def test_ties_in_a_reduction_split_evenly(function):
    x = np.array([[1.0, 1.0, 1.0, 1.0], [2.0, 0.0, 2.0, 0.0]])
    same(slopes(lambda t: function(t, 1), x)[0], [0.25] * 4)
    chosen = x[1] == (x[1].max() if function is wg.max else x[1].min())
    same(slopes(lambda t: function(t, 1), x)[1], chosen * 0.5)


def test_ties_in_a_window_and_of_argmax_take_the_first():
    x = np.zeros((1, 2, 4))
    same(slopes(lambda t: wg.max_pool2d(t, 2), x), [[[1, 0, 1, 0], [0, 0, 0, 0]]])
    same(compute(lambda t: (wg.argmax(t), wg.argmin(t)), np.array([1.0, 3.0, 3.0, 1.0]))[0], 1)
    same(compute(lambda t: wg.argmin(t), np.array([3.0, 1.0, 1.0])), 1)


def test_a_maximum_that_was_computed_is_compared_by_its_stored_bits(device):
    """Were the operand recomputed with another rounding, no element would equal its own maximum."""
    x = np.random.default_rng(0).normal(size=(40, 30))
    found = slopes(lambda t: wg.max(wg.tanh(t * 1.7) / 3.1 + t @ wg.ones((30, 30)), 1), x)
    assert np.all(np.abs(found).sum(1) > 0)


# --- NaN and infinity -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        wg.relu, wg.abs, wg.negative, wg.sign, wg.floor, wg.round, wg.exp, wg.log, wg.sqrt, wg.tanh,
        wg.sigmoid, wg.sin, wg.erf, wg.gelu, wg.silu, wg.softplus, wg.square, wg.log1p, wg.expm1,
        wg.rsqrt, wg.reciprocal,
        lambda x: wg.clip(x, -1, 1), lambda x: wg.maximum(x, 0.0), lambda x: wg.maximum(0.0, x),
        lambda x: wg.minimum(x, 0.0), lambda x: wg.where(x > 0, 1.0, x), lambda x: x**2, lambda x: x**1.5,
        lambda x: wg.max(x, keepdims=True), lambda x: wg.min(x, keepdims=True),
        lambda x: wg.sum(x, keepdims=True), lambda x: wg.prod(x, keepdims=True),
        lambda x: wg.mean(x, keepdims=True), lambda x: x[None] @ wg.ones((1, 1)),
        lambda x: wg.softmax(x), lambda x: wg.log_softmax(x), lambda x: wg.max_pool2d(x[None], 1),
        lambda x: wg.logsumexp(x, keepdims=True), lambda x: wg.layer_norm(x), lambda x: wg.pad(x, 1)[1],
    ],
)  # fmt: skip
def test_nan_stays_nan(function):
    assert np.all(np.isnan(compute(function, np.array([NAN]))))


def test_nan_wins_wherever_it_stands():
    x = np.array([[NAN, 1.0, 2.0], [1.0, NAN, INF], [1.0, -INF, NAN]])
    largest, least, first, where = compute(
        lambda t: (wg.max(t, 1), wg.min(t, 1), wg.argmax(t, 1), wg.argmin(t, 1)), x
    )
    assert np.all(np.isnan(largest)) and np.all(np.isnan(least))
    same(first, [0, 1, 2])
    same(where, [0, 1, 2])


def test_arg_of_infinities():
    x = np.array([[-INF, -INF, -INF], [INF, 1.0, INF], [-INF, 0.0, -INF], [INF, -INF, 0.0]])
    largest, least = compute(lambda t: (wg.argmax(t, 1), wg.argmin(t, 1)), x)
    same(largest, [0, 0, 1, 0])
    same(least, [0, 1, 0, 1])


def test_pooling_of_nan_infinity_and_padding():
    x = np.array([[[1.0, NAN, -INF, -INF], [2.0, 0.0, -INF, -INF]]])
    same(compute(lambda t: wg.max_pool2d(t, 2), x), [[[NAN, -INF]]])
    same(slopes(lambda t: wg.max_pool2d(t, 2), x), [[[0, 1, 1, 0], [0, 0, 0, 0]]])
    negative = np.full((1, 2, 2), -5.0)
    padded = compute(lambda t: wg.max_pool2d(t, 2, stride=2, padding=1), negative)
    same(padded, np.full((1, 2, 2), -5.0))
    same(slopes(lambda t: wg.max_pool2d(t, 2, stride=2, padding=1), negative), np.ones((1, 2, 2)))


# --- guards -----------------------------------------------------------------------------------------

SINGULAR = {
    "sqrt": (wg.sqrt, 0.0), "rsqrt": (wg.rsqrt, 0.0), "log": (wg.log, 0.0),
    "log of a negative": (wg.log, -1.0),
    "log1p": (wg.log1p, -1.0), "power": (lambda x: x**0.3, 0.0), "a negative power": (lambda x: x**-2, 0.0),
    "power of a tensor": (lambda x: wg.power(x, x * 0 + 0.5), 0.0), "divide": (lambda x: 1.0 / x, 0.0),
    "divide by itself": (lambda x: x / x, 0.0), "reciprocal": (wg.reciprocal, 0.0),
    "norm": (lambda x: wg.sqrt(wg.sum(x * x, keepdims=True)), 0.0), "sqrt of a negative": (wg.sqrt, -1.0),
    "exponent": (lambda x: wg.power(0.0, x), -1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGULAR)
def test_where_leaks_no_nan_from_the_branch_not_taken(name):
    function, point = SINGULAR[name]
    same(slopes(lambda x: wg.where(x == point, 0.0, function(x)), np.array([point])), [0.0])


@pytest.mark.parametrize("name", SINGULAR)
def test_a_nan_input_is_not_hidden(name):
    function, _ = SINGULAR[name]
    found = slopes(function, np.array([NAN]))
    assert np.isnan(found[0]) or name == "exponent"


def test_singular_slopes_are_infinite_where_they_count():
    same(slopes(wg.sqrt, np.array([0.0])), [INF])
    same(slopes(wg.log, np.array([0.0])), [INF])
    same(slopes(lambda x: 1.0 / x, np.array([0.0])), [-INF])


def test_powers_at_zero():
    base, exponent = slopes(wg.power, np.array([0.0, 0.0, 0.0, 2.0]), np.array([0.0, 1.0, 2.0, 0.0]))
    same(base, [0, 1, 0, 0])
    np.testing.assert_allclose(exponent, [0, 0, 0, np.log(2)], rtol=1e-6)


def test_a_product_with_a_zero_has_a_gradient():
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [2.0, 4.0, 3.0]])
    same(slopes(lambda t: wg.prod(t, 1), x), [[0, 6, 0], [0, 0, 0], [12, 6, 8]])


def test_integer_powers_are_exact_products():
    x = np.array([-2.0, 3.0, -0.1, 1e-3, 7.3], np.float32)
    square, cube, fifth, inverse = compute(lambda t: (t**2, t**3, t**5, t**-1), x)
    same(square, x * x)
    same(cube, x * x * x)
    same(fifth, x * x * (x * x) * x)
    same(inverse, np.float32(1) / x)
    same(compute(lambda i: i**5, np.array([-3, 7])), [-243, 16807])


# --- softmax ----------------------------------------------------------------------------------------


def test_softmax_of_extreme_rows():
    x = np.array([[-1000.0, -1000.0], [1000.0, 0.0], [-INF, 0.0], [3e38, -3e38]])
    same(compute(wg.softmax, x), [[0.5, 0.5], [1, 0], [0, 1], [1, 0]])
    found = compute(wg.log_softmax, x)
    np.testing.assert_allclose(found[:3], [[np.log(0.5)] * 2, [0, -1000], [-INF, 0]], rtol=1e-6)


def test_a_row_of_minus_infinity_is_nan_as_in_torch():
    x = np.array([[-INF, -INF], [0.0, 0.0]])
    for function in (wg.softmax, wg.log_softmax):
        found = compute(function, x)
        assert np.all(np.isnan(found[0])) and np.all(np.isfinite(found[1]))


def test_logsumexp_of_infinite_and_empty_rows():
    x = np.array([[-INF, -INF], [INF, 0.0], [1000.0, 1000.0]])
    np.testing.assert_allclose(compute(wg.logsumexp, x), [-INF, INF, 1000 + np.log(2)], rtol=1e-6)
    same(compute(wg.logsumexp, np.zeros((2, 0))), [-INF, -INF])


def test_masked_columns_get_no_gradient_and_no_nan():
    x = np.random.default_rng(0).normal(size=(3, 3))
    weights = np.arange(9.0).reshape(3, 3)
    found = slopes(wg.softmax_causal, x, cotangent=weights)
    same(found[np.triu_indices(3, 1)], np.zeros(3))
    assert np.all(np.isfinite(found)) and np.any(found[2])
    values = compute(wg.softmax_causal, x)
    same(values[0], [1, 0, 0])
    np.testing.assert_allclose(values.sum(-1), 1, rtol=1e-6)


def test_cross_entropy_of_confident_and_wrong_logits():
    x = np.array([[100.0, 0.0], [0.0, 100.0]])
    t = np.array([0, 0])
    np.testing.assert_allclose(compute(lambda x, t: wg.cross_entropy(x, t, "none"), x, t), [0, 100])
    found = slopes(lambda x, t: wg.cross_entropy(x, t, "sum"), x, t)
    np.testing.assert_allclose(found, [[0, 0], [-1, 1]], atol=1e-30)


# --- ids --------------------------------------------------------------------------------------------


def test_repeated_ids_add_up_in_the_gradient():
    table, ids = np.zeros((4, 2)), np.array([[1, 1, 3], [1, 0, 3]])
    weights = np.arange(12.0).reshape(2, 3, 2)
    expected = np.zeros((4, 2))
    np.add.at(expected, ids, weights)
    same(slopes(wg.embedding, table, ids, cotangent=weights), expected)
    same(slopes(lambda t, i: t[i - 4], table, ids, cotangent=weights), expected)


def test_many_repeats_of_one_id_sum_in_a_fixed_order():
    table, ids = np.zeros((3, 1)), np.zeros(3000, int)
    weights = np.random.default_rng(0).normal(size=(3000, 1))
    found = slopes(wg.embedding, table, ids, cotangent=weights)
    assert found[0, 0] == pytest.approx(weights.sum(), rel=1e-4)
    same(slopes(wg.embedding, table, ids, cotangent=weights), found)


def test_ids_made_in_the_graph_clamp_and_their_gradient_goes_to_the_clamped_row():
    table, ids = np.arange(6.0).reshape(3, 2), np.array([-7, 1, 9])
    same(compute(lambda t, i: wg.embedding(t, i * 1), table, ids), table[[0, 1, 2]])
    same(slopes(lambda t, i: wg.embedding(t, i * 1), table, ids), np.ones((3, 2)))
    picked = compute(lambda t, i: wg.take_along_last(t, i * 1), table, ids)
    same(picked, [0, 3, 5])
    same(slopes(lambda t, i: wg.take_along_last(t, i * 1), table, ids), [[1, 0], [0, 1], [0, 1]])
    same(compute(lambda t, i: t[i * 1], table, np.array([-1, -3, -99])), table[[2, 0, 0]])
    same(compute(lambda i: wg.one_hot(i * 1, 3), ids), [[0, 0, 0], [0, 1, 0], [0, 0, 0]])


# --- dropout ----------------------------------------------------------------------------------------


class Gate(nn.Module):
    """Elementwise weights."""

    def __init__(self):
        self.w = self.param((400,), init="ones")


def dropped(model, x):
    """A sum over a dropout that is captured."""
    return wg.sum(wg.capture("y", wg.dropout(model.w * x, 0.25)))


async def gated(device, forward=dropped, seed=3, optimizer=None):
    """A training program over ``x [400]``."""
    return await wg.compile_module(
        Gate, forward, inputs={"x": (400,)}, optimizer=optimizer, device=device, seed=seed
    )


ONES = {"x": np.ones(400)}


def mask_of(seed, step, stream, count, p):
    """The kept elements, by the generator in NumPy."""
    bits = threefry2x32(seed, step, np.arange(count), np.full(count, stream))[0]
    return uniform(bits) >= np.float32(p)


async def test_a_mask_is_predictable_scaled_and_the_same_backward(device):
    train = await gated(device)
    for step in range(3):
        y = (await train.step(ONES, with_captures=True)).captures["y"]
        kept = mask_of(3, step, 0, 400, 0.25)
        same(y, kept * np.float32(1 / 0.75))
        same((await train.download_param_grads())["w"], y)
        assert abs(kept.mean() - 0.75) < 0.08


async def test_masks_differ_by_seed_step_and_place(device):
    def forward(model, x):
        a, b = wg.dropout(model.w * x, 0.5), wg.dropout(model.w * x, 0.5)
        return wg.sum(wg.capture("a", a) + wg.capture("b", b))

    async def masks(seed):
        train = await gated(device, forward, seed)
        results = [await train.step(ONES, with_captures=True) for _ in range(2)]
        return [r.captures[n] for r in results for n in "ab"]

    found = [*await masks(1), *await masks(2)]
    for number, mask in enumerate(found):
        for other in found[:number]:
            assert 0.3 < np.mean(mask == other) < 0.7


async def test_the_mask_does_not_depend_on_the_schedule(device):
    def alone(model, x):
        return wg.sum(wg.dropout(x, 0.5) * model.w)

    def with_more(model, x):
        y = wg.softmax(wg.reshape(x, 20, 20))
        return wg.sum(wg.dropout(x, 0.5) * model.w) + wg.sum(y) * 0 + wg.sum(wg.dropout(y, 0.5)) * 0

    losses = [await (await gated(device, forward)).step(ONES) for forward in (alone, with_more)]
    assert losses[0] == losses[1]


async def test_rejected_steps_draw_nothing(device):
    train, other = await gated(device), await gated(device)
    with pytest.raises(wg.ShapeError):
        train.step({"x": np.ones(3)})
    assert await train.step(ONES) == await other.step(ONES)


def test_dropout_of_nothing_and_everything():
    x = np.array([1.0, -2.0, INF])
    same(compute(lambda t: wg.dropout(t, 0.0, always=True), x), x)
    same(compute(lambda t: wg.dropout(t, 1.0, always=True), x), [0, 0, 0])
    for p in (-0.1, 1.1, NAN):
        with raises_here(wg.InputError, match="p must be in"):
            wg.trace(lambda p=p: wg.dropout(wg.zeros((2,)), p, always=True))  # here


# --- grad -------------------------------------------------------------------------------------------


def test_one_x_gives_one_tensor_and_several_a_list():
    def forward(x, y):
        z = wg.sum(x * x * y)
        one, many = wg.grad(z, x), wg.grad(z, [x, y])
        assert isinstance(many, list) and len(many) == 2
        return (one, *many, *wg.grad(z, (y,)))

    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for found, expected in zip(compute(forward, x, y), (2 * x * y, 2 * x * y, x * x, x * x), strict=True):
        same(found, expected)


def test_an_unreachable_x_gives_zeros():
    x = np.ones((2, 3))
    same(compute(lambda x, y: wg.grad(wg.sum(y), x), x, np.ones(2)), np.zeros((2, 3)))
    same(compute(lambda x: wg.grad(wg.sum(wg.stop_gradient(x)), x), x), np.zeros((2, 3)))
    same(compute(lambda x: wg.grad(wg.sum(wg.astype(x > 0, "f32")), x), x), np.zeros((2, 3)))


def test_a_cotangent_weighs_a_result_that_is_no_scalar():
    x = np.array([1.0, 2.0, 3.0])
    same(compute(lambda x, w: wg.grad(x * x, x, cotangent=w), x, np.array([1.0, 0.0, 2.0])), [2, 0, 12])


def test_gradients_of_inner_values_and_of_the_result_itself():
    def forward(x):
        y = x * 3
        z = wg.sum(y * y)
        return wg.grad(z, y), wg.grad(z, z)

    inner, itself = compute(forward, np.array([1.0, 2.0]))
    same(inner, [6, 12])
    same(itself, 1)


def test_third_derivatives():
    def forward(x):
        y = x**4
        for _ in range(3):
            y = wg.grad(wg.sum(y), x)
        return y

    same(compute(forward, np.array([1.0, 2.0, -1.0])), [24, 48, -24])


async def test_a_gradient_penalty_trains(device):
    """d/dw of (d(w·x)²/dx)²: the rules are differentiated themselves."""

    def forward(model, x):
        slope = wg.grad(wg.sum((model.w * x) ** 2), x)
        return wg.sum(slope * slope)

    train = await gated(device, forward)
    await train.step({"x": np.full(400, 2.0)})
    np.testing.assert_allclose(
        (await train.download_param_grads())["w"], np.full(400, 4 * 4 * 4.0), rtol=1e-6
    )


async def test_parameters_qualify():
    program = await wg.compile_forward(
        Gate, lambda model, x: wg.grad(wg.sum(model.w * x), model.w), inputs={"x": (400,)}, device="numpy"
    )
    same(await program.run(ONES), np.ones(400))


# --- sums -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", ["software", "hardware"])
def test_long_sums_keep_their_precision(adapter):
    """No serial chain over many terms: a million ones plus noise, to a few roundings."""
    import asyncio

    from webgrad.compiler.target import Target

    x = 1 + np.random.default_rng(0).normal(size=200_000).astype(np.float32)

    async def run():
        executor = NumpyExecutor("schedule", target=Target(adapter_class=adapter))
        program = await wg.compile_forward(
            Empty, lambda m, x: wg.sum(x), inputs={"x": x.shape}, device=executor
        )
        return await program.run({"x": x})

    assert asyncio.run(run()) == pytest.approx(x.astype(np.float64).sum(), rel=1e-6)


async def test_bits_repeat_from_run_to_run(device):
    program = await wg.compile_forward(
        Empty,
        lambda m, x: (wg.softmax(x) @ wg.swapaxes(x, 0, 1), wg.sum(x)),
        inputs={"x": (30, 40)},
        device=device,
    )
    x = {"x": np.random.default_rng(0).normal(size=(30, 40))}
    first, second = await program.run(x), await program.run(x)
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()
