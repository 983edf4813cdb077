"""Products tiled in workgroup memory: which shapes get which strategy, and that all tilings agree."""

from __future__ import annotations

import re

import numpy as np
import pytest

import webgrad as wg
from tests import programs
from tests.unit.helpers import Empty
from tests.unit.invariants import check_program
from tests.unit.native import native as native_executor
from tests.unit.test_programs import assert_close
from webgrad.compile import build_forward, build_training, create_forward_runtime
from webgrad.compiler import strategy
from webgrad.compiler.kernels import Contraction, Quads, Registers, Tiles
from webgrad.compiler.strategy import Row
from webgrad.compiler.target import DEFAULT, Target
from webgrad.runtime.reference import NumpyExecutor

HARDWARE = Target("hardware")
#: small tiles, so that small products have several, with edges on every side
SMALL, WIDE, SLICED = Tiles(8, 8, 4, 4, 4), Tiles(16, 32, 8, 8, 4), Tiles(8, 16, 8, 4, 8, slices=2)


def tiled(monkeypatch, tiles):
    """Let every product on hardware adapters be computed by these tiles."""
    monkeypatch.setattr(strategy, "HARDWARE", (Row(1, 1, 1, 1, tiles),))


def products(ir):
    """The contractions of a compiled program."""
    return [k.body for k in ir.schedule.kernels if isinstance(k.body, Contraction)]


def matmul_parts(a, b, target=HARDWARE):
    """The parts of ``a @ b`` for these shapes."""
    return build_forward(Empty, lambda model, x, y: x @ y, {"x": a, "y": b}, None, 0, target)


def strategy_of(a, b, target=HARDWARE):
    """What computes ``a @ b``."""
    (c,) = products(matmul_parts(a, b, target).ir)
    return c.strategy


# --- the choice -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "tile"),
    [
        ((2048, 512), (512, 2048), (128, 64, 1)),
        ((1024, 1024), (1024, 1024), (64, 64, 1)),
        ((512, 512), (512, 512), (32, 32, 1)),
        ((8, 128, 64), (8, 64, 128), (32, 32, 1)),
        ((128, 784), (784, 256), (32, 32, 4)),
        ((5, 512), (512, 300), (16, 32, 4)),
        ((16, 144), (144, 6272), (16, 64, 1)),
        ((9, 800), (800, 10), (16, 16, 8)),
        ((300, 512), (512, 10), (32, 16, 4)),
        ((6272, 144), (144, 16), (64, 16, 1)),
    ],
)
def test_large_products_on_hardware_are_tiled(a, b, tile):
    chosen = strategy_of(a, b)
    assert isinstance(chosen, Tiles)
    assert (chosen.m, chosen.n, chosen.slices) == tile


@pytest.mark.parametrize(
    ("a", "b"), [((1, 1), (1, 1)), ((256, 1), (1, 64)), ((3, 7), (7, 3)), ((1, 900), (900, 1))]
)
def test_small_products_on_hardware_stay_in_registers(a, b):
    assert isinstance(strategy_of(a, b), Registers)


def test_software_adapters_use_no_barriers():
    assert isinstance(strategy_of((512, 512), (512, 512), Target()), Registers)
    assert isinstance(strategy_of((512, 512), (512, 512), Target(quads=True)), Quads)
    for target in (Target(), Target(quads=True)):
        assert all("Barrier" not in m for m in matmul_parts((64, 512), (512, 64), target).ir.program.modules)


def test_every_row_of_the_table_fits_every_adapter():
    for row in strategy.HARDWARE:
        tiles = row.tiles
        assert tiles.bytes <= DEFAULT.max_workgroup_bytes and tiles.threads <= 256
        assert tiles.m % tiles.rows == tiles.n % tiles.cols == tiles.rows % 4 == tiles.cols % 4 == 0
        assert tiles.k % (4 * tiles.slices) == 0


def test_tiles_that_do_not_fit_the_adapter_are_not_taken(monkeypatch):
    tiled(monkeypatch, Tiles(64, 64, 32, 4, 4, slices=4))
    assert isinstance(strategy_of((512, 512), (512, 512)), Registers)


