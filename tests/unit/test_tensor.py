"""Tensors: operators, hazards, torch's spellings, and the promotion table."""

import copy
import inspect
import operator

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import compute, raises_here
from webgrad import functional
from webgrad.tensor import Tensor

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])
Y = np.array([[2.0, 2.0, -3.0], [0.5, 1.0, 3.0]])
I = np.array([[7, -8, 9], [1, 0, -3]])
J = np.array([[2, 3, -4], [1, 2, 2]])
P, Q = np.array([True, True, False, False]), np.array([True, False, True, False])


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"]
)
def test_operators_are_numpys(name):
    op = getattr(operator, name)
    for a, b in ((X, Y), (I, J)):
        both, left, right, array, reverse = compute(
            lambda x, y, op=op, b=b: (op(x, y), op(x, 2), op(2, x + 10), op(x, b), op(b, x + 10)), a, b
        )
        for found, expected in (
            (both, op(a, b)), (left, op(a, 2)), (right, op(2, a + 10)), (array, op(a, b)),
            (reverse, op(b, a + 10)),
        ):  # fmt: skip
            np.testing.assert_allclose(found, expected, rtol=1e-6)
            assert found.dtype.kind == expected.dtype.kind


def test_unary_and_matrix_operators():
    negative, positive, absolute, product, right, left = compute(
        lambda x: (-x, +x, abs(x), x @ x.T, np.eye(2) @ x, x @ np.eye(3)), X
    )
    np.testing.assert_array_equal(negative, -X)
    np.testing.assert_array_equal(positive, X)
    np.testing.assert_array_equal(absolute, np.abs(X))
    np.testing.assert_allclose(product, X @ X.T)
    np.testing.assert_array_equal(right, X)
    np.testing.assert_array_equal(left, X)


def test_powers():
    found = compute(
        lambda x, i: (x**2, x**-1, x**0, x**3.0, abs(x) ** 0.5, 2**x, i**3, abs(x) ** abs(x)), X, I
    )
    expected = [X**2, 1 / X, X**0, X**3, abs(X) ** 0.5, 2**X, I**3, abs(X) ** abs(X)]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert a.dtype.kind == b.dtype.kind


def test_logic():
    found = compute(lambda p, q: (p & q, p | q, p ^ q, ~p, True & p, p | False, p == q, p != q), P, Q)
    expected = [P & Q, P | Q, P ^ Q, ~P, P, P, P == Q, P != Q]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == np.bool_


def test_in_place_operators_make_new_tensors():
    def forward(x):
        before = x
        x += 1
        x *= 2
        return before, x

    before, after = compute(forward, X)
    np.testing.assert_array_equal(before, X)
    np.testing.assert_array_equal(after, (X + 1) * 2)


# --- hazards ----------------------------------------------------------------------------------------


def in_trace(function):
    """``function`` of one traced tensor [2, 3]; returns what it returns."""
    found = []
    wg.trace(lambda: (x := wg.tensor_input("x", (2, 3)), found.append(function(x)))[0])
    return found[0]


def test_numpy_arrays_and_scalars_defer_to_tensors():
    for made in (
        in_trace(lambda t: np.ones(3) * t),
        in_trace(lambda t: np.ones((2, 3)) - t),
        in_trace(lambda t: np.float64(2) * t),
        in_trace(lambda t: np.float32(2) / t),
        in_trace(lambda t: np.ones((4, 2)) @ t),
        in_trace(lambda t: np.ones(3) < t),
        in_trace(lambda t: np.ones(3) == t),
        in_trace(lambda t: sum([t, t])),
    ):
        assert isinstance(made, Tensor)


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda t: bool(t), r"bool\(tensor\)"),
        (lambda t: 1 if t else 2, r"`if tensor`"),
        (lambda t: t > 0 and t < 1, r"bool\(tensor\)"),
        (lambda t: t in [wg.zeros((2, 3))], r"bool\(tensor\)"),
        (lambda t: 1.0 in t, "`in tensor`"),
        (lambda t: float(t), r"float\(tensor\)"),
        (lambda t: int(t), r"int\(tensor\)"),
        (lambda t: complex(t), r"float\(tensor\)"),
        (lambda t: range(t), "as a Python index"),
        (lambda t: [1, 2][t], "as a Python index"),
        (lambda t: np.asarray(t), r"np\.asarray\(tensor\)"),
        (lambda t: np.exp([t, t]), r"np\.asarray\(tensor\)"),
        (lambda t: np.ones((2, 3))[t], r"np\.asarray\(tensor\)"),
    ],
)
def test_asking_for_a_value_raises_with_the_remedy(use, what):
    with pytest.raises(
        wg.TraceError, match=what + r".*has no value while its program is traced.*webgrad\.where"
    ):
        in_trace(use)


