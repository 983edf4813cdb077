"""Elementwise primitives: result [i] depends on the operands' [i] alone.

Calling one promotes dtypes and broadcasts; in the graph all operands have the result's shape. WGSL
comes from the numeric prelude (``wg_*``), never from built-ins that adapters may get wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from webgrad.errors import DtypeError, ShapeError
from webgrad.ir import NUMPY_DTYPES, Node, Shape, as_dtype, promote, promote_scalar
from webgrad.ops.base import Array, Op, current_builder, float_like
from webgrad.ops.leaves import const, constant
from webgrad.ops.movement import broadcast

#: how operand dtypes become the result's
Signature = Literal["same", "number", "float", "compare", "logical", "select", "predicate"]


def is_scalar(value: Any) -> bool:
    """A weak Python (or NumPy rank-0) number."""
    return isinstance(value, bool | int | float | np.bool_ | np.number)


def lift(values: tuple[Any, ...], what: str) -> list[Any]:
    """Operands as tensors of one dtype. Python scalars are weak; NumPy arrays become constants."""
    current_builder(f"webgrad.{what}")
    tensors = [v if isinstance(v, Node) else None if is_scalar(v) else as_constant(v, what) for v in values]
    dtype: str | None = None
    for tensor in tensors:
        if tensor is not None:
            dtype = tensor.dtype if dtype is None else promote(dtype, tensor.dtype)
    for value, tensor in zip(values, tensors, strict=True):
        if tensor is None:
            dtype = promote_scalar("bool" if dtype is None else dtype, value)
    assert dtype is not None
    pairs = zip(values, tensors, strict=True)
    return [constant(scalar_as(v, dtype, what), dtype) if t is None else cast_to(t, dtype) for v, t in pairs]


def scalar_as(value: Any, dtype: str, what: str) -> Any:
    """A Python number that fits ``dtype``, or `DtypeError`."""
    if dtype in ("i32", "u32"):
        low, high = (-(2**31), 2**31 - 1) if dtype == "i32" else (0, 2**32 - 1)
        if not low <= value <= high:
            raise DtypeError(f"{what}: the number {value} does not fit {dtype}")
    return value


def as_constant(value: Any, what: str) -> Any:
    """A NumPy array (or nested list) as a constant node."""
    array = np.asarray(value)
    dtype = as_dtype(array.dtype) if array.dtype.kind in "fiub" else None
    if dtype is None:
        raise DtypeError(f"{what} takes tensors, numbers and NumPy arrays; found {type(value).__name__}")
    if dtype in ("i32", "u32") and array.size:
        for extreme in (array.min(), array.max()):
            scalar_as(int(extreme), dtype, what)
    return const(value=np.ascontiguousarray(array, dtype=NUMPY_DTYPES[dtype]).reshape(array.shape))


def cast_to(tensor: Any, dtype: str) -> Any:
    """``tensor`` in ``dtype``, itself when it already is."""
    return tensor if tensor.dtype == dtype else cast(tensor, dtype=dtype)


def common_shape(shapes: list[Shape], what: str) -> Shape:
    """The shape that all broadcast to, or `ShapeError`. (NumPy's own refuses what it could not allocate.)"""
    rank = max(map(len, shapes))
    sizes = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1 and sizes[axis] not in (1, size):
                found = " and ".join(map(str, shapes))
                raise ShapeError(f"{what}: shapes {found} do not broadcast (sizes must match or be 1)")
            sizes[axis] = size if size != 1 else sizes[axis]
    return tuple(sizes)


def broadcast_all(tensors: list[Any], what: str) -> list[Any]:
    """All tensors at their common NumPy shape."""
    shape = common_shape([t.shape for t in tensors], what)
    return [t if t.shape == shape else broadcast(t, shape=shape) for t in tensors]


class Elementwise(Op):
    """Base. ``text`` (or `wgsl`) is the WGSL of one element, ``reference`` the NumPy function."""

    family = "elementwise"
    signature: ClassVar[Signature] = "same"
    text: ClassVar[str] = ""
    #: text for i32/u32 operands, when it differs
    int_text: ClassVar[str] = ""
    #: the text names an operand more than once, so operands must be cheap identifiers
    repeats: ClassVar[bool] = False

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        return super().__call__(*self.prepare(inputs), **attrs)

    def prepare(self, inputs: tuple[Any, ...]) -> list[Any]:
        """Operands with the dtype this op computes in and a common shape."""
        tensors = lift(inputs, self.name)
        dtype = tensors[0].dtype
        if self.signature == "float":
            dtype = "f32"
        elif self.signature == "number" and dtype == "bool":
            dtype = "i32"
        elif self.signature == "logical":
            dtype = "bool"
        return broadcast_all([cast_to(t, dtype) for t in tensors], self.name)

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        compares = self.signature in ("compare", "logical", "predicate")
        return inputs[-1].shape, "bool" if compares else inputs[-1].dtype

    def wgsl(self, attrs: Mapping[str, Any], dtypes: tuple[str, ...], *args: str) -> str:
        """WGSL of one element from the operands' WGSL."""
        template = self.int_text if self.int_text and dtypes[-1] in ("i32", "u32") else self.text
        return template.format(*args, t=dtypes[-1])


def zero_like(x: Any) -> Any:
    """A zero constant of x's shape and dtype."""
    return broadcast(constant(0, x.dtype), shape=x.shape)


def guarded(dy: Any, x: Any, value: Any) -> Any:
    """``value``, but 0 where the cotangent is exactly 0 and x is no NaN: a singular slope behind an
    untaken `where` must not turn 0·inf into NaN.
    """
    return where(logical_and(eq(dy, 0.0), logical_not(isnan_(x))), 0.0, value)


def _is_nonzero_constant(x: Node) -> bool:
    while x.op.name in ("broadcast", "reshape", "cast"):
        x = x.inputs[0]
    return x.op.name == "const" and bool(np.all(x.attrs["value"] != 0))


class Unary(Elementwise):
    """One operand; ``reference`` is its NumPy function."""

    reference: ClassVar[Callable[..., Any]]

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        with np.errstate(all="ignore"):
            return type(self).reference(args[0])


class Binary(Elementwise):
    """Two operands."""

    reference: ClassVar[Callable[..., Any]]

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        with np.errstate(all="ignore"):
            return type(self).reference(args[0], args[1])


# --- arithmetic -------------------------------------------------------------------------------------


class Add(Binary):
    """a + b."""

    name, signature, text, reference = "add", "number", "({0} + {1})", np.add

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return dy, dy


class Sub(Binary):
    """a − b."""

    name, signature, text, reference = "subtract", "number", "({0} - {1})", np.subtract

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return dy, neg(dy)


class Mul(Binary):
    """a · b."""

    name, signature, text, reference = "multiply", "number", "({0} * {1})", np.multiply

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        a, b = node.inputs
        return mul(dy, b), mul(dy, a)


class Div(Binary):
    """a / b in floats (integers are cast first)."""

    name, signature, text, reference, cost = "divide", "float", "wg_div({0}, {1})", np.divide, 4

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        b = node.inputs[1]
        da, db = div(dy, b), neg(div(mul(dy, node), b))
        if _is_nonzero_constant(b):
            return da, db
        return guarded(dy, b, da), guarded(dy, b, db)


class FloorDiv(Binary):
    """Largest integer not above a/b; by an integer 0 it is 0, as in NumPy."""

    name, signature, reference, cost = "floor_divide", "number", np.floor_divide, 6
    differentiable = False
    text, int_text = "wg_floordiv({0}, {1})", "wg_floordiv_{t}({0}, {1})"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return None, None


class Remainder(Binary):
    """a − b·floor(a/b): the sign is b's, as in Python."""

    name, signature, reference, cost = "remainder", "number", np.remainder, 6
    text, int_text = "wg_mod({0}, {1})", "wg_mod_{t}({0}, {1})"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        a, b = node.inputs
        return dy, neg(mul(dy, floordiv(a, b)))


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


class Neg(Unary):
    """−x."""

    name, signature, text, reference = "negative", "number", "(-{0})", np.negative

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        if inputs[0].dtype == "u32":
            raise DtypeError("a u32 tensor has no negative: cast it to i32 first")
        return super().infer(inputs, attrs)

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (neg(dy),)


class Minimum(Binary):
    """The smaller; NaN if either is NaN. Ties share the gradient."""

    name, signature, reference = "minimum", "number", np.minimum
    text, int_text = "wg_min({0}, {1})", "min({0}, {1})"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return _share(node, dy, lt)


class Maximum(Binary):
    """The larger; NaN if either is NaN. Ties share the gradient."""

    name, signature, reference = "maximum", "number", np.maximum
    text, int_text = "wg_max({0}, {1})", "max({0}, {1})"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return _share(node, dy, gt)


def _share(node: Any, dy: Any, wins: Callable[..., Any]) -> tuple[Any, Any]:
    a, b = node.inputs
    tie = mul(dy, 0.5)
    da = where(wins(a, b), dy, where(wins(b, a), 0.0, tie))
    return da, sub(dy, da)


# --- functions --------------------------------------------------------------------------------------


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


# --- comparison and logic ---------------------------------------------------------------------------


class Compare(Binary):
    """A bool from two numbers; with a NaN only ``!=`` is true."""

    signature: ClassVar[Signature] = "compare"
    differentiable = False

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return None, None


class Lt(Compare):
    """a < b."""

    name, text, int_text, reference = "less", "wg_lt({0}, {1})", "({0} < {1})", np.less


class Le(Compare):
    """a ≤ b."""

    name, text, int_text, reference = "less_equal", "wg_le({0}, {1})", "({0} <= {1})", np.less_equal


class Eq(Compare):
    """a = b."""

    name, text, int_text, reference = "equal", "wg_eq({0}, {1})", "({0} == {1})", np.equal

    def wgsl(self, attrs: Mapping[str, Any], dtypes: tuple[str, ...], *args: str) -> str:
        if dtypes[0] == "bool":
            return f"({args[0]} == {args[1]})"
        return super().wgsl(attrs, dtypes, *args)


class And(Compare):
    """Both."""

    name, signature, text, reference = "logical_and", "logical", "({0} & {1})", np.logical_and


class Or(Compare):
    """Either."""

    name, signature, text, reference = "logical_or", "logical", "({0} | {1})", np.logical_or


class Xor(Compare):
    """Exactly one."""

    name, signature, text, reference = "logical_xor", "logical", "({0} != {1})", np.logical_xor


class Predicate(Unary):
    """A bool from one value."""

    signature: ClassVar[Signature] = "predicate"
    differentiable = False

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (None,)


class Not(Predicate):
    """The opposite."""

    name, signature, text, reference = "logical_not", "logical", "(!{0})", np.logical_not


class IsNan(Predicate):
    """Whether x is NaN (integers never are)."""

    name, text, int_text, reference = "isnan", "wg_isnan({0})", "false", np.isnan


class IsInf(Predicate):
    """Whether x is ±infinity."""

    name, text, int_text, reference = "isinf", "wg_isinf({0})", "false", np.isinf


class IsFinite(Predicate):
    """Whether x is neither NaN nor infinite."""

    name, text, int_text, reference = "isfinite", "wg_isfinite({0})", "true", np.isfinite


class Where(Elementwise):
    """``a`` where the condition holds, else ``b``."""

    name, signature, text = "where", "select", "select({2}, {1}, {0})"

    def prepare(self, inputs: tuple[Any, ...]) -> list[Any]:
        condition = lift(inputs[:1], self.name)[0]
        return broadcast_all([cast_to(condition, "bool"), *lift(inputs[1:], self.name)], self.name)

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        condition = node.inputs[0]
        return None, where(condition, dy, 0.0), where(condition, 0.0, dy)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return np.where(args[0], args[1], args[2])


# --- conversion -------------------------------------------------------------------------------------


class Cast(Elementwise):
    """To another dtype. Float to integer truncates and saturates; NaN becomes 0."""

    name = "cast"

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        return inputs[0].shape, attrs["dtype"]

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        (x,) = node.inputs
        return (cast_to(dy, "f32") if x.dtype == "f32" and node.dtype == "f32" else None,)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        (x,), dtype = args, attrs["dtype"]
        if dtype in ("i32", "u32") and x.dtype.kind == "f":
            low, high = (-(2**31), 2**31 - 1) if dtype == "i32" else (0, 2**32 - 1)
            whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=high, neginf=low))
            return np.clip(whole, low, high).astype(NUMPY_DTYPES[dtype])
        return x.astype(float_like(args) if dtype == "f32" and x.dtype.kind == "f" else NUMPY_DTYPES[dtype])

    def wgsl(self, attrs: Mapping[str, Any], dtypes: tuple[str, ...], *args: str) -> str:
        (x,), (source,), target = args, dtypes, attrs["dtype"]
        if target == "bool":
            whole = {"i32": f"({x} != 0i)", "u32": f"({x} != 0u)", "f32": f"wg_to_bool({x})"}
            return whole.get(source, x)
        if source == "bool":
            return f"select({target}(0), {target}(1), {x})"
        if source == "f32":
            return f"wg_to_{target}({x})"
        return f"{target}({x})"


