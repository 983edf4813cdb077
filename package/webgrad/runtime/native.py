"""The executor of this machine's own GPU, from CPython: `Executor` over the package ``wgpu``.

``wgpu`` drives Vulkan, Metal or DirectX 12 and compiles WGSL with naga. The same `Program` runs as in a page:
one compute pass and one submission a step, and one map of a staging buffer if anything is read. `open_native`
gives the one executor of this process, as long as its device lives.

Three things of ``wgpu`` shape this file. A submission that fails ends the process, so whatever could make it
fail is found before: finishing the encoder tells of a lost device, and `NativeSession.run` looks whether its
buffers still live. A submission waits while something else waits for the queue, so a read maps its staging
buffer when it is awaited, not when it is queued. And its promise of the queue's end does not work, so that
steps without a read wait for room by mapping a few bytes now and then.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from webgrad.errors import InputError
from webgrad.runtime.executor import Bytes, Stats
from webgrad.runtime.gpu import error_from, target_of, whole_words
from webgrad.runtime.native_device import (
    Failure,
    accepted,
    adapter_info,
    failure,
    failure_of,
    places_of,
    request_device,
)
from webgrad.runtime.native_reading import Failed, Reading, Staging, split, words

if TYPE_CHECKING:
    from webgrad.compiler.plan import Plan
    from webgrad.compiler.program import Binding, KernelSpec, Program
    from webgrad.wgsl.emit import Kernel

Value = TypeVar("Value")

BINDING_TYPES = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
#: how far steps that read nothing may run ahead
STEPS_IN_FLIGHT = 16
#: compiled texts, for programs to come
SHADERS_KEPT = 1024

_executor: NativeExecutor | None = None
_opening = threading.Lock()


def open_native() -> NativeExecutor:
    """The executor of this process; a new one after its device was lost.

    The adapter is the fastest that the package finds. Its own variable ``WGPUPY_WGPU_ADAPTER_NAME`` chooses
    one by a part of its name. Raises `NoAdapterError` with what is missing.
    """
    global _executor
    with _opening:
        if _executor is None or not _executor.alive:
            _executor = NativeExecutor(request_device())
        return _executor


class NativeExecutor:
    """One wgpu device; see `webgrad.runtime.executor.Executor` for what each method promises."""

    name = "native"
    needs_plan = False

    def __init__(self, device: Any) -> None:
        import wgpu

        self.device = device
        self.queue = device.queue
        self.GPUError: type[Exception] = wgpu.GPUError
        self.adapter: Mapping[str, Any] = adapter_info(device)
        self.target = target_of(self.adapter)
        #: once the device is lost, the failure that ends every call
        self.lost: Failure | None = None
        self.counts = Stats()
        self.staging = Staging(device)
        self._usage = wgpu.BufferUsage
        self._visible = wgpu.ShaderStage.COMPUTE
        self._buffers: dict[int, Any] = {}
        self._next = 0
        self._modules: dict[str, Any] = {}
        self._pipelines: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._layouts: dict[tuple[str, ...], tuple[Any, Any]] = {}

    @property
    def alive(self) -> bool:
        """False once the device is lost or closed."""
        return self.lost is None

    def buffer(self, handle: int) -> Any:
        """The wgpu buffer of a handle. Raises `InputError` for a freed one."""
        self._check()
        if handle not in self._buffers:
            raise InputError(f"there is no buffer {handle}: the program that owned it was destroyed")
        return self._buffers[handle]

    def holds(self, handles: frozenset[int]) -> bool:
        """Whether all these buffers live."""
        return handles <= self._buffers.keys()

    def allocate(self, nbytes: int, label: str) -> int:
        self._check()
        most = self.target.max_buffer_bytes
        if nbytes > most:
            raise error_from(
                failure("oom", f"{label}: {nbytes} bytes, and this adapter allows {most} a buffer")
            )
        use = self._usage
        usage = use.STORAGE | use.UNIFORM | use.COPY_SRC | use.COPY_DST
        try:
            made = self.device.create_buffer(label=label, size=max(16, words(nbytes)), usage=usage)
        except self.GPUError as error:
            raise error_from(self.told(error, label)) from None
        self._next += 1
        self._buffers[self._next] = made
        return self._next

    def free(self, handle: int) -> None:
        buffer = self._buffers.pop(handle, None)
        if buffer is not None:
            buffer.destroy()

    def write(self, handle: int, offset: int, data: NDArray[Any]) -> None:
        source = whole_words(data)
        if source.nbytes:
            self._attempt(self.queue.write_buffer, self.buffer(handle), offset, source)

    def clear(self, handle: int, offset: int, nbytes: int) -> None:
        buffer = self.buffer(handle)

        def work() -> None:
            encoder = self.device.create_command_encoder()
            encoder.clear_buffer(buffer, offset, words(nbytes))
            self.submit(encoder, self.counts)

        if nbytes:
            self._attempt(work)

    def read(self, handle: int, offset: int, nbytes: int) -> Awaitable[Bytes]:
        if self.lost is not None:
            return Failed(self.lost)
        copies = [(self.buffer(handle), offset, nbytes)]
        try:
            encoder = self.device.create_command_encoder()
            return self.reading(encoder, copies, (self.counts,), lambda raw: raw[:nbytes].copy())
        except self.GPUError as error:
            return Failed(self.told(error))

    def prepare(self, kernel: Kernel) -> None:
        """Nothing: `load` makes all pipelines side by side."""

    async def load(self, program: Program, plan: Plan | None, externals: Mapping[str, int]) -> NativeSession:
        self._check()
        missing = [name for name in program.features if name not in self.adapter["features"]]
        if missing:
            raise error_from(failure("validation", f"this adapter lacks {', '.join(missing)}"))
        handles: list[int] = []
        owned: list[int] = []
        try:
            for number, spec in enumerate(program.buffers):
                if spec.kind == "external":
                    handles.append(externals[spec.key])
                    continue
                owned.append(self.allocate(spec.bytes, spec.key or f"buffer {number}"))
                handles.append(owned[-1])
                if spec.kind == "constant":
                    self.write(owned[-1], 0, np.frombuffer(program.blobs[int(spec.key)], np.uint8))
            pipelines = await self._load_pipelines(program)
            return NativeSession(self, program, handles, owned, pipelines)
        except BaseException:
            for handle in owned:
                self.free(handle)
            raise

    def stats(self) -> Stats:
        found = [*self._buffers.values(), *self.staging.alive()]
        counts = Stats(**vars(self.counts))
        counts.buffers, counts.bytes = len(found), sum(buffer.size for buffer in found)
        return counts

    def close(self) -> None:
        self._lose(failure("lost", "the GPU device was lost: the executor was closed"))
        self.staging.finish()
        self.device.destroy()

    # --- what sessions use --------------------------------------------------------------------------

    def submit(self, encoder: Any, *counts: Stats) -> None:
        """End the encoder and queue it. Raises `GPUError`; after `finish`, nothing may be left to fail."""
        self.queue.submit([encoder.finish()])
        for count in counts:
            count.submissions += 1

    def reading(
        self,
        encoder: Any,
        copies: Sequence[tuple[Any, int, int]],
        counts: tuple[Stats, ...],
        convert: Callable[[Bytes], Value],
    ) -> Reading[Value]:
        """Submit the encoder with copies of (buffer, offset, bytes) into staging; `convert` gets the bytes,
        each copy's padded to four. May raise `GPUError`.
        """
        total = sum(words(nbytes) for _, _, nbytes in copies)
        staging = self.staging.take(max(8, total))
        at = 0
        for buffer, offset, nbytes in copies:
            if nbytes:
                encoder.copy_buffer_to_buffer(buffer, offset, staging, at, words(nbytes))
            at += words(nbytes)
        self.submit(encoder, *counts)
        return Reading(self, convert, staging, counts)

    def told(self, error: Exception, label: str = "") -> Failure:
        """What an error of the package means; a lost device is noted."""
        found = failure_of(error, label)
        if found["kind"] == "lost":
            self._lose(found)
        return self.lost or found

    def probe(self, error: Exception) -> Failure:
        """What made a map fail: most likely the device is lost."""
        try:
            self.device.create_command_encoder().finish()
        except self.GPUError as second:
            return self.told(second)
        return self.told(error)

    def bind(self, kernel: KernelSpec, buffers: Sequence[Any]) -> Any:
        """The bind group of a kernel. May raise `GPUError`."""
        entries = [
            {"binding": i, "resource": {"buffer": buffers[b.buffer], "offset": b.offset, "size": b.size}}
            for i, b in enumerate(kernel.bindings)
        ]
        layout, _ = self._layouts[accesses_of(kernel.bindings)]
        return self.device.create_bind_group(layout=layout, entries=entries)

    # --- within -------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.lost is not None:
            raise error_from(self.lost)

    def _attempt(self, work: Callable[..., Any], *args: Any) -> None:
        try:
            work(*args)
        except self.GPUError as error:
            raise error_from(self.told(error)) from None

    def _lose(self, why: Failure) -> None:
        if self.lost is None:
            self.lost = why
            for held in (self._buffers, self._modules, self._pipelines, self._layouts):
                held.clear()
            self.staging.clear()

    async def _load_pipelines(self, program: Program) -> list[Any]:
        """Each kernel's pipeline. Those that are new are made side by side, off this thread."""
        if len(self._modules) > SHADERS_KEPT:
            self._modules.clear()
            self._pipelines.clear()
        keys = [(program.modules[k.module], accesses_of(k.bindings)) for k in program.kernels]
        first = {key: number for number, key in reversed(list(enumerate(keys)))}
        new = sorted((number, key) for key, number in first.items() if key not in self._pipelines)
        making = [asyncio.to_thread(self._make_pipeline, program.kernels[n], *key) for n, key in new]
        made = await asyncio.gather(*making, return_exceptions=True)
        for (number, key), result in zip(new, made, strict=True):
            if isinstance(result, BaseException):
                self._refuse(program, number, result)
            self._pipelines[key] = result
            self.counts.pipelines += 1
        self._check()
        return [self._pipelines[key] for key in keys]

    def _make_pipeline(self, kernel: KernelSpec, text: str, accesses: tuple[str, ...]) -> Any:
        """May raise `GPUError`. Runs in a thread of its own."""
        if accesses not in self._layouts:
            entries = [
                {"binding": i, "visibility": self._visible, "buffer": {"type": BINDING_TYPES[access]}}
                for i, access in enumerate(accesses)
            ]
            group = self.device.create_bind_group_layout(entries=entries)
            layout = self.device.create_pipeline_layout(bind_group_layouts=[group])
            self._layouts.setdefault(accesses, (group, layout))
        module = self._modules.get(text)
        if module is None:
            module = self.device.create_shader_module(label=kernel.name, code=accepted(text))
            if self._modules.setdefault(text, module) is module:
                self.counts.modules += 1
        compute = {"module": module, "entry_point": "main"}
        return self.device.create_compute_pipeline(
            label=kernel.name, layout=self._layouts[accesses][1], compute=compute
        )

    def _refuse(self, program: Program, number: int, error: BaseException) -> None:
        """Raise what a kernel's failure means."""
        if not isinstance(error, self.GPUError):
            raise error
        found = self.told(error)
        if found["kind"] in ("validation", "internal"):
            found |= {"kernel": number, "places": places_of(found["message"])}
        raise error_from(found, program) from None


