"""Parameters on a device: `ParamStore` owns the arenas, `Params` says what lies where in them.

Programs hold arenas as externals, by key, so several programs (training, inference, other batch sizes)
read and write the same bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webgrad.arrays import as_numbers, check_names, convert, from_bytes
from webgrad.errors import InputError, ShapeError
from webgrad.ir import ITEM_BYTES, ArenaRange, Layout, Shape, numel
from webgrad.runtime.executor import Executor


class ParamStore:
    """Arena buffers by key, on one executor: parameters, gradients, optimizer state."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.arenas: dict[str, tuple[int, int]] = {}
        self.destroyed = False

    def ensure(self, key: str, nbytes: int) -> int:
        """The arena's handle; made, zeroed, at first use."""
        self.check()
        if key not in self.arenas:
            self.arenas[key] = (self.executor.allocate(nbytes, key), nbytes)
        return self.arenas[key][0]

    def check(self) -> None:
        """Raise `InputError` after `destroy`."""
        if self.destroyed:
            raise InputError("these parameters were destroyed: keep the program that owns them alive")

    def write(self, where: ArenaRange, array: NDArray[Any]) -> None:
        """Queue a write of one range."""
        if array.size:
            self.executor.write(self.arenas[where.arena][0], where.offset * ITEM_BYTES, array)

    def clear(self, key: str) -> None:
        """Queue zeros into a whole arena."""
        handle, nbytes = self.arenas[key]
        self.executor.clear(handle, 0, nbytes)

    def read(self, key: str) -> Awaitable[NDArray[np.uint8]]:
        """A whole arena's bytes as they are after all work queued so far."""
        handle, nbytes = self.arenas[key]
        return self.executor.read(handle, 0, nbytes)

    def destroy(self) -> None:
        """Free every arena. Idempotent."""
        for handle, _ in self.arenas.values():
            self.executor.free(handle)
        self.arenas.clear()
        self.destroyed = True


@dataclass(frozen=True)
class ParamHandle:
    """Where a parameter is: ``nbytes`` bytes at ``offset`` of the arena. It holds no values."""

    name: str
    shape: Shape
    dtype: str
    arena: str
    offset: int
    nbytes: int


class Params(Mapping[str, ParamHandle]):
    """A program's parameters by name; give it to ``compile_forward(shared_params=…)``.

    ``owner`` holds the arenas of the layout that ``shared`` does not.
    """

    def __init__(self, layout: Layout, owner: ParamStore, shared: Params | None = None) -> None:
        self.layout, self.owner, self.shared = layout, owner, shared

    def __getitem__(self, name: str) -> ParamHandle:
        r = self.layout.ranges[name]
        return ParamHandle(
            name, r.shape, r.dtype, r.arena, r.offset * ITEM_BYTES, numel(r.shape) * ITEM_BYTES
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.ranges)

    def __len__(self) -> int:
        return len(self.layout.ranges)

    def __repr__(self) -> str:
        return "Params(" + ", ".join(f"{p.name} {p.dtype}{list(p.shape)}" for p in self.values()) + ")"

    def store_of(self, arena: str) -> ParamStore:
        """The store that owns an arena."""
        if self.shared is not None and arena in self.shared.layout.arenas:
            return self.shared.store_of(arena)
        return self.owner

    def own(self) -> dict[str, ArenaRange]:
        """Ranges of the parameters that are not shared."""
        return {n: r for n, r in self.layout.ranges.items() if self.store_of(r.arena) is self.owner}

    def check(self) -> None:
        """Raise `InputError` if an owner was destroyed."""
        for arena in self.layout.arenas:
            self.store_of(arena).check()

    def upload(self, values: Mapping[str, Any], partial: bool) -> None:
        """Write parameters. Names and sizes are all checked before anything is written."""
        self.check()
        expected = {n: r for n, r in self.layout.ranges.items() if n in values or not partial}
        check_names(values, expected, "upload_params")
        ranges = self.layout.ranges
        for where, array in [(ranges[n], _fit(n, v, ranges[n])) for n, v in values.items()]:
            self.store_of(where.arena).write(where, array)

    async def download(self, rename: Callable[[str], str] = str) -> dict[str, NDArray[Any]]:
        """Every parameter's values, or those that lie alike in the arenas that ``rename`` leads to."""
        return await self.arrays(self.reading(rename))

    def reading(self, rename: Callable[[str], str] = str) -> dict[str, Awaitable[Any]]:
        """Queue reads of the arenas, by the name of the parameters' arena."""
        self.check()
        keys = {arena: rename(arena) for arena in self.layout.arenas}
        return {
            arena: self.store_of(arena).read(key)
            for arena, key in keys.items()
            if key in self.store_of(arena).arenas
        }

    async def arrays(self, pending: Mapping[str, Awaitable[Any]]) -> dict[str, NDArray[Any]]:
        """The parameters' arrays from arenas being read."""
        raw = {arena: await reading for arena, reading in pending.items()}
        found = {}
        for name, r in self.layout.ranges.items():
            if r.arena in raw:
                start = r.offset * ITEM_BYTES
                part = raw[r.arena][start : start + numel(r.shape) * ITEM_BYTES]
                found[name] = from_bytes(part, r.shape, r.dtype)
        return found


def _fit(name: str, value: Any, where: ArenaRange) -> NDArray[Any]:
    array = as_numbers(name, value)
    if array.size != numel(where.shape):
        raise ShapeError(
            f"parameter {name!r}: expected {where.shape} ({numel(where.shape)} values), found {array.shape} "
            f"({array.size} values)"
        )
    return convert(name, array.reshape(where.shape), where.shape, where.dtype)