class Copy(Unary):
    """The identity, stored anew: snapshots of leaves."""

    name, text, cost = "copy", "{0}", 0
    reference = staticmethod(np.array)

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (dy,)


add, sub, mul, div, neg = Add(), Sub(), Mul(), Div(), Neg()
floordiv, remainder_, power, integer_pow = FloorDiv(), Remainder(), Pow(), IntegerPow()
minimum_, maximum_, abs_, sign = Minimum(), Maximum(), Abs(), Sign()
exp, expm1_, log, log1p_, sqrt_, rsqrt_ = Exp(), Expm1(), Log(), Log1p(), Sqrt(), Rsqrt()
tanh_, sigmoid_, erf_, sin, cos, relu_ = Tanh(), Sigmoid(), Erf(), Sin(), Cos(), Relu()
floor_, ceil_, round_ = Floor(), Ceil(), Round()
lt, le, eq = Lt(), Le(), Eq()
logical_and, logical_or, logical_xor, logical_not = And(), Or(), Xor(), Not()
isnan_, isinf_, isfinite_ = IsNan(), IsInf(), IsFinite()
where, cast, copy = Where(), Cast(), Copy()


def gt(a: Any, b: Any) -> Any:
    """a > b."""
    return lt(b, a)


def ge(a: Any, b: Any) -> Any:
    """a ≥ b."""
    return le(b, a)
