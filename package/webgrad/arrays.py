"""Host arrays: what the user gives, checked and converted once, straight into the upload.

Anything NumPy can read is accepted. Kinds that would lose information are refused with a remedy; integer
values must fit; ids must lie in the range the program recorded for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webgrad.errors import DtypeError, InputError, ShapeError
from webgrad.ir import STORED_DTYPES, Shape, as_dtype


@dataclass(frozen=True)
class Input:
    """Shape and dtype of a program's input. ``wg.Input((32, 10), "i32")``."""

    shape: tuple[Any, ...]
    dtype: Any = "f32"

    def __post_init__(self) -> None:
        sizes = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        for size in sizes:
            if isinstance(size, str):
                raise InputError(
                    f"named dimensions are not supported yet: give a number for {size!r} in {sizes}, "
                    "and compile once per size"
                )
            if not hasattr(size, "__index__") or size < 0:
                raise ShapeError(f"an input's shape is a tuple of non-negative ints, found {self.shape!r}")
        object.__setattr__(self, "shape", tuple(int(n) for n in sizes))
        object.__setattr__(self, "dtype", as_dtype(self.dtype))


def as_input(name: str, value: Any) -> Input:
    """An `Input` from a shape, an `Input` or an example array."""
    if isinstance(value, Input):
        return value
    if isinstance(value, int):
        return Input((value,))
    if isinstance(value, tuple) or (isinstance(value, list) and all(isinstance(n, int) for n in value)):
        return Input(tuple(value))
    try:
        array = np.asarray(value)
        return Input(array.shape, array.dtype)
    except (ValueError, TypeError):
        raise InputError(
            f"input {name!r}: expected a shape, webgrad.Input(shape, dtype) or an example array, "
            f"found {value!r}"
        ) from None


def check_names(given: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    """Raise `InputError` for missing or unknown names."""
    if not isinstance(given, Mapping):
        raise InputError(f"{what}: expected a dict of arrays by name, found {type(given).__name__}")
    missing = [n for n in expected if n not in given]
    unknown = [n for n in given if n not in expected]
    if missing or unknown:
        parts = [f"missing {missing}" if missing else "", f"unknown {unknown}" if unknown else ""]
        raise InputError(f"{what}: {', '.join(p for p in parts if p)}; expected {list(expected)}")


def convert(
    name: str, value: Any, shape: Shape, dtype: str, bounds: tuple[int, int] | None = None
) -> NDArray[Any]:
    """``value`` as an array of ``shape`` in the stored form of ``dtype``; see the module's text.

    ``bounds`` is the range the values must have because the program uses them as ids.
    """
    array = as_numbers(name, value)
    if array.shape != shape:
        raise ShapeError(f"{name!r}: expected shape {shape}, found {array.shape}")
    if dtype in ("i32", "u32"):
        if array.dtype.kind == "f":
            raise DtypeError(
                f"{name!r}: expected {dtype}, found {array.dtype}, which would lose fractions: "
                "convert it yourself, for example with .astype(np.int32)"
            )
        _check_range(
            name, array, *((-(2**31), 2**31 - 1) if dtype == "i32" else (0, 2**32 - 1)), f"{dtype} holds"
        )
    elif dtype == "bool" and array.dtype.kind != "b":
        raise DtypeError(
            f"{name!r}: expected bool, found {array.dtype}: write the condition, for example mask != 0"
        )
    if bounds is not None:
        _check_range(
            name,
            np.trunc(array) if array.dtype.kind == "f" else array,
            *bounds,
            "the program uses it as ids, which must be in",
        )
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=STORED_DTYPES[dtype]).reshape(shape)


def as_numbers(name: str, value: Any) -> NDArray[Any]:
    """Anything NumPy reads as an array of bools, integers or floats."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise ShapeError(f"{name!r}: NumPy makes no array of this {type(value).__name__}: {error}") from None
    if array.dtype.kind not in "fiub":
        raise DtypeError(f"{name!r}: expected numbers, found dtype {array.dtype}")
    return array


def _check_range(name: str, array: NDArray[Any], low: int, high: int, what: str) -> None:
    if not array.size or (low <= array.min() and array.max() <= high):  # a NaN fails this
        return
    wrong = tuple(np.argwhere(~((array >= low) & (array <= high)))[0].tolist())
    at = f"[{', '.join(map(str, wrong))}]" if wrong else ""
    raise InputError(f"{name!r}{at} = {array[wrong]}: {what} {low} to {high}")


def from_bytes(raw: NDArray[np.uint8], shape: Shape, dtype: str) -> NDArray[Any]:
    """The array stored in ``raw``, C-contiguous and owning its memory."""
    values = raw.view(STORED_DTYPES[dtype]).reshape(shape)
    return values.astype(np.bool_) if dtype == "bool" else np.array(values)
