"""What a page's Python needs often: events for JavaScript, canvases, and the next frame.

`publish` sends a value to the page; `draw_image` and `read_canvas` move arrays to and from a canvas;
`next_frame` lets the page paint. All of it works in a page, in a worker, and under PyScript. The module
imports anywhere; outside a browser its functions raise `WebgradError`.

It also holds Python's half of ``web/boot.mjs``: `to_js`, `from_js`, and the two functions that
``boot()`` calls. How values cross, both ways:

=====================================  ==============================================================
Python                                 JavaScript
=====================================  ==============================================================
``None``, bool, number, str            ``null``, boolean, number, string (``undefined`` is ``None``)
list, tuple                            ``Array``
dict, named tuple                      plain object
array                                  typed array of its values in C order, with a ``shape`` property
bytes                                  ``Uint8Array`` (comes back as a uint8 array)
=====================================  ==============================================================

A float16 array becomes a ``Float32Array``, a bool one a ``Uint8Array``, a 64-bit integer one an
``Int32Array`` when its values fit and a ``Float64Array`` otherwise; other dtypes keep their kind. A
typed array without ``shape`` arrives one-dimensional. Any other JavaScript object (a canvas, say)
arrives as Pyodide's proxy of it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from webgrad.errors import DtypeError, InputError, ShapeError, WebgradError
from webgrad.stages import Progress, in_browser

__all__ = [
    "draw_image", "from_js", "in_browser", "next_frame", "publish", "read_canvas", "show_progress", "to_js",
]  # fmt: skip

_emit: Callable[[str, Any], None] | None = None  # boot()'s listener; None under PyScript


def _require_browser(function: str) -> None:
    if not in_browser():
        raise WebgradError(
            f"webgrad.web.{function} works only in a browser, under Pyodide; this is {sys.platform}. "
            f"Guard the call with `if webgrad.web.in_browser():`"
        )


# --- events ----------------------------------------------------------------------------------------


def publish(name: str, value: Any = None) -> None:
    """Send ``value`` to the page's listeners of the event ``name``.

    With ``boot()``, ``app.on(name, listener)`` receives it, in the page and from a worker alike. Without
    it (PyScript, say) a ``CustomEvent`` named ``"webgrad:" + name`` is dispatched on ``globalThis``, the
    value in its ``detail``. The event ``"progress"``, a dict with ``stage``, ``message`` and perhaps
    ``fraction``, also reaches ``boot()``'s ``onProgress``.
    """
    _require_browser("publish")
    converted = to_js(value)
    if _emit is not None:
        _emit(name, converted)
        return
    import js
    from pyodide.ffi import to_js as raw_to_js

    init = raw_to_js({"detail": converted}, dict_converter=js.Object.fromEntries)
    js.dispatchEvent(js.CustomEvent.new(f"webgrad:{name}", init))


def show_progress(progress: Progress) -> None:
    """Publish how far a compilation is, as ``boot()``'s stage "compile".

    ``await webgrad.compile_module(..., on_progress=webgrad.web.show_progress)``
    """
    message = f"compiling: {progress.stage}"
    publish("progress", {"stage": "compile", "fraction": progress.fraction, "message": message})


async def next_frame() -> None:
    """Wait until the browser is about to paint; in a hidden tab, until it is shown again.

    In a worker without animation frames it yields to the event loop for one frame's time.
    """
    _require_browser("next_frame")
    import js
    from pyodide.ffi import create_once_callable

    if not hasattr(js, "requestAnimationFrame"):
        await asyncio.sleep(1 / 60)
        return
    painted = asyncio.get_running_loop().create_future()
    callback = create_once_callable(painted.set_result)  # with the frame's time, which nobody reads
    request = js.requestAnimationFrame(callback)
    try:
        await painted
    except BaseException:
        js.cancelAnimationFrame(request)
        callback.destroy()
        raise


# --- canvases --------------------------------------------------------------------------------------


def draw_image(canvas: Any, image: ArrayLike) -> None:
    """Draw an array on a canvas, one pixel an element; the canvas takes the array's size.

    Style the canvas with a CSS size and ``image-rendering: pixelated`` to show it larger.

    Parameters
        canvas: a canvas or ``OffscreenCanvas``, or the ``id`` of a canvas of the page.
        image: ``(H, W)`` grey, ``(H, W, 1)``, ``(H, W, 3)`` RGB or ``(H, W, 4)`` RGBA; floats in 0..1
            (clipped; NaN is 0), bools, or uint8 in 0..255.

    Raises
        ShapeError, DtypeError: for any other array.
        InputError: the page has no canvas of this id.
    """
    pixels = rgba_pixels(image)
    _require_browser("draw_image")
    import js
    from pyodide.ffi import to_js as raw_to_js

    height, width = pixels.shape[:2]
    target = _canvas(canvas)
    target.width, target.height = width, height
    if pixels.size:
        data = js.Uint8ClampedArray.new(raw_to_js(pixels.reshape(-1)).buffer)
        target.getContext("2d").putImageData(js.ImageData.new(data, width, height), 0, 0)


def rgba_pixels(image: ArrayLike) -> NDArray[np.uint8]:
    """The bytes ``(H, W, 4)`` that `draw_image` shows for ``image``."""
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise ShapeError(
            f"draw_image: expected an array (H, W) or (H, W, 1, 3 or 4), found the shape {np.shape(image)}"
        )
    if array.dtype.kind == "f":
        array = np.round(np.clip(np.nan_to_num(array.astype(np.float32), nan=0.0), 0.0, 1.0) * 255)
    elif array.dtype.kind == "b":
        array = array * np.uint8(255)
    elif array.dtype != np.uint8:
        raise DtypeError(f"draw_image: expected floats in 0..1, bools or uint8, found {array.dtype}")
    pixels = np.full((*array.shape[:2], 4), 255, np.uint8)
    pixels[:, :, : max(3, array.shape[2])] = array
    return pixels


def read_canvas(
    canvas: Any, size: tuple[int, int] | None = None, *, channels: int = 1
) -> NDArray[np.float32]:
    """Read a canvas as floats in 0..1.

    Parameters
        canvas: a canvas or ``OffscreenCanvas``, or the ``id`` of a canvas of the page.
        size: ``(height, width)`` of the result; the picture is smoothly scaled to it. Default: its own.
        channels: 1 grey (Rec. 601 luma), 3 RGB, 4 RGBA. With 1 and 3, what is transparent counts as black.

    Returns
        ``(H, W)`` for one channel, else ``(H, W, channels)``; float32.
    """
    if channels not in (1, 3, 4):
        raise InputError(f"read_canvas: channels must be 1, 3 or 4, found {channels!r}")
    _require_browser("read_canvas")
    import js

    source = _canvas(canvas)
    height, width = size if size is not None else (source.height, source.width)
    if (height, width) != (source.height, source.width):
        source = _scaled(source, height, width)
    data = source.getContext("2d").getImageData(0, 0, width, height).data
    pixels = np.asarray(js.Uint8Array.new(data.buffer).to_memoryview()).reshape(height, width, 4)
    return from_rgba(pixels, channels)


def from_rgba(pixels: NDArray[np.uint8], channels: int) -> NDArray[np.float32]:
    """Bytes ``(H, W, 4)`` as what `read_canvas` returns."""
    values = pixels.astype(np.float32) / np.float32(255)
    if channels == 4:
        return values
    colours = values[:, :, :3] * values[:, :, 3:]
    if channels == 3:
        return colours
    return colours @ np.array([0.299, 0.587, 0.114], np.float32)


def _canvas(canvas: Any) -> Any:
    if not isinstance(canvas, str):
        return canvas
    import js

    found = js.document.getElementById(canvas) if hasattr(js, "document") else None
    if not found or not hasattr(found, "getContext"):
        remedy = "" if hasattr(js, "document") else " (a worker has no document: pass it an OffscreenCanvas)"
        raise InputError(f"the page has no canvas with the id {canvas!r}{remedy}")
    return found


def _scaled(source: Any, height: int, width: int) -> Any:
    """A copy of ``source`` at another size, halved repeatedly first so that thin lines survive."""
    import js

    while True:
        step_height, step_width = max(height, source.height // 2), max(width, source.width // 2)
        if step_height > source.height or step_width > source.width:
            step_height, step_width = height, width
        copy = js.OffscreenCanvas.new(step_width, step_height)
        context = copy.getContext("2d")
        context.imageSmoothingEnabled = True
        context.imageSmoothingQuality = "high"
        context.drawImage(source, 0, 0, step_width, step_height)
        if (step_height, step_width) == (height, width):
            return copy
        source = copy


# --- values ----------------------------------------------------------------------------------------


def to_js(value: Any) -> Any:
    """Convert a Python value for JavaScript, by the table at the top of this module.

    No proxy of a Python object is made, so there is nothing to destroy.

    Raises
        InputError: a value that the table does not have.
    """
    _require_browser("to_js")
    import js
    from pyodide.ffi import to_js as raw_to_js

    return raw_to_js(_prepare(value), dict_converter=js.Object.fromEntries)


def _prepare(value: Any) -> Any:
    """``value`` with each array replaced by a typed array, ready for Pyodide's ``to_js``."""
    from pyodide.ffi import JsProxy, jsnull

    if value is None:
        return jsnull
    if isinstance(value, np.ndarray):
        return _typed_array(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bool | int | float | str | bytes | JsProxy):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _prepare(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_prepare(item) for item in value]
    raise InputError(
        f"cannot hand a {type(value).__name__} to JavaScript: use None, bool, numbers, str, bytes, arrays, "
        f"and lists, tuples and dicts of them"
    )