def test_the_schedule_prints_the_strategy():
    parts = matmul_parts((128, 784), (784, 256))
    assert "by tiles 32x32x32, 4x4 a thread, k in 4 slices" in str(parts.ir.schedule)
    assert "by registers, 8x" in str(matmul_parts((64, 64), (64, 64), Target()).ir.schedule)
    assert "by quads, " in str(matmul_parts((64, 64), (64, 64), Target(quads=True)).ir.schedule)


def test_products_of_few_results_and_many_terms_are_split():
    parts = build_forward(
        Empty,
        lambda model, x, y: wg.swapaxes(x, 0, 1) @ y,
        {"x": (4096, 6), "y": (4096, 5)},
        None,
        0,
        HARDWARE,
    )
    (c,) = products(parts.ir)
    assert c.batch == 16 and c.k == 256


def test_products_of_few_tiles_and_very_many_terms_are_split_on_hardware():
    shapes = (64, 50_000), (50_000, 64)
    (tiled,), (plain,) = (products(matmul_parts(*shapes, t).ir) for t in (HARDWARE, Target()))
    assert tiled.batch == 16 and plain.batch == 1
    (short,) = products(matmul_parts((64, 1024), (1024, 64)).ir)
    assert short.batch == 1


# --- the text ---------------------------------------------------------------------------------------


def text_of(a, b):
    """The WGSL of a product."""
    (module,) = matmul_parts(a, b).ir.program.modules
    return module


def test_aligned_operands_are_loaded_as_vec4s_without_guards(monkeypatch):
    tiled(monkeypatch, Tiles(32, 32, 16, 4, 4))
    text = text_of((64, 64), (64, 64))
    assert "t0: array<vec4<f32>, 1024>" in text and "t1: array<vec4<f32>, 1024>" in text
    assert "min(" not in text and "select(" not in text and "break" not in text
    assert "t2: array<vec4<f32>, 1024>" in text, "and so are the results stored"


def test_guards_are_only_where_the_edge_is_ragged(monkeypatch):
    tiled(monkeypatch, Tiles(32, 32, 16, 4, 4))
    assert "if (m >= 65)" in text_of((65, 64), (64, 64))
    assert "if (n >= 65)" not in text_of((65, 64), (64, 64))
    assert text_of((64, 68), (68, 64)).count("select(") == 4 + 1  # x: four ks a thread, y: four columns


def test_workgroup_memory_is_what_the_tiling_says(monkeypatch):
    tiles = Tiles(32, 32, 32, 4, 4, slices=4)
    tiled(monkeypatch, tiles)

    def loss(model, x, y):
        return wg.mean((x @ model.w + model.b - y) ** 2)

    class Linear(wg.nn.Module):
        def __init__(self):
            self.w, self.b = self.param((64, 48)), self.param((48,))

    ir = build_training(Linear, loss, {"x": (96, 64), "y": (96, 48)}, None, 0, HARDWARE).ir
    check_program(ir)
    used = [
        16 * sum(map(int, re.findall(r"var<workgroup> \w+: array<vec4<f32>, (\d+)>", m)))
        for m in ir.program.modules
        if "right_tile" in m
    ]
    assert used and max(used) <= tiles.bytes


# --- the values -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def native():
    """This machine's own adapter with the kernels of hardware adapters."""
    return native_executor("hardware")


PRODUCTS = [
    "matmul", "matmul blocks", "matmul transposed", "matmul vectors", "matmul batched", "matmul tall",
    "matmul one", "attention", "linear relu", "conv", "conv strided", "conv grouped", "convnet",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tiles"),
    [(name, SMALL) for name in PRODUCTS]
    + [(name, tiles) for name in ("linear relu", "conv strided") for tiles in (WIDE, SLICED)],
    ids=str,
)
async def test_tiled_programs_agree_with_float64(native, monkeypatch, name, tiles):
    expected = await programs.run_program(name, NumpyExecutor("graph", float64=True))
    tiled(monkeypatch, tiles)
    assert_close(await programs.run_program(name, native), expected, name, relative=1e-4)


