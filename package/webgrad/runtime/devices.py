"""Choosing the executor: ``device="auto" | "webgpu" | "numpy" | "native"``.

There is one executor of each kind per page, worker or process, shared by every program.
"""

from __future__ import annotations

import sys
import warnings

from webgrad.errors import InputError, NoAdapterError
from webgrad.runtime.executor import Executor
from webgrad.runtime.reference import NumpyExecutor

DEVICES = ("auto", "webgpu", "numpy", "native")

_numpy: NumpyExecutor | None = None
_warned = False


async def open_executor(device: str | Executor) -> Executor:
    """The executor for ``device`` (an executor passes through).

    ``auto`` is WebGPU when there is an adapter, else NumPy with one warning. ``native`` is this machine's own
    GPU, outside a page. Raises `NoAdapterError` when WebGPU or ``native`` is asked for and missing,
    `InputError` for an unknown name.
    """
    global _warned
    if not isinstance(device, str):
        return device
    if device not in DEVICES:
        raise InputError(f"device must be one of {DEVICES}, found {device!r}")
    if device == "native":
        return _open_native()
    if device in ("auto", "webgpu"):
        try:
            return await _open_webgpu()
        except NoAdapterError as error:
            if device == "webgpu":
                raise
            if not _warned and sys.platform == "emscripten":
                _warned = True
                warnings.warn(f"webgrad runs on NumPy, many times slower: {error}", stacklevel=3)
    return shared_numpy()


async def _open_webgpu() -> Executor:
    if sys.platform != "emscripten":
        raise NoAdapterError(
            "WebGPU needs a browser: this Python runs outside one. Run the program in a page through "
            'Pyodide, or use device="native" (this machine\'s GPU) or device="numpy"'
        )
    from webgrad.runtime.webgpu import open_webgpu

    return await open_webgpu()


def _open_native() -> Executor:
    if sys.platform == "emscripten":
        raise NoAdapterError(
            'device="native" is for Python outside a page: use device="webgpu", which is the page\'s GPU'
        )
    from webgrad.runtime.native import open_native

    return open_native()


def shared_numpy() -> NumpyExecutor:
    """The process's NumPy executor."""
    global _numpy
    if _numpy is None:
        _numpy = NumpyExecutor()
    return _numpy