def test_numpy_functions_of_tensors_raise():
    with pytest.raises(TypeError):
        in_trace(lambda t: np.exp(t))
    with pytest.raises((TypeError, wg.WebgradError)):
        in_trace(lambda t: np.sum(t))


def test_assignment_raises_with_the_remedy():
    def assign(t):
        t[0] = 1.0  # here

    with raises_here(wg.TraceError, match=r"immutable.*webgrad\.where"):
        in_trace(assign)


def test_hashing_is_by_identity_although_equality_is_elementwise():
    def check(t):
        u = t + 0
        table = {t: "t", u: "u"}
        assert table[t] == "t" and table[u] == "u" and len({t, t, u}) == 2
        assert isinstance(t == u, Tensor) and isinstance(t != u, Tensor)
        return True

    assert in_trace(check)


def test_copies_are_the_tensor_itself():
    assert in_trace(lambda t: copy.copy(t) is t and copy.deepcopy(t) is t)


def test_len_and_iteration_go_over_the_first_axis():
    rows = compute(lambda x: tuple(row * 1 for row in x), X)
    np.testing.assert_array_equal(np.stack(rows), X)
    assert in_trace(lambda t: len(t)) == 2
    with pytest.raises(TypeError, match="rank-0"):
        in_trace(lambda t: len(wg.sum(t)))


@pytest.mark.parametrize("operand", ["a", None, [1, "x"], object(), 1j, np.array([1j]), {1: 2}])
def test_operands_that_are_no_numbers_raise(operand):
    def forward(t):
        return t + operand  # here

    with raises_here(wg.DtypeError, match="add takes tensors, numbers and NumPy arrays"):
        in_trace(forward)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_numbers_that_do_not_fit_raise(value):
    with pytest.raises(wg.DtypeError, match="does not fit i32"):
        in_trace(lambda t: wg.arange(3) + value)


# --- spellings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("view", "reshape"), ("permute", "transpose"), ("unsqueeze", "expand_dims"), ("dim", "ndim"),
        ("item", "capture"), ("detach", "stop_gradient"), ("cat", "concat"), ("to", "astype"),
        ("numpy", "capture"), ("backward", "compile_module"), ("clamp", "clip"), ("masked_fill", "where"),
    ],
)  # fmt: skip
def test_torchs_methods_name_ours(name, ours):
    with pytest.raises(AttributeError, match=rf"no \.{name}: use .*{ours}"):
        in_trace(lambda t: getattr(t, name))
    assert not in_trace(lambda t: hasattr(t, "no_such_thing"))


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda t: wg.sum(t, dim=0), "axis="), (lambda t: t.mean(dim=0), "axis="),
        (lambda t: t.max(axis=0, keepdim=True), "keepdims="), (lambda t: wg.argmax(t, dim=0), "axis="),
        (lambda t: wg.softmax(t, dim=-1), "axis="), (lambda t: t.log_softmax(dim=-1), "axis="),
        (lambda t: wg.logsumexp(t, dim=0), "axis="), (lambda t: wg.concat([t, t], dim=0), "axis="),
        (lambda t: wg.stack([t, t], dim=0), "axis="), (lambda t: wg.squeeze(t, dim=0), "axis="),
        (lambda t: wg.expand_dims(t, dim=0), "axis="), (lambda t: wg.flip(t, dims=0), "axis="),
        (lambda t: wg.flatten(t, start_dim=0), "start_axis="), (lambda t: wg.all(t > 0, dim=0), "axis="),
        (lambda t: wg.var(t, unbiased=True), "correction="), (lambda t: wg.prod(t, dim=1), "axis="),
        (lambda t: wg.one_hot(wg.arange(2), num_classes=2), "classes="),
    ],
)  # fmt: skip
def test_torchs_arguments_name_ours(call, ours):
    with pytest.raises(TypeError, match=rf"has no argument '\w+': use {ours}"):
        in_trace(call)


