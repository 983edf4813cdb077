"""Elementwise primitives: result [i] depends on the operands' [i] alone. Arithmetic, comparison, choice.

Functions of one number (powers, exponentials, roots, rounding) are in `functions`.

Calling one promotes dtypes and broadcasts; in the graph all operands have the result's shape. WGSL
comes from the numeric prelude (``wg_*``), never from built-ins that adapters may get wrong.
"""

from __future__ import annotations

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
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty(0, object)
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


# --- comparison and logic ---------------------------------------------------------------------------


class Compare(Binary):
    """A bool from two numbers; with a NaN only ``!=`` is true."""

    signature: ClassVar[Signature] = "compare"
    differentiable = False

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return None, None


class Ordered(Compare):
    """An order of numbers; bools compare as 0 and 1."""

    def prepare(self, inputs: tuple[Any, ...]) -> list[Any]:
        return [cast_to(t, "i32") if t.dtype == "bool" else t for t in super().prepare(inputs)]


class Lt(Ordered):
    """a < b."""

    name, text, int_text, reference = "less", "wg_lt({0}, {1})", "({0} < {1})", np.less


class Le(Ordered):
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
floordiv, remainder_, minimum_, maximum_ = FloorDiv(), Remainder(), Minimum(), Maximum()
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