SHAPES = [
    (1, 1, 1),
    (1, 17, 64),
    (7, 1, 13),
    (13, 31, 7),
    (33, 4, 65),
    (64, 64, 64),
    (40, 36, 20),
    (5, 97, 3),
]


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
@pytest.mark.parametrize(("turned", "tiles"), [("", WIDE), ("left", SLICED), ("right", SMALL)], ids=str)
async def test_tiled_products_of_odd_sizes(native, monkeypatch, tiles, m, k, n, turned):
    tiled(monkeypatch, tiles)
    rng = np.random.default_rng(m * k * n)
    x = rng.standard_normal((k, m) if turned == "left" else (m, k)).astype(np.float32)
    y = rng.standard_normal((n, k) if turned == "right" else (k, n)).astype(np.float32)

    def forward(model, x, y):
        return (x.T if turned == "left" else x) @ (y.T if turned == "right" else y)

    parts = build_forward(Empty, forward, {"x": x, "y": y}, None, 0, HARDWARE)
    assert products(parts.ir)[0].strategy == tiles
    check_program(parts.ir)
    program = await create_forward_runtime(parts, native)
    a, b = (x.T if turned == "left" else x), (y.T if turned == "right" else y)
    np.testing.assert_allclose(
        await program.run({"x": x, "y": y}), a.astype(float) @ b.astype(float), rtol=1e-4, atol=1e-4
    )
    program.destroy()


@pytest.mark.parametrize("tiles", [*(r.tiles for r in strategy.HARDWARE), *strategy.MORE_TILES], ids=str)
async def test_every_tiling_that_may_be_chosen_is_right(native, monkeypatch, tiles):
    tiled(monkeypatch, tiles)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((130, 70), (70, 131)))
    parts = build_forward(Empty, lambda model, x, y: wg.relu(x @ y), {"x": x, "y": y}, None, 0, HARDWARE)
    assert products(parts.ir)[0].strategy == tiles
    program = await create_forward_runtime(parts, native)
    expected = np.maximum(x.astype(float) @ y, 0)
    np.testing.assert_allclose(await program.run({"x": x, "y": y}), expected, rtol=1e-4, atol=1e-4)
    program.destroy()


@pytest.mark.parametrize("tiles", [WIDE, SLICED], ids=str)
async def test_nan_beyond_the_edge_stays_outside(native, monkeypatch, tiles):
    """What lies beside an operand in its buffer is NaN; what is clamped or padded must not mix it in."""
    tiled(monkeypatch, tiles)
    x = np.full((7, 9), np.nan, np.float32)
    x[:5, :6] = 1
    parts = build_forward(
        Empty, lambda model, x: x[:5, :6] @ wg.swapaxes(x[:3, :6], 0, 1), {"x": x}, None, 0, HARDWARE
    )
    program = await create_forward_runtime(parts, native)
    np.testing.assert_array_equal(await program.run({"x": x}), np.full((5, 3), 6.0))
    program.destroy()


@pytest.mark.parametrize("tiles", [WIDE, SLICED], ids=str)
async def test_bias_gradients_beside_tiled_weight_gradients(native, monkeypatch, tiles):
    class Linear(wg.nn.Module):
        def __init__(self):
            self.w, self.b = self.param((10, 19), scale=1.0), self.param((19,))

    def loss(model, x, y):
        return wg.sum((x @ model.w + model.b) * y)

    tiled(monkeypatch, tiles)
    x, y = (np.random.default_rng(n).standard_normal((37, n)).astype(np.float32) for n in (10, 19))
    train = await wg.compile_module(Linear, loss, inputs={"x": x, "y": y}, device=native)
    sides = [s.side for k in train.ir.schedule.kernels for s in k.stores]
    assert "right" in sides or "left" in sides
    await train.step({"x": x, "y": y})
    grads = await train.download_param_grads()
    np.testing.assert_allclose(grads["w"], x.T @ y, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(grads["b"], y.sum(0), rtol=1e-4, atol=1e-4)
    train.destroy()
