"""How products and reductions are computed: a strategy and its blocks, or parts, from shape and adapter.

A product has one of three strategies, by one table:

    registers   a thread computes a block of results in registers, without barriers     wgsl/contract.py
    quads       four threads hand loads round in registers (SwiftShader)                wgsl/quads.py
    tiles       a workgroup stages tiles of both operands in its memory (hardware)      wgsl/tiles.py

What is chosen is data: it is printed with the schedule, and a tuner may choose otherwise. The blocks of the
first two come from prices (`blocks`), those of the last from the table. Products with hardly any results and
reductions with few or very long rows are split into parts, whose results are reduced in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from webgrad.compiler.blocks import quad_blocks, register_blocks, worth_quads
from webgrad.compiler.indexing import Indexer
from webgrad.compiler.kernels import Contraction, Registers, Strategy, Tiles
from webgrad.compiler.target import Target


@dataclass(frozen=True)
class Row:
    """A class of shapes on hardware adapters: at least this many rows, columns and terms, and workgroups."""

    m: int
    n: int
    k: int
    workgroups: int
    tiles: Tiles

    def suits(self, c: Contraction) -> bool:
        """Whether the product belongs to the class."""
        return c.m >= self.m and c.n >= self.n and c.k >= self.k and self.tiles.blocks(c) >= self.workgroups


#: the first row that suits is taken; what none suits stays in registers
HARDWARE = (
    #   m   n   k  workgroups
    Row(64, 64, 32, 256, Tiles(128, 64, 16, 8, 8)),
    Row(64, 64, 32, 128, Tiles(64, 64, 16, 8, 4)),
    Row(24, 24, 32, 64, Tiles(32, 32, 16, 4, 4)),
    Row(4, 64, 32, 64, Tiles(16, 64, 16, 4, 4)),
    Row(64, 4, 32, 64, Tiles(64, 16, 16, 4, 4)),
    # few tiles: groups of threads share the terms of one
    Row(24, 24, 64, 1, Tiles(32, 32, 32, 4, 4, slices=4)),
    Row(4, 24, 64, 1, Tiles(16, 32, 32, 4, 4, slices=4)),
    Row(24, 4, 64, 1, Tiles(32, 16, 32, 4, 4, slices=4)),
    Row(4, 4, 64, 1, Tiles(16, 16, 32, 4, 4, slices=8)),
)


def choose(ix: Indexer, c: Contraction, target: Target) -> Strategy:
    """The strategy of a product, of an indexer's expressions."""
    if target.adapter_class == "hardware":
        for row in HARDWARE:
            if row.suits(c) and row.tiles.fits(target):
                return row.tiles
    if target.quads and worth_quads(c):
        return quad_blocks(ix, c)[0]
    return register_blocks(c, target)[0]


#: workgroups that suit most graphics cards
BUSY = 128
#: further tilings that a tuner tries
MORE_TILES = (Tiles(128, 128, 8, 8, 8), Tiles(64, 64, 16, 4, 4), Tiles(32, 64, 16, 4, 4))
#: how many strategies a tuner tries: pipelines are dear to make on software adapters
CANDIDATES = {"hardware": 6, "software": 3}


def candidates(ix: Indexer, c: Contraction, target: Target) -> list[Strategy]:
    """What a tuner may compare, `choose`'s own first."""
    found = [choose(ix, c, target)]
    if target.adapter_class == "hardware":
        tiles = [
            t for t in (*(row.tiles for row in HARDWARE), *MORE_TILES) if t.fits(target) and _fills(t, c)
        ]
        tiles.sort(key=lambda t: abs(log2(t.blocks(c) / BUSY)))
        found += [*tiles[:3], register_blocks(c, target)[0], Registers(8, 4), Registers(4, 4)]
    elif target.quads and worth_quads(c):
        found += quad_blocks(ix, c)
    else:
        found += register_blocks(c, target)
    return list(dict.fromkeys(found))[: CANDIDATES[target.adapter_class]]


def _fills(t: Tiles, c: Contraction) -> bool:
    """Whether less than three quarters of the tiles' work is beyond the edges."""
    return t.blocks(c) * t.m * t.n < 4 * c.batch * c.m * c.n and t.k < 2 * c.k


#: products of fewer blocks than this are split along k; the side of a block and the least terms of a part:
#: for a thread's block, and for a workgroup's
SPLIT_BLOCKS, SPLIT_THREADS, SPLIT_GROUPS = 64, (8, 256), (32, 1024)


def split_parts(batch: int, m: int, n: int, k: int, target: Target) -> int:
    """Into how many products of fewer terms to split one with very few results (1: not at all)."""
    parts = 1
    for side, terms in (
        (SPLIT_THREADS, SPLIT_GROUPS) if target.adapter_class == "hardware" else (SPLIT_THREADS,)
    ):
        blocks = batch * -(-m // side) * -(-n // side)
        parts = max(parts, min(SPLIT_BLOCKS // max(blocks, 1), k // terms))
    return parts


#: terms of a row from which a reduction with few rows is split, and in any case
LONG = {"software": 1024, "hardware": 8192}
LONGEST = 65_536
#: parts of fewer rows than this in all; a part of a workgroup's row has at least so many terms
FEW_ROWS, PART_TERMS = 256, 2048


def reduction_parts(rows: int, length: int, target: Target) -> int:
    """Into how many parts to split each row of a reduction (1: not at all).

    One thread (software) or one workgroup (hardware) reduces a row, so few long rows leave an adapter idle.
    A row beyond `LONGEST` would also be added up in chains of roundings that are too long.
    """
    most = 1
    if length > LONG[target.adapter_class] and rows < FEW_ROWS:
        if target.adapter_class == "software":
            most = max(2, min(FEW_ROWS, int(length**0.5)))
        else:
            most = min(FEW_ROWS // rows, length // PART_TERMS)
    return max(most, -(-length // LONGEST))
