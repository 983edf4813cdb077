"""Functions of one number: powers, exponentials, roots, trigonometry, activations, rounding.

WGSL comes from the numeric prelude (``wg_*``), which holds at ±0, ±inf and NaN on every adapter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from webgrad.errors import DtypeError
from webgrad.ir import Node, Shape
from webgrad.ops.base import Array
from webgrad.ops.elementwise import (
    Binary,
    Unary,
    add,
    div,
    eq,
    ge,
    guarded,
    le,
    logical_and,
    mul,
    neg,
    sub,
    where,
    zero_like,
)


class Pow(Binary):
    """a to the power b, in floats; a Python integer exponent becomes `integer_pow`."""

    name, signature, text, reference, cost = "power", "float", "wg_pow({0}, {1})", np.power, 30

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        a, b = node.inputs
        da = guarded(dy, a, mul(dy, where(eq(b, 0.0), 0.0, mul(b, power(a, sub(b, 1.0))))))
        slope = where(logical_and(eq(a, 0.0), ge(b, 0.0)), 0.0, mul(node, log(a)))
        return da, guarded(dy, a, mul(dy, slope))


class IntegerPow(Unary):
    """x to a fixed integer power, by exact products (1 over them for a negative one)."""

    name, signature, cost, repeats = "integer_pow", "number", 3, True

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        if attrs["exponent"] < 0 and inputs[0].dtype != "f32":
            raise DtypeError("integers to negative integer powers are not integers: cast to f32 first")
        return super().infer(inputs, attrs)

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        (x,), n = node.inputs, node.attrs["exponent"]
        if n == 0:
            return (zero_like(x),)
        slope = mul(float(n), integer_pow(x, exponent=n - 1))
        return (mul(dy, slope) if n > 0 else guarded(dy, x, mul(dy, slope)),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        (x,), n = args, attrs["exponent"]
        result, square, left = np.ones_like(x), x, abs(n)
        with np.errstate(all="ignore"):
            while left:
                result = result * square if left & 1 else result
                square, left = square * square, left >> 1
            return 1 / result if n < 0 else result

    def wgsl(self, attrs: Mapping[str, Any], dtypes: tuple[str, ...], *args: str) -> str:
        (x,), n = args, attrs["exponent"]
        one = {"f32": "1.0", "i32": "1i", "u32": "1u"}[dtypes[0]]
        product = one if n == 0 else _product(x, abs(n))
        return f"wg_div(1.0, {product})" if n < 0 else product


def _product(x: str, n: int) -> str:
    if n == 1:
        return x
    half = _product(x, n // 2)
    return f"({half} * {half}{f' * {x}' if n % 2 else ''})"


class Abs(Unary):
    """|x|; the slope at 0 is 0."""

    name, signature, text, reference = "abs", "number", "abs({0})", np.abs

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (mul(dy, sign(node.inputs[0])),)


class Sign(Unary):
    """−1, 0 or 1; NaN stays NaN."""

    name, signature, reference = "sign", "number", np.sign
    text, int_text = "wg_sign({0})", "sign({0})"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (zero_like(dy),)

    def wgsl(self, attrs: Mapping[str, Any], dtypes: tuple[str, ...], *args: str) -> str:
        return f"min({args[0]}, 1u)" if dtypes[0] == "u32" else super().wgsl(attrs, dtypes, *args)


class FloatUnary(Unary):
    """A function of one float."""

    signature = "float"
    cost = 10


class Exp(FloatUnary):
    """eˣ."""

    name, text, reference, cost = "exp", "wg_exp({0})", np.exp, 10

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (mul(dy, node),)


class Expm1(FloatUnary):
    """eˣ − 1, accurate near 0."""

    name, text, reference = "expm1", "wg_expm1({0})", np.expm1

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (mul(dy, add(node, 1.0)),)


class Log(FloatUnary):
    """Natural logarithm: log 0 = −inf, NaN below 0."""

    name, text, reference = "log", "wg_log({0})", np.log

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        (x,) = node.inputs
        return (guarded(dy, x, div(dy, x)),)


class Log1p(FloatUnary):
    """log(1 + x), accurate near 0."""

    name, text, reference = "log1p", "wg_log1p({0})", np.log1p

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        (x,) = node.inputs
        return (guarded(dy, x, div(dy, add(x, 1.0))),)


class Sqrt(FloatUnary):
    """Square root; NaN below 0."""

    name, text, reference, cost = "sqrt", "wg_sqrt({0})", np.sqrt, 4

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (guarded(dy, node.inputs[0], div(mul(dy, 0.5), node)),)


class Rsqrt(FloatUnary):
    """1/√x."""

    name, text, cost = "rsqrt", "wg_rsqrt({0})", 5
    reference = staticmethod(lambda x: (1 / np.sqrt(x)).astype(x.dtype))

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        (x,) = node.inputs
        return (guarded(dy, x, mul(mul(dy, -0.5), div(node, x))),)


class Tanh(FloatUnary):
    """Hyperbolic tangent."""

    name, text, reference = "tanh", "wg_tanh({0})", np.tanh

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (mul(dy, sub(1.0, mul(node, node))),)


def _sigmoid(x: Array) -> Array:
    z = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + z), z / (1 + z)).astype(x.dtype)


class Sigmoid(FloatUnary):
    """1 / (1 + e⁻ˣ)."""

    name, text, reference = "sigmoid", "wg_sigmoid({0})", staticmethod(_sigmoid)

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (mul(dy, mul(node, sub(1.0, node))),)


class Erf(FloatUnary):
    """2/√π · ∫₀ˣ e^(−t²) dt."""

    name, text, cost = "erf", "wg_erf({0})", 16
    reference = staticmethod(lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x) if x.size else x)

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        (x,) = node.inputs
        return (mul(dy, mul(2 / math.sqrt(math.pi), exp(neg(mul(x, x))))),)


class Sin(FloatUnary):
    """Sine of radians."""

    name, text, reference = "sin", "wg_sin({0})", np.sin

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (mul(dy, cos(node.inputs[0])),)


class Cos(FloatUnary):
    """Cosine of radians."""

    name, text, reference = "cos", "wg_cos({0})", np.cos

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (neg(mul(dy, sin(node.inputs[0]))),)


class Relu(Unary):
    """max(x, 0), NaN kept; the slope at 0 is 0. The gradient needs only the result."""

    name, signature = "relu", "number"
    text, int_text = "wg_relu({0})", "max({0}, {t}(0))"
    reference = staticmethod(lambda x: np.where(x <= 0, np.zeros_like(x), x))

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (where(le(node, 0.0), 0.0, dy),)


class Rounding(Unary):
    """To integers, as floats; the slope is 0. Integers pass unchanged."""

    cost = 1

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (zero_like(dy),)


class Floor(Rounding):
    """Largest integer not above x."""

    name, text, int_text, reference = "floor", "wg_floor({0})", "{0}", np.floor


class Ceil(Rounding):
    """Smallest integer not below x."""

    name, text, int_text, reference = "ceil", "wg_ceil({0})", "{0}", np.ceil


class Round(Rounding):
    """Nearest integer, halves to even."""

    name, text, int_text, reference = "round", "wg_round({0})", "{0}", np.round


power, integer_pow, abs_, sign = Pow(), IntegerPow(), Abs(), Sign()
exp, expm1_, log, log1p_, sqrt_, rsqrt_ = Exp(), Expm1(), Log(), Log1p(), Sqrt(), Rsqrt()
tanh_, sigmoid_, erf_, sin, cos, relu_ = Tanh(), Sigmoid(), Erf(), Sin(), Cos(), Relu()
floor_, ceil_, round_ = Floor(), Ceil(), Round()
