"""Elementwise functions. Operands are tensors, NumPy arrays or weak Python numbers; shapes broadcast."""

from __future__ import annotations

import math as _math
from typing import Any

import numpy as _np

from webgrad.errors import DtypeError as _DtypeError
from webgrad.errors import InputError as _InputError
from webgrad.functional.shape import as_tensor as _as_tensor
from webgrad.functional.shape import sizes_of as _sizes_of
from webgrad.ir import as_dtype as _as_dtype
from webgrad.ir import promote_scalar as _promote_scalar
from webgrad.ops import elementwise as _ew
from webgrad.ops import functions as _fn
from webgrad.ops.leaves import constant as _constant
from webgrad.ops.movement import broadcast as _broadcast

__all__ = [
    "abs", "add", "astype", "ceil", "clip", "cos", "divide", "equal", "erf", "exp", "expm1", "floor",
    "floor_divide", "full", "full_like", "gelu", "greater", "greater_equal", "isfinite", "isinf", "isnan",
    "less", "less_equal", "log", "log1p", "logical_and", "logical_not", "logical_or", "logical_xor",
    "maximum", "minimum", "multiply", "negative", "not_equal", "ones", "ones_like", "power", "reciprocal",
    "relu", "remainder", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "square",
    "subtract", "tanh", "where", "zeros", "zeros_like",
]  # fmt: skip


def _binary(op: Any, formula: str) -> Any:
    def function(a: Any, b: Any) -> Any:
        return op(a, b)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = f"{formula} Broadcasts as NumPy; dtypes promote by the table in the guide."
    return function


def _unary(op: Any, formula: str) -> Any:
    def function(x: Any) -> Any:
        return op(x)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = formula
    return function


add = _binary(_ew.add, "a + b.")
subtract = _binary(_ew.sub, "a − b.")
multiply = _binary(_ew.mul, "a · b.")
divide = _binary(_ew.div, "a / b, always in floats (i32 / i32 is f32).")
floor_divide = _binary(_ew.floordiv, "⌊a / b⌋; an integer divided by 0 gives 0, as in NumPy.")
remainder = _binary(_ew.remainder_, "a − b·⌊a / b⌋, the sign of b, as Python's %.")
minimum = _binary(_ew.minimum_, "The smaller; NaN if either is. Ties share the gradient.")
maximum = _binary(_ew.maximum_, "The larger; NaN if either is. Ties share the gradient.")
less = _binary(_ew.lt, "a < b, a bool.")
less_equal = _binary(_ew.le, "a ≤ b, a bool.")
equal = _binary(_ew.eq, "a = b, a bool; NaN equals nothing.")
logical_and = _binary(_ew.logical_and, "a and b, as bools.")
logical_or = _binary(_ew.logical_or, "a or b, as bools.")
logical_xor = _binary(_ew.logical_xor, "Exactly one of a and b, as bools.")

negative = _unary(_ew.neg, "−x.")
abs = _unary(_fn.abs_, "|x|; the slope at 0 is 0.")
sign = _unary(_fn.sign, "−1, 0 or 1.")
exp = _unary(_fn.exp, "eˣ.")
expm1 = _unary(_fn.expm1_, "eˣ − 1, accurate near 0.")
log = _unary(_fn.log, "Natural logarithm; log 0 is −inf, NaN below 0.")
log1p = _unary(_fn.log1p_, "log(1 + x), accurate near 0.")
sqrt = _unary(_fn.sqrt_, "√x; NaN below 0.")
rsqrt = _unary(_fn.rsqrt_, "1/√x.")
tanh = _unary(_fn.tanh_, "Hyperbolic tangent.")
sigmoid = _unary(_fn.sigmoid_, "1 / (1 + e⁻ˣ).")
erf = _unary(_fn.erf_, "The error function.")
sin = _unary(_fn.sin, "Sine of radians.")
cos = _unary(_fn.cos, "Cosine of radians.")
relu = _unary(_fn.relu_, "max(x, 0); NaN stays NaN; the slope at 0 is 0.")
floor = _unary(_fn.floor_, "⌊x⌋; the slope is 0.")
ceil = _unary(_fn.ceil_, "⌈x⌉; the slope is 0.")
round = _unary(_fn.round_, "Nearest integer, halves to even; the slope is 0.")
logical_not = _unary(_ew.logical_not, "The opposite bool.")
isnan = _unary(_ew.isnan_, "Whether x is NaN.")
isinf = _unary(_ew.isinf_, "Whether x is ±inf.")
isfinite = _unary(_ew.isfinite_, "Whether x is neither NaN nor infinite.")


