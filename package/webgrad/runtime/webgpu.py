"""The executor of the page's GPU: `Executor` over ``bridge.mjs``, which alone talks to WebGPU.

`open_webgpu` gives the one executor of this page or worker, as long as its device lives. A step is one
call into JavaScript, which takes the upload from Python's memory, and one conversion of what it read. The
module imports anywhere; only `open_webgpu` needs Pyodide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from webgrad.errors import InputError, NoAdapterError, WebgradError
from webgrad.runtime.executor import Bytes, Stats
from webgrad.runtime.gpu import NO_ADAPTER_REMEDY, error_from, target_of, whole_words

if TYPE_CHECKING:
    from webgrad.compiler.plan import Plan
    from webgrad.compiler.program import Program
    from webgrad.wgsl.emit import Kernel

Value = TypeVar("Value")

_bridge_url: str | None = None
_executor: WebGPUExecutor | None = None


def set_bridge_url(url: str | None) -> None:
    """Load ``bridge.mjs`` from ``url``, relative to the page, instead of from the package.

    For pages whose Content-Security-Policy allows no ``blob:`` scripts; call it before anything is
    compiled. (A worker with a policy against ``eval`` must import ``bridge.mjs`` in its own script; then
    nothing is loaded here at all.) ``None`` means the package's own again.
    """
    global _bridge_url
    _bridge_url = url


async def open_webgpu() -> WebGPUExecutor:
    """The executor of this page or worker; a new one after its device was lost.

    Raises `NoAdapterError`, which says what is missing, when there is no WebGPU here.
    """
    global _executor
    try:
        import js
        import pyodide_js
    except ImportError:
        raise NoAdapterError(f"this Python runs outside a browser. {NO_ADAPTER_REMEDY}") from None
    if not hasattr(js, "webgradBridge"):
        await _load_bridge()
    bridge = await js.webgradBridge.open()
    while getattr(bridge, "lost", None):  # told between there and here
        bridge = await js.webgradBridge.open()
    if not bridge.ok:
        raise error_from(bridge.to_py())
    if _executor is None or not _executor.alive:
        bridge.heap = pyodide_js._module
        _executor = WebGPUExecutor(bridge)
    return _executor


async def _load_bridge() -> None:
    """Run ``bridge.mjs``, which sets ``globalThis.webgradBridge``."""
    import js
    from pyodide.ffi import JsException, to_js

    made = None
    if _bridge_url is None:
        from importlib.resources import files

        text = files("webgrad").joinpath("bridge.mjs").read_text("utf-8")
        options = to_js({"type": "text/javascript"}, dict_converter=js.Object.fromEntries)
        made = js.URL.createObjectURL(js.Blob.new(to_js([text]), options))
    url = made or js.URL.new(_bridge_url, js.document.baseURI if _has_document() else js.location.href).href
    try:
        if _has_document():
            await _load_script(url)
        else:
            from pyodide.code import run_js

            await run_js("(url) => import(url)")(url)
    except (JsException, RuntimeError) as error:
        raise WebgradError(
            f"webgrad's bridge.mjs could not be loaded from {url} ({error}). If this page has a "
            "Content-Security-Policy, serve the file yourself and call webgrad.set_bridge_url(its address)"
        ) from None
    finally:
        if made:
            js.URL.revokeObjectURL(made)


def _has_document() -> bool:
    import js

    return hasattr(js, "document") and bool(getattr(js.document, "head", None))


async def _load_script(url: str) -> None:
    """Run a JavaScript module in the page, without ``eval``, which a Content-Security-Policy may forbid."""
    import js
    from pyodide.ffi import create_proxy

    loaded = asyncio.get_running_loop().create_future()

    def end(event: Any) -> None:
        if event.type == "error":
            loaded.set_exception(RuntimeError("the browser refused or did not find it"))
        else:
            loaded.set_result(None)

    listener = create_proxy(end)
    script = js.document.createElement("script")
    script.type, script.src = "module", url
    script.onload = script.onerror = listener
    js.document.head.append(script)
    try:
        await loaded
    finally:
        script.onload = script.onerror = None
        script.remove()
        listener.destroy()


class WebGPUExecutor:
    """One GPU device; see `webgrad.runtime.executor.Executor` for what each method promises."""

    name = "webgpu"
    needs_plan = False

    def __init__(self, bridge: Any) -> None:
        self._bridge = bridge
        info: dict[str, Any] = bridge.info().to_py()
        self.adapter: Mapping[str, Any] = info
        self.target = target_of(info)

    @property
    def alive(self) -> bool:
        """False once the device is lost or closed."""
        return bool(self._bridge.ok)

    def allocate(self, nbytes: int, label: str) -> int:
        reply = self._bridge.allocate(nbytes, label)
        if isinstance(reply, int):
            return reply
        raise error_from(reply.to_py())

    def free(self, handle: int) -> None:
        self._bridge.free(handle)

    def write(self, handle: int, offset: int, data: NDArray[Any]) -> None:
        source = whole_words(data)
        reply = self._bridge.write(handle, offset, address(source), source.nbytes)
        if reply is not None:
            raise error_from(reply.to_py())

    def clear(self, handle: int, offset: int, nbytes: int) -> None:
        reply = self._bridge.clear(handle, offset, nbytes)
        if reply is not None:
            raise error_from(reply.to_py())

    def read(self, handle: int, offset: int, nbytes: int) -> Awaitable[Bytes]:
        return Pending(self._bridge.read(handle, offset, nbytes), lambda data: copy_of(data, nbytes))

    def prepare(self, kernel: Kernel) -> None:
        from pyodide.ffi import to_js

        self._bridge.prepare(kernel.wgsl, kernel.name, to_js([b.access for b in kernel.bindings]))

    async def load(self, program: Program, plan: Plan | None, externals: Mapping[str, int]) -> WebGPUSession:
        import js
        from pyodide.ffi import to_js

        blobs = to_js([memoryview(blob + bytes(-len(blob) % 4)) for blob in program.blobs])
        keys = to_js(dict(externals), dict_converter=js.Object.fromEntries)
        creating = asyncio.ensure_future(self._bridge.create(program.to_json(), blobs, keys))
        try:
            reply = (await asyncio.shield(creating)).to_py()
        except asyncio.CancelledError:  # what is being made must not stay
            creating.add_done_callback(
                lambda made: self._bridge.destroyProgram(getattr(made.result(), "id", 0))
            )
            raise
        if not reply["ok"]:
            raise error_from(reply, program)
        has_clock = "timestamp-query" in self.target.features
        return WebGPUSession(self._bridge, reply["id"], program, has_clock)

    def stats(self) -> Stats:
        return Stats(**self._bridge.stats().to_py())

    def close(self) -> None:
        self._bridge.close()


class WebGPUSession:
    """A program on the device; see `webgrad.runtime.executor.Session` and `Clocked`."""

    def __init__(self, bridge: Any, handle: int, program: Program, has_clock: bool = False) -> None:
        self._bridge = bridge
        self.has_clock, self._clock = has_clock, -1
        self._run = bridge.run
        self._handle: int | None = handle
        self._program = program
        self._readsets: dict[tuple[str, ...], tuple[int, Callable[[Any], dict[str, Bytes]]]] = {}

    def run(self, entry: str, upload: Bytes, reads: tuple[str, ...]) -> Awaitable[dict[str, Bytes]]:
        readset, split = self._readsets.get(reads) or self._register(reads)
        return self._queue(entry, upload, readset, split)

    def _queue(
        self, entry: str, upload: Bytes, readset: int, convert: Callable[[Any], Value]
    ) -> Awaitable[Value]:
        """Queue a call; ``convert`` makes its result of the bytes read."""
        if self._handle is None:
            raise InputError("this program was destroyed: compile it again")
        if not (upload.flags.c_contiguous and upload.nbytes == self._program.upload_bytes):
            raise InputError(
                f"the upload must be {self._program.upload_bytes} contiguous bytes, found {upload.nbytes}"
            )
        return Pending(self._run(self._handle, entry, address(upload), upload.nbytes, readset), convert)

    def timed(self, entry: str, upload: Bytes) -> Awaitable[float]:
        if self._clock < 0:
            self._clock = self._bridge.clock(self._handle)

        def seconds(data: Any) -> float:
            begin, end = copy_of(data, 16).view(np.uint64).tolist()
            return max(end - begin, 0) / 1e9

        return self._queue(entry, upload, self._clock, seconds)

    def _register(self, reads: tuple[str, ...]) -> tuple[int, Callable[[Any], dict[str, Bytes]]]:
        """The bridge's number for these ranges, and what cuts its bytes into them."""
        if not reads:
            self._readsets[reads] = -1, lambda data: {}
            return self._readsets[reads]
        from pyodide.ffi import to_js

        ranges = [self._program.ranges[name] for name in reads]
        ends = np.cumsum([-(-r.bytes // 4) * 4 for r in ranges]).tolist()
        slices = {
            name: slice(start, start + r.bytes)
            for name, r, start in zip(reads, ranges, [0, *ends], strict=False)
        }

        def split(data: Any) -> dict[str, Bytes]:
            if len(slices) == 1:
                return {reads[0]: copy_of(data, ranges[0].bytes)}
            whole = copy_of(data, data.byteLength)
            return {name: whole[part].copy() for name, part in slices.items()}

        index = self._bridge.readset(self._handle, to_js([[r.buffer, r.offset, r.bytes] for r in ranges]))
        self._readsets[reads] = index, split
        return index, split

    def stats(self) -> Stats:
        return Stats() if self._handle is None else Stats(**self._bridge.stats(self._handle).to_py())

    def destroy(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._bridge.destroyProgram(handle)


class Pending(Generic[Value]):
    """What is already queued and not yet waited for: may be awaited late, often, or never."""

    __slots__ = ("_convert", "_promise", "_reply", "_value")

    def __init__(self, promise: Any, convert: Callable[[Any], Value]) -> None:
        self._promise = promise
        self._convert = convert
        self._reply: dict[str, Any] | None = None
        self._value: Value | None = None

    def __await__(self) -> Generator[Any, None, Value]:
        if self._promise is not None:
            # shielded: a task that gives up waiting must not cancel the promise for the others
            reply = yield from asyncio.shield(self._promise).__await__()
            if self._promise is not None:  # no other task was quicker
                self._promise = None
                if reply.ok:
                    self._value = self._convert(getattr(reply, "data", None))
                else:
                    self._reply = reply.to_py()
        if self._reply is not None:
            raise error_from(self._reply)
        return cast(Value, self._value)


def address(array: NDArray[Any]) -> int:
    """Where the array's bytes lie in this Python's memory, which is the page's WebAssembly heap."""
    return int(array.__array_interface__["data"][0])


def copy_of(data: Any, nbytes: int) -> Bytes:
    """The first bytes of a Uint8Array, which is padded to four, in an array of their own."""
    array = np.empty(-(-nbytes // 4) * 4, np.uint8)
    data.assign_to(array)
    return array if array.size == nbytes else array[:nbytes].copy()
