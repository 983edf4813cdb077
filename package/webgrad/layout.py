"""Where parameters live: ranges of a few large arenas, one per dtype.

An elementwise optimizer then updates every parameter in one dispatch per arena.
"""

from __future__ import annotations

from collections.abc import Mapping

from webgrad.errors import OutOfMemoryError
from webgrad.ir import ITEM_BYTES, ArenaRange, Layout, Node

#: WebGPU's alignment of binding offsets, in bytes
ALIGN = 256
#: arenas are a multiple of this, so that a kernel may cut one into rows of 256 elements
ARENA_UNIT = 1024


def round_up(n: int, unit: int) -> int:
    """The least multiple of ``unit`` that is not below n."""
    return -(-n // unit) * unit


def make_layout(
    params: Mapping[str, Node], max_arena_bytes: int, prefix: str = "", order: Mapping[str, int] | None = None
) -> Layout:
    """Lay parameters side by side in arenas named ``{prefix}param/{dtype}/{number}``.

    Ranges start at 256-byte boundaries, arenas are a multiple of 1 KiB; the padding stays zero. A new arena
    begins where one would outgrow ``max_arena_bytes`` (the adapter's binding limit). Parameters with equal
    numbers in ``order`` lie together, in the order of the numbers. Raises `OutOfMemoryError` for a parameter
    that no binding can hold.
    """
    arenas: dict[str, int] = {}
    ranges: dict[str, ArenaRange] = {}
    shard: dict[str, int] = {}
    limit = max_arena_bytes - max_arena_bytes % ARENA_UNIT
    for name in sorted(params, key=lambda n: order.get(n, 0) if order else 0):
        node = params[name]
        need = max(round_up(node.nbytes, ALIGN), ALIGN)
        if need > limit:
            raise OutOfMemoryError(
                f"parameter {name!r} of shape {node.shape} takes {node.nbytes:,} bytes; the adapter binds at "
                f"most {max_arena_bytes:,} at once: split it into smaller parameters"
            )
        arena = f"{prefix}param/{node.dtype}/{shard.setdefault(node.dtype, 0)}"
        if arenas.get(arena, 0) * ITEM_BYTES + need > limit:
            shard[node.dtype] += 1
            arena = f"{prefix}param/{node.dtype}/{shard[node.dtype]}"
        offset = arenas.get(arena, 0)
        ranges[name] = ArenaRange(arena, offset, node.shape, node.dtype)
        arenas[arena] = offset + need // ITEM_BYTES
    whole = {name: round_up(size, ARENA_UNIT // ITEM_BYTES) for name, size in arenas.items()}
    return Layout(whole, {name: ranges[name] for name in params})