def plain_array(array: NDArray[Any]) -> NDArray[Any]:
    """``array`` as a dtype that JavaScript has a convenient typed array for, contiguous and native."""
    if array.dtype.kind == "b":
        return np.ascontiguousarray(array).view(np.uint8)
    if array.dtype == np.float16:
        return np.ascontiguousarray(array, np.float32)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        info = np.iinfo(np.int32)
        fits = not array.size or (array.min() >= info.min and array.max() <= info.max)
        return np.ascontiguousarray(array, np.int32 if fits else np.float64)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise DtypeError(f"cannot hand an array of {array.dtype} to JavaScript; convert it to numbers first")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _typed_array(array: NDArray[Any]) -> Any:
    from pyodide.ffi import to_js as raw_to_js

    typed = raw_to_js(plain_array(array).reshape(-1))
    typed.shape = raw_to_js(list(array.shape))
    return typed


def from_js(value: Any) -> Any:
    """Convert a JavaScript value for Python, by the table at the top of this module."""
    _require_browser("from_js")
    import js
    from pyodide.ffi import JsArray, JsBuffer, JsProxy, jsnull

    if value is jsnull:
        return None
    if not isinstance(value, JsProxy):
        return value
    if isinstance(value, JsBuffer):
        array = np.array(value.to_memoryview())
        return array.reshape(value.shape.to_py()) if hasattr(value, "shape") else array
    if isinstance(value, JsArray):
        return [from_js(item) for item in value]
    if getattr(value, "constructor", None) == js.Object:
        return {key: from_js(item) for key, item in js.Object.entries(value)}
    return value


