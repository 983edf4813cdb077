"""Tensor: a graph node with operators. Every method is also a function of `webgrad.functional`.

A tensor describes a value of the compiled program; it holds no numbers while tracing. Equality is
elementwise, hashing is by identity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from webgrad.errors import TraceError
from webgrad.ir import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

_VALUELESS = (
    "{what}: a webgrad tensor has no value while its program is traced. Use webgrad.where for a choice that "
    "depends on data, return or webgrad.capture() the tensor to read it, or keep plain Python numbers for "
    "what is known in advance."
)

#: torch's spellings -> ours
_TORCH_NAMES = {
    "view": "reshape(shape)",
    "permute": "transpose(*axes)",
    "unsqueeze": "expand_dims(axis)",
    "dim": "ndim",
    "item": "the float that step() returns, or webgrad.capture()",
    "detach": "webgrad.stop_gradient(t)",
    "backward": "webgrad.compile_module (it differentiates the loss) or webgrad.grad(y, xs)",
    "numpy": "webgrad.capture(name, t)",
    "cat": "webgrad.concat",
    "to": "astype(dtype)",
    "float": "astype('f32')",
    "type": "astype(dtype)",
    "t": "T",
    "mm": "t @ u",
    "clamp": "clip(low, high)",
    "pow": "t ** exponent",
    "masked_fill": "webgrad.where(mask, value, t)",
    "repeat": "broadcast_to(shape) or webgrad.concat",
    "clone": "the tensor itself, which is immutable",
    "contiguous": "the tensor itself: layout is the compiler's",
}


def _operator(name: str, reverse: bool = False) -> Any:
    def apply(self: Tensor, other: Any) -> Any:
        from webgrad import functional

        function = getattr(functional, name)
        return function(other, self) if reverse else function(self, other)

    apply.__name__ = apply.__qualname__ = name
    return apply


def _method(name: str) -> Any:
    def apply(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        from webgrad import functional

        return getattr(functional, name)(self, *args, **kwargs)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`webgrad.{name}` of this tensor."
    return apply


class Tensor(Node):
    """A traced value with ``shape``, ``dtype`` and NumPy's operators."""

    __slots__ = ()
    #: NumPy arrays defer to these operators: ``np.ones(2) * t`` is a tensor
    __array_ufunc__ = None
    __array_priority__ = 1000

    __hash__ = object.__hash__

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("subtract"), _operator("subtract", True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", True)
    __truediv__, __rtruediv__ = _operator("divide"), _operator("divide", True)
    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _operator("floor_divide", True)
    __mod__, __rmod__ = _operator("remainder"), _operator("remainder", True)
    __pow__, __rpow__ = _operator("power"), _operator("power", True)
    __matmul__, __rmatmul__ = _operator("matmul"), _operator("matmul", True)
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __eq__, __ne__ = _operator("equal"), _operator("not_equal")
    __and__, __rand__ = _operator("logical_and"), _operator("logical_and", True)
    __or__, __ror__ = _operator("logical_or"), _operator("logical_or", True)
    __xor__, __rxor__ = _operator("logical_xor"), _operator("logical_xor", True)
    __neg__, __abs__, __invert__ = _method("negative"), _method("abs"), _method("logical_not")
    __getitem__ = _method("getitem")

    def __pos__(self) -> Tensor:
        return self

    exp, log, sqrt, rsqrt, tanh, sigmoid = map(_method, ["exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid"])
    relu, abs, square, clip = map(_method, ["relu", "abs", "square", "clip"])
    sum, mean, max, min, prod = map(_method, ["sum", "mean", "max", "min", "prod"])
    argmax, argmin, all, any = map(_method, ["argmax", "argmin", "all", "any"])
    reshape, flatten, transpose, swapaxes = map(_method, ["reshape", "flatten", "transpose", "swapaxes"])
    squeeze, expand_dims, broadcast_to = map(_method, ["squeeze", "expand_dims", "broadcast_to"])
    astype, softmax, log_softmax = map(_method, ["astype", "softmax", "log_softmax"])

    @property
    def T(self) -> Any:
        """The tensor with its axes reversed."""
        from webgrad import functional

        return functional.transpose(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a rank-0 tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> NoReturn:
        raise TraceError(_VALUELESS.format(what="bool(tensor) or `if tensor`"))

    def __float__(self) -> NoReturn:
        raise TraceError(_VALUELESS.format(what="float(tensor)"))

    def __int__(self) -> NoReturn:
        raise TraceError(_VALUELESS.format(what="int(tensor)"))

    def __index__(self) -> NoReturn:
        raise TraceError(_VALUELESS.format(what="a tensor as a Python index"))

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise TraceError(_VALUELESS.format(what="np.asarray(tensor)"))

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TraceError(
            "t[i] = value: tensors are immutable. Build a new one with webgrad.where(mask, value, t) or "
            "webgrad.concat."
        )

    def __contains__(self, item: Any) -> NoReturn:
        raise TraceError(_VALUELESS.format(what="`in tensor`"))

    def __getattr__(self, name: str) -> NoReturn:
        if name in _TORCH_NAMES:
            raise AttributeError(f"webgrad tensors have no .{name}: use {_TORCH_NAMES[name]}")
        raise AttributeError(f"webgrad tensors have no attribute {name!r}")

    def __repr__(self) -> str:
        return f"Tensor({self.op.name}, shape={self.shape}, dtype={self.dtype})"

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self
