"""The protocol every executor meets: buffers by handle, programs by session, one ordered queue.

`webgpu` drives the page's GPU through the bridge, `native` this machine's own; `numpy` is the reference.
Nothing above this file knows which one runs. Calls take effect in call order; only reads are awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from webgrad.compiler.plan import Plan
    from webgrad.compiler.program import Program
    from webgrad.compiler.target import Target
    from webgrad.wgsl.emit import Kernel

Bytes = NDArray[np.uint8]


@dataclass
class Stats:
    """Counts since the executor started (``buffers`` and ``bytes`` are what is alive now).

    ``program`` figures are per loaded session: dispatches a call, pipelines and distinct modules.
    """

    dispatches: int = 0
    submissions: int = 0
    maps: int = 0
    pipelines: int = 0
    modules: int = 0
    buffers: int = 0
    bytes: int = 0


class Session(Protocol):
    """A program loaded on an executor, its buffers bound."""

    def run(self, entry: str, upload: Bytes, reads: tuple[str, ...]) -> Awaitable[dict[str, Bytes]]:
        """Enqueue ``entry`` now and return what will hold the named ranges' bytes.

        ``upload`` (`Program.upload_bytes` bytes) is copied before this returns. ``reads`` are keys of
        `Program.ranges`; they come back in one transfer, each a fresh array that owns its memory.
        With no reads the awaitable resolves as soon as the queue has room (back-pressure).
        Device errors raise at the await.
        """

    def stats(self) -> Stats:
        """Counts of this session alone."""

    def destroy(self) -> None:
        """Free the session's own buffers; externals stay. Idempotent."""


@runtime_checkable
class Clocked(Protocol):
    """A session whose device may have a clock of its own; executors without one need not know of it."""

    has_clock: bool

    def timed(self, entry: str, upload: Bytes) -> Awaitable[float]:
        """As `Session.run` without reads: the seconds that the device was busy with ``entry``, whatever the
        transfers took. Browsers round to 0.1 ms.
        """


class Executor(Protocol):
    """One device (or one NumPy heap) and its queue."""

    name: str
    #: whether it interprets the plan (the program alone is enough for a GPU)
    needs_plan: bool
    target: Target
    adapter: Mapping[str, Any]

    def allocate(self, nbytes: int, label: str) -> int:
        """A zeroed buffer; returns its handle. Raises `OutOfMemoryError` that names ``label``."""

    def free(self, handle: int) -> None:
        """Free a buffer once the work already queued has run. Idempotent."""

    def write(self, handle: int, offset: int, data: NDArray[Any]) -> None:
        """Queue a write of ``data``'s bytes, copied now."""

    def clear(self, handle: int, offset: int, nbytes: int) -> None:
        """Queue a fill with zero bytes."""

    def read(self, handle: int, offset: int, nbytes: int) -> Awaitable[Bytes]:
        """Read bytes as they are after all work queued so far."""

    def prepare(self, kernel: Kernel) -> None:
        """Begin to build a kernel that `load` will be given, while others are still being written."""

    async def load(self, program: Program, plan: Plan | None, externals: Mapping[str, int]) -> Session:
        """Build pipelines and owned buffers; bind ``external`` buffers by key. ``plan`` may be None unless
        the executor needs it.
        """

    def stats(self) -> Stats:
        """Counts of the whole executor."""

    def close(self) -> None:
        """Free everything."""