# --- boot()'s half ---------------------------------------------------------------------------------


def _connect(emit: Callable[[str, Any], None]) -> None:
    """Make ``emit`` receive what is published."""
    global _emit
    _emit = emit


async def _run_program(source: str, filename: str) -> Any:
    """Run a page's Python program in ``__main__``; top-level ``await`` is allowed."""
    from pyodide.code import eval_code_async

    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return await _reply(eval_code_async(source, sys.modules["__main__"].__dict__, filename=filename))


async def _call(name: str, arguments: Iterable[Any]) -> Any:
    """Call the page's function ``name`` and await it if it is asynchronous."""

    async def outcome() -> Any:
        result = _function(name)(*[from_js(argument) for argument in arguments])
        return await result if inspect.isawaitable(result) else result

    return await _reply(outcome(), convert=True)


async def _reply(work: Any, *, convert: bool = False) -> Any:
    """``{value}``, or ``{error: {name, message, traceback}}`` when ``work`` raises."""
    try:
        value = await work
        return to_js({"value": value if convert else None})
    except BaseException as error:  # whatever it is, it must reach the page and nothing else
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames))
        return to_js({"error": {"name": type(error).__name__, "message": str(error), "traceback": text}})


def _function(name: str) -> Any:
    """The callable at a dotted name of the page's program, else of an importable module."""
    first, *rest = name.split(".")
    scope = sys.modules["__main__"].__dict__
    try:
        if first in scope:
            found = scope[first]
            for part in rest:
                found = getattr(found, part)
        else:
            module, _, attribute = name.rpartition(".")
            found = getattr(importlib.import_module(module), attribute) if module else None
    except (AttributeError, ModuleNotFoundError) as error:
        raise InputError(f"app.call({name!r}): {error}") from error
    if not callable(found):
        functions = sorted(k for k, v in scope.items() if inspect.isfunction(v) and not k.startswith("_"))
        raise InputError(f"app.call({name!r}): the page's Python has no such function; it has {functions}")
    return found
