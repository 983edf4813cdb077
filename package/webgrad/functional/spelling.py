"""torch's argument names are refused with NumPy's, which are ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

OURS = {
    "dim": "axis",
    "dims": "axis",
    "keepdim": "keepdims",
    "dim0": "axis1",
    "dim1": "axis2",
    "start_dim": "start_axis",
    "end_dim": "end_axis",
    "unbiased": "correction",
    "num_classes": "classes",
}


def numpy_names(function: F) -> F:
    """``function``, raising a `TypeError` that names our spelling of a torch argument."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name in OURS:
                raise TypeError(f"{function.__name__}() has no argument {name!r}: use {OURS[name]}=")
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]