def methods():
    """Names of the public methods that are not operators."""
    skip = {
        "T",
        "id",
        "op",
        "inputs",
        "attrs",
        "shape",
        "dtype",
        "sites",
        "ndim",
        "size",
        "nbytes",
        "describe",
    }
    return [n for n in dir(Tensor) if not n.startswith("_") and n not in skip]


@pytest.mark.parametrize("name", methods())
def test_every_method_is_a_function(name):
    assert callable(getattr(functional, name))
    assert getattr(Tensor, name).__doc__
    assert name in wg.__all__


def test_every_public_name_exists_and_has_a_docstring():
    assert len(set(wg.__all__)) == len(wg.__all__)
    for name in wg.__all__:
        thing = getattr(wg, name)
        assert inspect.getdoc(thing), name
    for module in (wg, wg.nn, wg.optim, functional):
        assert module.__doc__
    for name in wg.nn.__all__:
        assert inspect.getdoc(getattr(wg.nn, name)), name


@pytest.mark.parametrize(
    "thing",
    [
        wg.CompiledModule,
        wg.CompiledForward,
        wg.Params,
        wg.Module,
        wg.optim.Adam,
        wg.optim.SGD,
        wg.Pending,
        Tensor,
    ],
)
def test_public_methods_have_docstrings(thing):
    for name, member in inspect.getmembers(thing):
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{thing.__name__}.{name}"


# --- dtypes -----------------------------------------------------------------------------------------


def dtype_of(function, *dtypes):
    """The dtype of ``function`` of tensors of these dtypes."""
    graph = wg.trace(lambda: function(*[wg.tensor_input(f"x{k}", (2,), d) for k, d in enumerate(dtypes)]))
    return graph.outputs[0].dtype


def test_two_tensors_promote_by_the_table():
    table = {
        "bool": "bool u32 i32 f32",
        "u32": "u32 u32 i32 f32",
        "i32": "i32 i32 i32 f32",
        "f32": "f32 f32 f32 f32",
    }
    for a, row in table.items():
        for b, expected in zip(table, row.split(), strict=True):
            number = "i32" if expected == "bool" else expected
            assert dtype_of(lambda x, y: x + y, a, b) == number
            assert dtype_of(lambda x, y: wg.where(x == y, x, y), a, b) == expected
            assert dtype_of(lambda x, y: wg.concat([x, y]), a, b) == expected


@pytest.mark.parametrize("scalar", [1, np.int64(1), np.uint8(1)])
def test_a_weak_integer_only_lifts_bools(scalar):
    assert [dtype_of(lambda x: x + scalar, d) for d in ("bool", "u32", "i32", "f32")] == [
        "i32",
        "u32",
        "i32",
        "f32",
    ]
    assert [dtype_of(lambda x: scalar * x, d) for d in ("bool", "u32", "i32", "f32")] == [
        "i32",
        "u32",
        "i32",
        "f32",
    ]


@pytest.mark.parametrize("scalar", [0.5, np.float64(0.5), np.float32(0.5)])
def test_a_weak_float_lifts_to_f32(scalar):
    assert {dtype_of(lambda x: x * scalar, d) for d in ("bool", "u32", "i32", "f32")} == {"f32"}