class NativeSession:
    """A program on the device; see `webgrad.runtime.executor.Session`."""

    def __init__(
        self,
        owner: NativeExecutor,
        program: Program,
        handles: Sequence[int],
        owned: Sequence[int],
        pipelines: Sequence[Any],
    ) -> None:
        self._owner, self._program, self._owned = owner, program, list(owned)
        self._handles = frozenset(handles)
        self._buffers = [owner.buffer(handle) for handle in handles]
        self._upload = self._buffers[program.upload_buffer]
        self._counts = Stats(
            pipelines=len({id(pipeline) for pipeline in pipelines}), modules=len(program.modules)
        )
        self._unread = 0
        self._destroyed = False
        bound = []
        for number, (kernel, pipeline) in enumerate(zip(program.kernels, pipelines, strict=True)):
            try:
                bound.append((pipeline, owner.bind(kernel, self._buffers), kernel.workgroups))
            except owner.GPUError as error:
                owner._refuse(program, number, error)
        self._entries = {name: self._entry(order, bound) for name, order in program.entries.items()}

    def _entry(self, order: Sequence[int], bound: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """An entry's dispatches, and the buffers to clear before them."""
        kernels = self._program.kernels
        used = {binding.buffer for i in order for binding in kernels[i].bindings}
        cleared = [i for i in sorted(used) if self._program.buffers[i].zero == "each_step"]
        return [bound[i] for i in order], [self._buffers[i] for i in cleared]

    def run(self, entry: str, upload: Bytes, reads: tuple[str, ...]) -> Awaitable[dict[str, Bytes]]:
        owner = self._owner
        if self._destroyed:
            raise InputError("this program was destroyed: compile it again")
        if not (upload.flags.c_contiguous and upload.nbytes == self._program.upload_bytes):
            raise InputError(
                f"the upload must be {self._program.upload_bytes} contiguous bytes, found {upload.nbytes}"
            )
        if owner.lost is not None:
            return Failed(owner.lost)
        if not owner.holds(self._handles):
            raise InputError("a buffer of this program was freed: keep the program that owns it alive")
        try:
            if upload.nbytes:
                owner.queue.write_buffer(self._upload, 0, upload)
            return self._queue(entry, reads)
        except owner.GPUError as error:
            return Failed(owner.told(error))

    def _queue(self, entry: str, reads: tuple[str, ...]) -> Awaitable[dict[str, Bytes]]:
        owner = self._owner
        counts = (owner.counts, self._counts)
        dispatches, cleared = self._entries[entry]
        encoder = owner.device.create_command_encoder()
        for buffer in cleared:
            encoder.clear_buffer(buffer)
        encode(encoder, dispatches)
        for count in counts:
            count.dispatches += len(dispatches)
        if reads:
            ranges = [self._program.ranges[name] for name in reads]
            copies = [(self._buffers[r.buffer], r.offset, r.bytes) for r in ranges]
            return owner.reading(encoder, copies, counts, partial(split, reads, [r.bytes for r in ranges]))
        self._unread = (self._unread + 1) % STEPS_IN_FLIGHT
        if self._unread == 0:  # this one waits until the queue is empty, for all of them
            return owner.reading(encoder, [(self._upload, 0, 4)], counts, lambda raw: {})
        owner.submit(encoder, *counts)
        return Reading(owner, lambda raw: {})

    def stats(self) -> Stats:
        if self._destroyed:
            return Stats()
        counts = Stats(**vars(self._counts))
        alive = [self._owner._buffers[h] for h in self._owned if h in self._owner._buffers]
        counts.buffers, counts.bytes = len(alive), sum(buffer.size for buffer in alive)
        return counts

    def destroy(self) -> None:
        self._destroyed = True
        self._buffers, self._entries = [], {}
        while self._owned:
            self._owner.free(self._owned.pop())


def encode(encoder: Any, dispatches: Sequence[tuple[Any, Any, tuple[int, int, int]]]) -> None:
    """One compute pass."""
    if not dispatches:
        return
    encoding = encoder.begin_compute_pass()
    last = None
    for pipeline, group, workgroups in dispatches:
        if pipeline is not last:
            encoding.set_pipeline(pipeline)
            last = pipeline
        encoding.set_bind_group(0, group)
        encoding.dispatch_workgroups(*workgroups)
    encoding.end()


def accesses_of(bindings: Sequence[Binding]) -> tuple[str, ...]:
    """How each binding is used."""
    return tuple(binding.access for binding in bindings)
