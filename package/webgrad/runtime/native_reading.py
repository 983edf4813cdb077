"""Bringing bytes home from a wgpu device: staging buffers, and what is awaited.

    encoder ── copies ──► staging buffer ── map, once it is awaited ──► array

A staging buffer that nobody waits for goes back among the idle ones at once: the queue runs in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from webgrad.runtime.executor import Bytes, Stats
from webgrad.runtime.gpu import error_from
from webgrad.runtime.native_device import Failure

if TYPE_CHECKING:
    from webgrad.runtime.native import NativeExecutor

Value = TypeVar("Value")

#: idle staging buffers, unless it is a single one
KEPT, KEPT_BYTES = 16, 1 << 26


class Staging:
    """The staging buffers of a device that are idle, and the promises of those that are being mapped."""

    def __init__(self, device: Any) -> None:
        import wgpu

        self.idle: list[Any] = []
        # held here too: the collector must not end a buffer together with the reading that gives it back
        self._taken: dict[int, Any] = {}
        self._device = device
        self._usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        #: without the empty submission that the package makes before each map, which waits for the GPU
        self._mode: Any = "READ_NOSYNC"
        self._plain_mode = wgpu.MapMode.READ
        self._mapping: weakref.WeakSet[Any] = weakref.WeakSet()

    def take(self, nbytes: int) -> Any:
        """The smallest idle buffer that is large enough, else a new one. May raise `GPUError`."""
        fitting = [buffer for buffer in self.idle if buffer.size >= nbytes]
        if fitting:
            best = min(fitting, key=lambda buffer: buffer.size)
            self.idle.remove(best)
        else:
            size = -(-max(nbytes, 1) // 256) * 256
            best = self._device.create_buffer(label="staging", size=size, usage=self._usage)
        self._taken[id(best)] = best
        return best

    def keep(self, buffer: Any) -> None:
        """Take an unmapped buffer back, for reads to come."""
        self.drop(buffer)
        self.idle.append(buffer)
        large = sum(each.size for each in self.idle) > KEPT_BYTES
        if (large or len(self.idle) > KEPT) and len(self.idle) > 1:
            self.idle.pop(0).destroy()

    def drop(self, buffer: Any) -> None:
        """Forget a buffer that was taken."""
        self._taken.pop(id(buffer), None)

    def alive(self) -> list[Any]:
        """Every buffer."""
        return [*self.idle, *self._taken.values()]

    def clear(self) -> None:
        """Forget them all."""
        self.idle.clear()
        self._taken.clear()

    def map(self, buffer: Any) -> Any:
        """A promise of the buffer's being mapped."""
        try:
            promise = buffer.map_async(self._mode)
        except ValueError:  # a version of the package that does not know that mode
            self._mode = self._plain_mode
            promise = buffer.map_async(self._mode)
        self._mapping.add(promise)
        return promise

    def finish(self) -> None:
        """Wait for every map: none would end after its device."""
        for promise in list(self._mapping):
            with contextlib.suppress(Exception):
                promise.sync_wait()


class Reading(Generic[Value]):
    """What is queued and not yet waited for: may be awaited late, often, or never.

    ``convert`` makes the value from the bytes of ``staging``, which the owner's queue fills. Without staging
    there is nothing to wait for.
    """

    __slots__ = ("_convert", "_counts", "_failure", "_loop", "_owner", "_promise", "_staging", "_value")

    def __init__(
        self,
        owner: NativeExecutor,
        convert: Callable[[Bytes], Value],
        staging: Any = None,
        counts: tuple[Stats, ...] = (),
    ) -> None:
        self._owner, self._convert, self._staging, self._counts = owner, convert, staging, counts
        self._promise: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Failure | None = None
        self._value: Value | None = convert(np.empty(0, np.uint8)) if staging is None else None

    def __await__(self) -> Generator[Any, None, Value]:
        if self._staging is not None:
            yield from self._wait(self._staging).__await__()
        if self._failure is not None:
            raise error_from(self._failure)
        return cast(Value, self._value)

    async def _wait(self, staging: Any) -> None:
        owner = self._owner
        try:
            told = owner.lost or await self._map(staging)
        except Exception as error:  # the package's promises raise several kinds
            told = owner.lost or owner.probe(error)
        if self._staging is None:  # another task was quicker
            return
        self._staging = None
        self._failure = told
        if told is not None:
            owner.staging.drop(staging)
            return
        self._value = self._convert(np.frombuffer(staging.read_mapped(copy=False), np.uint8))
        staging.unmap()
        owner.staging.keep(staging)
        for count in self._counts:
            count.maps += 1

    async def _map(self, staging: Any) -> Failure | None:
        """Wait until the buffer is mapped, or lost."""
        loop = asyncio.get_running_loop()
        if self._promise is None:
            self._promise, self._loop = self._owner.staging.map(staging), loop
        if self._loop is loop:
            await self._promise
        else:  # the loop that would be told may have ended
            await asyncio.to_thread(self._promise.sync_wait)
        return self._owner.lost

    def __del__(self) -> None:
        if self._staging is None:
            return
        if self._promise is None and self._owner.alive:
            self._owner.staging.keep(self._staging)
        else:
            self._owner.staging.drop(self._staging)


class Failed(Generic[Value]):
    """An awaitable of a call that failed before it was queued."""

    def __init__(self, told: Failure) -> None:
        self._failure = told

    def __await__(self) -> Generator[Any, None, Value]:
        raise error_from(self._failure)
        yield


def split(names: Sequence[str], sizes: Sequence[int], raw: Bytes) -> dict[str, Bytes]:
    """A read's bytes by name, in arrays of their own."""
    found, at = {}, 0
    for name, size in zip(names, sizes, strict=True):
        found[name] = raw[at : at + size].copy()
        at += words(size)
    return found


def words(nbytes: int) -> int:
    """Padded to WebGPU's four."""
    return -(-nbytes // 4) * 4