def test_a_weak_bool_lifts_nothing():
    found = [dtype_of(lambda x: wg.where(x == x, x, True), d) for d in ("bool", "u32", "i32", "f32")]
    assert found == ["bool", "u32", "i32", "f32"]


def test_division_is_in_floats_and_sums_of_bools_count():
    assert dtype_of(lambda x, y: x / y, "i32", "i32") == "f32"
    assert dtype_of(lambda x: x / 2, "u32") == "f32"
    assert dtype_of(lambda x, y: x // y, "i32", "i32") == "i32"
    assert dtype_of(lambda x: wg.sum(x), "bool") == "i32"
    assert dtype_of(lambda x: wg.prod(x), "bool") == "i32"
    assert dtype_of(lambda x: wg.max(x), "bool") == "bool"
    assert dtype_of(lambda x: wg.mean(x), "i32") == "f32"
    assert dtype_of(lambda x: wg.argmax(x), "u32") == "i32"
    assert dtype_of(lambda x: wg.exp(x), "i32") == "f32"
    assert dtype_of(lambda x: wg.abs(x), "u32") == "u32"
    assert dtype_of(lambda x: x @ x, "i32") == "f32"
    assert dtype_of(lambda x: x**2, "i32") == "i32"
    assert dtype_of(lambda x: x**0.5, "i32") == "f32"


def test_numpy_arrays_are_strong():
    assert dtype_of(lambda x: x + np.ones(2), "i32") == "f32"
    assert dtype_of(lambda x: x + np.ones(2, np.int64), "f32") == "f32"
    assert dtype_of(lambda x: x + np.ones(2, np.int64), "u32") == "i32"
    assert dtype_of(lambda x: x + np.array(1.5), "i32") == "f32"


@pytest.mark.parametrize(
    ("dtype", "ours"),
    [
        (np.float32, "f32"), (np.float64, "f32"), ("float16", "f32"), (float, "f32"), (np.int64, "i32"),
        (int, "i32"), ("int8", "i32"), (np.uint8, "u32"), (np.dtype("uint64"), "u32"), (bool, "bool"),
        (np.bool_, "bool"), ("f32", "f32"), ("i32", "i32"), ("u32", "u32"), ("bool", "bool"),
    ],
)  # fmt: skip
def test_numpy_dtypes_are_dtypes(dtype, ours):
    assert dtype_of(lambda x: wg.astype(x, dtype), "f32") == ours
    assert dtype_of(lambda x: wg.zeros((2,), dtype), "f32") == ours
    assert dtype_of(lambda x: wg.arange(3, dtype=dtype), "f32") == ours
    assert wg.Input((2,), dtype).dtype == ours


@pytest.mark.parametrize("dtype", ["complex64", "f16", "str", object, "no such", np.datetime64])
def test_other_dtypes_raise(dtype):
    with raises_here(wg.DtypeError, match="dtype"):
        wg.Input((2,), dtype)  # here


def test_u32_arithmetic_wraps_and_has_no_negative():
    (found,) = compute(lambda x: (x - 2,), np.array([1, 5], np.uint32))
    np.testing.assert_array_equal(found, np.array([2**32 - 1, 3], np.uint32))
    with pytest.raises(wg.DtypeError, match="u32 tensor has no negative"):
        dtype_of(lambda x: -x, "u32")


def test_casts():
    x = np.array([1.9, -1.9, 0.0, np.nan, 1e20, -1e20, np.inf])
    i, u, b = compute(lambda x: (x.astype("i32"), x.astype("u32"), x.astype(bool)), x)
    np.testing.assert_array_equal(i, [1, -1, 0, 0, 2**31 - 1, -(2**31), 2**31 - 1])
    np.testing.assert_array_equal(u, [1, 0, 0, 0, 2**32 - 1, 0, 2**32 - 1])
    np.testing.assert_array_equal(b, [True, True, False, True, True, True, True])
