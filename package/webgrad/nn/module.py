"""Module: a plain Python object whose parameters are declared with `Module.param`.

A module holds `Parameter` specifications, not numbers. Compiling walks the object (attributes, lists,
tuples, dicts), names each parameter by its path (``layers.0.attn.W_q``) and puts traced tensors in their
places. The same module or parameter reached twice is one parameter (weight tying).
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from webgrad.errors import DtypeError, InputError, ShapeError, TraceError
from webgrad.ir import NUMPY_DTYPES, Shape, as_dtype, numel
from webgrad.trace import param_input

NAMED_INITS = ("randn", "zeros", "ones")


@dataclass(eq=False)
class Parameter:
    """What a parameter will be: shape, dtype and how its first values are made."""

    shape: Shape
    dtype: str
    init: str | Callable[..., Any]
    scale: float

    #: NumPy must not treat it as an array
    __array_ufunc__ = None

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise TraceError(
            "this Parameter is not part of the model that is compiled, so it has no value: assign it to an "
            "attribute of the model, or into a list, tuple or dict there, and reach it through the model (a "
            "closure over self keeps the original)"
        )

    def values(self, path: str, seed: int) -> NDArray[Any]:
        """Initial values, from a stream keyed by (seed, path) alone."""
        digest = hashlib.sha256(path.encode()).digest()
        rng = np.random.default_rng([seed, *np.frombuffer(digest[:16], np.uint32).tolist()])
        size = numel(self.shape)
        if self.init == "zeros":
            array: Any = np.zeros(size)
        elif self.init == "ones":
            array = np.ones(size)
        elif self.init == "randn":
            array = rng.standard_normal(size) * self.scale
        else:
            assert callable(self.init)
            array = _call_init(self.init, size, self.shape, rng)
        array = np.asarray(array)
        if array.size != size:
            raise ShapeError(
                f"parameter {path!r}: init gave {array.shape}, expected {size} values {self.shape}"
            )
        if array.dtype.kind not in "fiub":
            raise DtypeError(f"parameter {path!r}: init gave dtype {array.dtype}, expected numbers")
        return array.reshape(self.shape).astype(NUMPY_DTYPES[self.dtype])


def _call_init(init: Callable[..., Any], size: int, shape: Shape, rng: np.random.Generator) -> Any:
    try:
        names = inspect.signature(init).parameters.values()
        takes = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in names)
        takes = 3 if any(p.kind is p.VAR_POSITIONAL for p in names) else takes
    except (TypeError, ValueError):
        takes = 2
    return init(size, shape, rng) if takes >= 3 else init(size, shape)


class Module:
    """Base of models and layers. Define ``__init__`` with `param` and ``__call__`` (or ``forward``)."""

    def param(
        self,
        shape: Sequence[int],
        *,
        dtype: Any = "f32",
        init: str | Callable[..., Any] = "randn",
        scale: float = 0.02,
    ) -> Any:
        """Declare a parameter; assign the result to an attribute.

        ``init`` is ``"randn"`` (normal times ``scale``), ``"zeros"``, ``"ones"`` or a callable
        ``(size, shape) -> array``, optionally with a third argument, a seeded NumPy Generator. Raises
        `InputError` for anything else.
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        if any(n < 0 for n in sizes):
            raise ShapeError(f"a parameter cannot have negative sizes: {sizes}")
        if not callable(init) and not (isinstance(init, str) and init in NAMED_INITS):
            raise InputError(
                f"init must be one of {NAMED_INITS} or a callable (size, shape) -> array: {init!r}"
            )
        return Parameter(sizes, as_dtype(dtype), init, scale)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`, unless the subclass defines ``__call__`` itself."""
        forward = getattr(self, "forward", None)
        if forward is None:
            raise InputError(f"{type(self).__name__} defines neither __call__ nor forward")
        return forward(*args, **kwargs)


def build_model(factory: Any) -> Module:
    """The model of a factory (class or zero-argument callable), or a deep copy of an instance."""
    if isinstance(factory, Module):
        return copy.deepcopy(factory)
    if not callable(factory):
        raise InputError(f"expected a Module class, a function that returns one, or a Module: {factory!r}")
    model = factory()
    if not isinstance(model, Module):
        name = getattr(factory, "__name__", repr(factory))
        raise InputError(
            f"the factory {name} returned {type(model).__name__}, not a webgrad.nn.Module: "
            "return an instance of a Module subclass"
        )
    return model


def find_parameters(model: Any) -> dict[str, Parameter]:
    """Every parameter by its path, in attribute order; each object once, under its first path."""
    found: dict[str, Parameter] = {}
    seen: set[int] = set()

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Parameter):
            if id(value) not in seen:
                seen.add(id(value))
                if path in found:
                    raise InputError(f"two parameters have the path {path!r}: rename a key or attribute")
                found[path] = value
        elif isinstance(value, Module | list | tuple | dict) and id(value) not in seen:
            seen.add(id(value))
            for key, child in _children(value):
                walk(child, f"{path}.{key}" if path else str(key))

    walk(model, "")
    return found


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Module):
        return list(vars(value).items())
    return list(value.items()) if isinstance(value, dict) else list(enumerate(value))


def materialize_params(model: Module) -> dict[str, Any]:
    """Inside a trace: declare every parameter of ``model`` and put the tensors in their places.

    Returns ``{path: tensor}``. The model is changed: pass one made for this trace.
    """
    tensors: dict[int, Any] = {}
    table: dict[str, Any] = {}
    for path, spec in find_parameters(model).items():
        table[path] = tensors[id(spec)] = param_input(path, spec.shape, spec.dtype)
    done: dict[int, Any] = {}

    def replaced(value: Any) -> Any:
        if isinstance(value, Parameter):
            return tensors[id(value)]
        if not isinstance(value, Module | list | tuple | dict):
            return value
        if id(value) in done:
            return done[id(value)]
        if isinstance(value, tuple):
            items = [replaced(v) for v in value]
            made = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
            done[id(value)] = made
            return made
        done[id(value)] = value
        for key, child in _children(value):
            new = replaced(child)
            if isinstance(value, Module):
                setattr(value, key, new)
            else:
                value[key] = new
        return value

    replaced(model)
    return table


def initial_values(model: Module, seed: int) -> dict[str, NDArray[Any]]:
    """First values of every parameter of a model that was not materialised yet."""
    return {path: spec.values(path, seed) for path, spec in find_parameters(model).items()}
