"""The tuner: what it tries, what it chooses and remembers, and that it leaves nothing behind."""

from __future__ import annotations

import re

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import Empty
from tests.unit.native import native
from tests.unit.test_tiles import products
from webgrad import storage, tune
from webgrad.compile import build_forward
from webgrad.compiler.kernels import Quads, Registers, Tiles
from webgrad.compiler.strategy import CANDIDATES, candidates, choose
from webgrad.compiler.target import Target
from webgrad.errors import CompileError, DeviceLostError, InputError
from webgrad.runtime.reference import NumpyExecutor, Ready

HARDWARE = Target("hardware")
TARGETS = [HARDWARE, Target(), Target(quads=True)]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty store for every test."""
    monkeypatch.setenv("WEBGRAD_CACHE", str(tmp_path))


@pytest.fixture
def clock(monkeypatch):
    """A clock that only fake executors move."""
    clock = Clock()
    monkeypatch.setattr(tune.time, "perf_counter", lambda: clock.now)
    return clock


class Clock:
    """Seconds."""

    now = 100.0


class FakeExecutor:
    """An adapter that is slow as told: ``seconds(text)`` of one dispatch, ``making(text)`` of a pipeline."""

    name = "fake"

    def __init__(self, clock, seconds, making=lambda text: 0.01, target=HARDWARE, device="one"):
        self.clock, self.seconds, self.making, self.target = clock, seconds, making, target
        self.adapter = {"vendor": "fake", "device": device}
        self.loaded, self.alive = [], 0

    async def load(self, program, plan, externals):
        assert not externals and all(b.kind == "owned" for b in program.buffers)
        (text,) = program.modules
        self.loaded.append(text)
        self.clock.now += self.making(text)
        self.alive += 1
        return FakeSession(self, program)


class FakeSession:
    """A loaded candidate."""

    def __init__(self, owner, program):
        self.owner, self.program = owner, program

    def run(self, entry, upload, reads):
        assert upload.nbytes == self.program.upload_bytes
        calls = len(self.program.entries[entry])
        self.owner.clock.now += 0.001 + calls * self.owner.seconds(self.program.modules[0])
        return Ready({})

    def destroy(self):
        self.owner.alive -= 1


def product(m=64, k=512, n=64, target=HARDWARE, layers=1):
    """The stages of a product, or of several equal ones in a row."""

    def forward(model, x, y):
        for _ in range(layers):
            x = wg.tanh(x @ y)
        return x

    return build_forward(Empty, forward, {"x": (m, k), "y": (k, n)}, None, 0, target).ir


def tiled_in(text):
    """Whether this is the text of a tiled product."""
    return "left_tile" in text


# --- candidates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 7, 3), (64, 512, 64), (1024, 1024, 1024), (16, 144, 6272)])
def test_candidates_are_few_different_and_begin_with_the_choice(target, size):
    (kernel,) = product(*size, target).schedule.kernels
    found = candidates(kernel.ix, kernel.body, target)
    assert found[0] == choose(kernel.ix, kernel.body, target) == kernel.body.strategy
    assert len(set(map(str, found))) == len(found) <= CANDIDATES[target.adapter_class]
    assert all(s.fits(target) for s in found if isinstance(s, Tiles))
    kinds = {type(s) for s in found}
    assert (Tiles in kinds) <= (target is HARDWARE) and (Quads in kinds) <= target.quads


def test_large_products_on_hardware_compare_tiles_with_registers():
    (kernel,) = product(512, 512, 512).schedule.kernels
    assert {type(s) for s in candidates(kernel.ix, kernel.body, HARDWARE)} == {Tiles, Registers}


# --- the choice -------------------------------------------------------------------------------------


async def test_the_fastest_candidate_is_taken(clock):
    executor = FakeExecutor(clock, lambda text: 1e-3 if tiled_in(text) else 1e-4)
    ir = product()
    assert isinstance(products(ir)[0].strategy, Tiles)
    better = await tune.tuned(ir, executor)
    assert isinstance(products(better)[0].strategy, Registers)
    assert "by registers" in str(better.schedule) and not tiled_in(better.program.modules[0])
    assert better.program.entries == ir.program.entries and better.program.buffers == ir.program.buffers
    assert executor.alive == 0 and len(executor.loaded) > 2


async def test_a_candidate_must_be_clearly_faster(clock):
    executor = FakeExecutor(clock, lambda text: 1e-3 if tiled_in(text) else 0.97e-3)
    assert isinstance(products(await tune.tuned(product(), executor))[0].strategy, Tiles)


async def test_the_making_of_a_pipeline_counts(clock, monkeypatch):
    monkeypatch.setitem(tune.BUDGET, "hardware", 100)
    executor = FakeExecutor(
        clock, lambda text: 1e-3 if tiled_in(text) else 0.5e-3, lambda text: 0.01 if tiled_in(text) else 2
    )
    assert isinstance(products(await tune.tuned(product(), executor))[0].strategy, Tiles)
    assert len({tiled_in(text) for text in executor.loaded}) == 2


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_time_is_bounded(clock, target):
    executor = FakeExecutor(clock, lambda text: 0.2, lambda text: 1.0, target)
    start = clock.now
    await tune.tuned(product(target=target), executor)
    assert clock.now - start < 5
    assert len(executor.loaded) <= 2


async def test_fast_kernels_are_repeated_until_the_clock_can_tell(clock):
    executor = FakeExecutor(clock, lambda text: 2e-6 if tiled_in(text) else 1e-6)
    start = clock.now
    assert isinstance(products(await tune.tuned(product(), executor))[0].strategy, Registers)
    assert clock.now - start < 0.5


class ClockedSession(FakeSession):
    """A device that tells its own time, beside slow and unsteady transfers."""

    has_clock, ticks, wobble = True, True, 0

    async def timed(self, entry, upload):
        self.owner.timed += 1
        ClockedSession.wobble = (ClockedSession.wobble * 5 + 3) % 16
        self.owner.clock.now += 0.1 * ClockedSession.wobble / 16
        seconds = len(self.program.entries[entry]) * self.owner.seconds(self.program.modules[0])
        return round(seconds, 4) if self.ticks else 0.0


class ClockedExecutor(FakeExecutor):
    """Whose sessions are clocked."""

    timed = 0

    async def load(self, program, plan, externals):
        await super().load(program, plan, externals)
        return self.session(self, program)

    session = ClockedSession


async def test_the_devices_own_clock_is_used_where_it_has_one(clock, monkeypatch):
    monkeypatch.setitem(tune.BUDGET, "hardware", 100)
    executor = ClockedExecutor(clock, lambda text: 4e-5 if tiled_in(text) else 3.5e-5)
    assert isinstance(products(await tune.tuned(product(), executor))[0].strategy, Registers)
    assert executor.timed > len(executor.loaded)


@pytest.mark.parametrize("attribute", ["has_clock", "ticks"])
async def test_a_clock_that_is_missing_or_stands_still_is_not_trusted(clock, monkeypatch, attribute):
    monkeypatch.setitem(tune.BUDGET, "hardware", 100)
    executor = ClockedExecutor(clock, lambda text: 4e-3 if tiled_in(text) else 3e-3)
    executor.session = type("Session", (ClockedSession,), {attribute: False})
    assert isinstance(products(await tune.tuned(product(), executor))[0].strategy, Registers)
    assert bool(executor.timed) == (attribute == "ticks")


async def test_equal_products_are_timed_once(clock):
    executor = FakeExecutor(clock, lambda text: 1e-3 if tiled_in(text) else 1e-4)
    ir = await tune.tuned(product(128, 128, 128, layers=5), executor)
    assert len({c.strategy for c in products(ir)}) == 1 and len(products(ir)) == 5
    assert len(ir.program.modules) == 1
    assert len(executor.loaded) == len(set(executor.loaded)) <= CANDIDATES["hardware"]


# --- memory -----------------------------------------------------------------------------------------


async def test_winners_are_remembered_per_adapter_and_version(clock, monkeypatch):
    def executor(device):
        return FakeExecutor(clock, lambda text: 1e-3 if tiled_in(text) else 1e-4, device=device)

    first, again, other, later = executor("one"), executor("one"), executor("two"), executor("one")
    for adapter in (first, again, other):
        assert isinstance(products(await tune.tuned(product(), adapter))[0].strategy, Registers)
    assert first.loaded and other.loaded and not again.loaded
    monkeypatch.setattr(wg, "__version__", "another")
    await tune.tuned(product(), later)
    assert later.loaded


async def test_other_products_are_added_to_what_is_remembered(clock):
    adapter = FakeExecutor(clock, lambda text: 1e-3)
    for _ in range(2):
        for m in (64, 65):
            await tune.tuned(product(m), adapter)
    assert len(adapter.loaded) == len(set(adapter.loaded))


@pytest.mark.parametrize("kept", [b"", b"no JSON", b"[1]", b"{}", b"\xff"])
async def test_a_spoilt_memory_is_timed_anew(clock, kept):
    adapter = FakeExecutor(clock, lambda text: 1e-3)
    await storage.put(tune.NAMESPACE, tune.adapter_key(adapter), kept)
    await tune.tuned(product(), adapter)
    assert adapter.loaded


async def test_a_remembered_strategy_that_is_no_candidate_any_more_is_timed_anew(clock):
    adapter = FakeExecutor(clock, lambda text: 1e-3)
    await tune.tuned(product(), adapter)
    raw = await storage.get(tune.NAMESPACE, tune.adapter_key(adapter))
    spoilt = re.sub(rb'": "[^"]+"', b'": "tiles of clay"', raw)
    assert spoilt != raw
    await storage.put(tune.NAMESPACE, tune.adapter_key(adapter), spoilt)
    before = len(adapter.loaded)
    await tune.tuned(product(), adapter)
    assert len(adapter.loaded) > before


# --- failures ---------------------------------------------------------------------------------------


async def test_a_candidate_that_the_driver_refuses_is_passed_over(clock):
    def making(text):
        if not tiled_in(text):
            raise CompileError("no")
        return 0.01

    executor = FakeExecutor(clock, lambda text: 1e-3, making)
    assert isinstance(products(await tune.tuned(product(), executor))[0].strategy, Tiles)
    assert executor.alive == 0


async def test_a_lost_device_ends_tuning_and_leaves_nothing(clock):
    def seconds(text):
        raise DeviceLostError("gone")

    executor = FakeExecutor(clock, seconds)
    with pytest.raises(DeviceLostError):
        await tune.tuned(product(), executor)
    assert executor.alive == 0


async def test_products_too_large_to_have_twice_are_not_timed(clock, monkeypatch):
    monkeypatch.setattr(tune, "MOST_BYTES", 1000)
    executor, ir = FakeExecutor(clock, lambda text: 1e-3), product()
    before = products(ir)[0].strategy
    assert products(await tune.tuned(ir, executor))[0].strategy == before
    assert not executor.loaded


async def test_the_numpy_executor_ignores_tuning(monkeypatch):
    executor = NumpyExecutor("schedule")
    program = await wg.compile_forward(
        Empty, lambda m, x: x @ x, inputs={"x": (8, 8)}, device=executor, tune=True
    )
    np.testing.assert_array_equal(await program.run({"x": np.eye(8)}), np.eye(8))
    program.destroy()


@pytest.mark.parametrize("compile", [wg.compile_forward, wg.compile_module])
async def test_tune_is_a_flag(compile):
    with pytest.raises(InputError, match="tune must be True or False, found 'fast'"):
        await compile(Empty, lambda m, x: wg.sum(x), inputs={"x": (2, 2)}, device="numpy", tune="fast")


# --- a real adapter ---------------------------------------------------------------------------------


class Net(wg.nn.Module):
    """A layer with a bias, so that its weight gradient sums its operand too."""

    def __init__(self):
        self.w, self.b = self.param((24, 16), scale=1.0), self.param((16,))


def loss_of(model, x, y):
    return wg.mean((wg.tanh(x @ model.w + model.b) - y) ** 2)


def buffers_of(executor):
    """Buffers alive, but for those that wait to be read again."""
    return executor.stats().buffers - len(executor.staging.alive())


@pytest.mark.parametrize("kind", ["software", "hardware"])
async def test_tuned_training_computes_the_same_and_leaves_no_buffer(kind, monkeypatch):
    monkeypatch.setattr(tune, "BUDGET", dict.fromkeys(tune.BUDGET, 60.0))
    executor, rng = native(kind), np.random.default_rng(0)
    before = buffers_of(executor)
    batch = {"x": rng.standard_normal((64, 24)), "y": rng.standard_normal((64, 16))}

    async def losses(device, **options):
        train = await wg.compile_module(
            Net,
            loss_of,
            inputs={"x": (64, 24), "y": (64, 16)},
            optimizer=wg.optim.Adam(),
            device=device,
            **options,
        )
        found = [await train.step(batch) for _ in range(3)]
        assert device is not executor or buffers_of(executor) == before + train.stats().buffers
        train.destroy()
        return found

    expected = await losses(NumpyExecutor(float64=True))
    np.testing.assert_allclose(await losses(executor, tune=True), expected, rtol=1e-5)
    np.testing.assert_allclose(await losses(executor, tune=True), expected, rtol=1e-5)
    assert buffers_of(executor) == before