def greater(a: Any, b: Any) -> Any:
    """a > b, a bool."""
    return _ew.gt(a, b)


def greater_equal(a: Any, b: Any) -> Any:
    """a ≥ b, a bool."""
    return _ew.ge(a, b)


def not_equal(a: Any, b: Any) -> Any:
    """a ≠ b, a bool; NaN differs from everything."""
    return _ew.logical_not(_ew.eq(a, b))


def power(a: Any, b: Any) -> Any:
    """aᵇ. A Python integer exponent is an exact product (so (−2)² = 4 and integers stay integers);
    0.5 is `sqrt`; other exponents compute in floats.
    """
    if isinstance(b, int | _np.integer) and not isinstance(b, bool) and _abs(int(b)) <= 64:
        return _fn.integer_pow(a, exponent=int(b))
    if isinstance(b, float) and b.is_integer() and _abs(b) <= 64:
        return _fn.integer_pow(_ew.mul(a, 1.0) if getattr(a, "dtype", "f32") != "f32" else a, exponent=int(b))
    if isinstance(b, float) and b == 0.5:
        return _fn.sqrt_(a)
    return _fn.power(a, b)


def _abs(number: int | float) -> int | float:
    return number if number >= 0 else -number


def square(x: Any) -> Any:
    """x²."""
    return _fn.integer_pow(x, exponent=2)


def reciprocal(x: Any) -> Any:
    """1 / x."""
    return _ew.div(1.0, x)


def clip(x: Any, low: Any = None, high: Any = None) -> Any:
    """x limited to [low, high]; either may be None. NaN stays NaN."""
    x = _as_tensor(x, "clip")
    if low is not None:
        x = maximum(x, low)
    return minimum(x, high) if high is not None else x


def where(condition: Any, a: Any, b: Any) -> Any:
    """``a`` where ``condition`` holds, else ``b``; the three broadcast. No gradient leaks from the
    branch that is not taken.
    """
    return _ew.where(condition, a, b)


def astype(x: Any, dtype: Any) -> Any:
    """x converted to ``dtype``. Float to integer truncates and saturates, NaN becomes 0."""
    return _ew.cast_to(_ew.lift((x,), "astype")[0], _as_dtype(dtype))


def gelu(x: Any, approximate: str = "none") -> Any:
    """x·Φ(x), Φ the normal distribution; ``approximate="tanh"`` uses
    ½x(1 + tanh(√(2/π)(x + 0.044715x³))). As torch.nn.functional.gelu.
    """
    if approximate == "none":
        return x * (0.5 + 0.5 * _fn.erf_(x * (1 / _math.sqrt(2))))
    if approximate != "tanh":
        raise _InputError(f'gelu: approximate must be "none" or "tanh", found {approximate!r}')
    inner = _math.sqrt(2 / _math.pi) * (x + 0.044715 * integer_cube(x))
    return 0.5 * x * (1.0 + _fn.tanh_(inner))


def integer_cube(x: Any) -> Any:
    """x³."""
    return _fn.integer_pow(x, exponent=3)


def silu(x: Any) -> Any:
    """x·sigmoid(x)."""
    return x * _fn.sigmoid_(x)


def softplus(x: Any) -> Any:
    """log(1 + eˣ), as max(x, 0) + log1p(e^−|x|)."""
    return relu(x) + _fn.log1p_(_fn.exp(_ew.neg(_fn.abs_(x))))


def full(shape: Any, value: float | int | bool, dtype: Any = None) -> Any:
    """A constant of ``shape``; the dtype defaults to the Python number's kind."""
    if not _ew.is_scalar(value):
        raise _DtypeError(f"full: the value must be a number, found {type(value).__name__}")
    kind = _as_dtype(dtype or _promote_scalar("bool", value))
    return _broadcast(_constant(_ew.scalar_as(value, kind, "full"), kind), shape=_sizes_of(shape, "full"))


def zeros(shape: Any, dtype: Any = "f32") -> Any:
    """Zeros of ``shape``."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = "f32") -> Any:
    """Ones of ``shape``."""
    return full(shape, 1, dtype)


def full_like(x: Any, value: float | int | bool, dtype: Any = None) -> Any:
    """A constant of x's shape (and dtype)."""
    x = _as_tensor(x, "full_like")
    return full(x.shape, value, dtype or x.dtype)


def zeros_like(x: Any, dtype: Any = None) -> Any:
    """Zeros of x's shape (and dtype)."""
    return full_like(x, 0, dtype)


def ones_like(x: Any, dtype: Any = None) -> Any:
    """Ones of x's shape (and dtype)."""
    return full_like(x, 1, dtype)
