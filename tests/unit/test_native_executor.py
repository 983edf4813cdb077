"""``device="native"`` behaves as the page's GPU: training, reading, sharing, errors; and nothing leaks."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import re
import sys
import time

import numpy as np
import pytest

import webgrad as wg
from tests.unit.native import native
from webgrad import nn
from webgrad.compile import build_training, create_runtime
from webgrad.runtime import native as runtime
from webgrad.runtime.devices import open_executor
from webgrad.runtime.native_device import accepted, places_of
from webgrad.runtime.reference import NumpyExecutor


class MLP(nn.Module):
    """1-32-1, with a capture."""

    def __init__(self):
        self.l1, self.l2 = nn.Linear(1, 32, scale=1.0), nn.Linear(32, 1, scale=0.2)

    def __call__(self, x):
        return self.l2(wg.capture("hidden", wg.relu(self.l1(x))))


def loss_fn(model, x, y):
    error = model(x) - y
    wg.metric("largest", wg.max(wg.abs(error)))
    return wg.mean(error**2)


INPUTS = {"x": (64, 1), "y": (64, 1)}


def batch(seed):
    """Inputs of one step."""
    x = np.random.default_rng(seed).uniform(-3, 3, (64, 1)).astype(np.float32)
    return {"x": x, "y": np.sin(x)}


async def compile_sine(device="native", **options):
    """The training program."""
    settings = {"inputs": INPUTS, "optimizer": wg.optim.Adam(lr=1e-2), "seed": 3, **options}
    return await wg.compile_module(MLP, loss_fn, device=device, **settings)


@pytest.fixture
def executor():
    """The process's executor, as every program of ``device="native"`` shares it."""
    return native().executor


def alive(executor):
    """Buffers that are not staging, and their bytes."""
    gc.collect()
    return len(executor._buffers), sum(buffer.size for buffer in executor._buffers.values())


async def test_it_trains_to_the_losses_of_float64(executor):
    async with await compile_sine() as train, await compile_sine(NumpyExecutor(float64=True)) as exact:
        assert train.device == "native" and train.adapter["device"]
        losses = [await train.step(batch(i)) for i in range(100)]
        expected = [await exact.step(batch(i)) for i in range(100)]
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    assert losses[-1] < losses[0] / 5


async def test_a_step_is_one_submission_and_one_map_and_makes_nothing(executor):
    async with await compile_sine() as train:
        for i in range(3):
            await train.step(batch(i))
        before, own = executor.stats(), train.stats()
        for i in range(10):
            await train.step(batch(i), with_captures=True)
        after, later = executor.stats(), train.stats()
    dispatches = 10 * len(train.ir.program.kernels)
    for a, b in [(before, after), (own, later)]:
        assert (b.submissions - a.submissions, b.maps - a.maps) == (10, 10)
        assert b.dispatches - a.dispatches == dispatches
        assert (a.pipelines, a.modules) == (b.pipelines, b.modules)
    assert own.pipelines >= own.modules == len(train.ir.program.modules)
    assert (own.buffers, own.bytes) == (later.buffers, later.bytes)
    assert own.bytes == sum(max(16, b.bytes) for b in train.ir.program.buffers)


async def test_equal_programs_share_pipelines(executor):
    async with await compile_sine() as first:
        before = executor.stats()
        async with await compile_sine() as second:
            after = executor.stats()
            assert await first.step(batch(0)) == await second.step(batch(0))
    assert (before.pipelines, before.modules) == (after.pipelines, after.modules)


async def test_captures_and_metrics_change_no_loss(executor):
    async with await compile_sine() as plain, await compile_sine() as rich:
        losses = [await plain.step(batch(i)) for i in range(8)]
        results = [await rich.step(batch(i), with_captures=True) for i in range(8)]
        full = await rich.step(batch(8), full=True)
        weights = await plain.download_params()
    assert [result.loss for result in results] == losses
    hidden = results[0].captures["hidden"]
    assert hidden.shape == (64, 32) and hidden.dtype == np.float32 and hidden.flags.owndata
    assert results[0].metrics["largest"] > 0 and set(full.metrics) == {"largest"} and full.captures == {}
    assert set(weights) == {"l1.W", "l1.b", "l2.W", "l2.b"}


async def test_parameters_travel_both_ways_and_set_acts_at_the_next_step(executor):
    async with await compile_sine() as train:
        await train.step(batch(0))
        saved = await train.download_params()
        assert {name: array.shape for name, array in saved.items()} == {
            "l1.W": (1, 32),
            "l1.b": (32,),
            "l2.W": (32, 1),
            "l2.b": (1,),
        }
        grads = await train.download_param_grads()
        assert all(np.any(grads[name]) for name in ("l1.W", "l2.W"))
        changed = {name: array + 1 for name, array in saved.items()}
        train.upload_params(changed)
        train.set(lr=0.0)
        await train.step(batch(1))
        for name, array in (await train.download_params()).items():
            np.testing.assert_array_equal(array, changed[name])


async def test_a_checkpoint_resumes_exactly(executor):
    async with await compile_sine() as train, await compile_sine() as again:
        for i in range(3):
            await train.step(batch(i))
        again.load_state_dict(await train.state_dict())
        assert [await again.step(batch(i)) for i in (3, 4)] == [await train.step(batch(i)) for i in (3, 4)]
        again.reset_optimizer_state()
        assert not any(np.any(a) for a in (await again.state_dict())["optimizer"]["m"].values())


async def test_a_forward_that_shares_parameters_sees_each_step(executor):
    async with await compile_sine() as train:
        infer = await wg.compile_forward(
            MLP, lambda model, x: model(x), inputs={"x": (64, 1)}, shared_params=train.params
        )
        assert infer.device == "native"
        for i in range(4):
            out = await infer.run({"x": batch(i)["x"]})
            error = np.mean((out - batch(i)["y"]) ** 2)
            np.testing.assert_allclose(error, await train.step(batch(i)), rtol=1e-5)
        infer.destroy()
        assert np.isfinite(await train.step(batch(0)))
        other = await wg.compile_forward(
            MLP, lambda model, x: model(x), inputs={"x": (64, 1)}, shared_params=train.params
        )
    with pytest.raises(wg.InputError, match="destroyed"):
        other.run({"x": batch(0)["x"]})
    other.destroy()


async def test_calls_awaited_late_or_together_run_in_call_order(executor):
    async with await compile_sine() as train, await compile_sine() as plain:
        pending = [train.step(batch(i)) for i in range(4)]
        weights = asyncio.ensure_future(train.download_params())
        pending.append(train.step(batch(4)))
        losses = await asyncio.gather(*reversed(pending))
        expected = [await plain.step(batch(i)) for i in range(4)]
        after_four = await plain.download_params()
        expected.append(await plain.step(batch(4)))
        assert losses[::-1] == expected
        # the download was queued when its task first ran: after all five
        assert any(np.any(array != after_four[name]) for name, array in (await weights).items())
        assert await pending[0] == expected[0], "awaiting again gives the same"


async def test_steps_that_read_nothing_run_ahead_and_compute_the_same(executor):
    async with await compile_sine() as quiet, await compile_sine() as loud:
        before = quiet.stats()
        for i in range(2 * runtime.STEPS_IN_FLIGHT):
            assert await quiet.step(batch(i), read_loss=False) is None
        assert quiet.stats().maps - before.maps == 2, "it waits for room now and then"
        losses = [await loud.step(batch(i)) for i in range(2 * runtime.STEPS_IN_FLIGHT + 1)]
        assert await quiet.step(batch(2 * runtime.STEPS_IN_FLIGHT)) == losses[-1]


async def test_waiting_for_the_gpu_leaves_the_loop_to_others(executor):
    """A step's map must not begin by waiting in the calling thread."""
    given = {"a": np.ones((512, 512), np.float32)}

    def forward(model, a):
        for _ in range(4):
            a = wg.sin(a @ a)
        return wg.sum(a)

    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.002)

    async with await wg.compile_forward(nn.Module, forward, inputs=given, device="native") as program:
        await program.run(given)
        start, ticking = time.perf_counter(), asyncio.ensure_future(others())
        await program.run(given)
        seconds = time.perf_counter() - start
        ticking.cancel()
    assert turns >= seconds / 0.002 / 8, f"{turns} turns in {seconds:.3f} s"


async def test_reads_do_without_the_packages_own_mode(executor, monkeypatch):
    monkeypatch.setattr(executor.staging, "_mode", "NO_SUCH_MODE")
    async with await compile_sine() as train:
        assert np.isfinite(await train.step(batch(0)))
    assert executor.staging._mode == executor.staging._plain_mode


async def test_giving_up_waiting_leaves_the_result_to_others(executor):
    async with await compile_sine() as train:
        pending = train.step(batch(0))

        async def wait():
            return await pending

        first, second = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == await pending
        assert first.cancelled()


def test_calls_may_be_made_outside_a_loop_and_awaited_in_several(executor):
    async def value(pending):
        return await pending

    async def given_up(pending):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(value(pending), 0)

    train = asyncio.run(compile_sine())
    late, plain = train.step(batch(0)), asyncio.run(compile_sine())
    asyncio.run(given_up(late))
    assert asyncio.run(value(late)) == asyncio.run(value(plain.step(batch(0))))
    train.destroy()
    plain.destroy()


async def test_500_steps_leave_no_buffer_behind(executor):
    async with await compile_sine() as train:
        for i in range(20):
            await train.step(batch(i), with_captures=i % 2 == 0)
        before = executor.stats()
        for i in range(500):
            pending = train.step(batch(i % 20), with_captures=i % 50 == 0)
            if i % 3:
                await pending
        del pending
        after = executor.stats()
        assert (after.buffers, after.bytes) == (before.buffers, before.bytes)


async def test_destroying_or_forgetting_a_program_frees_its_buffers(executor):
    wg.destroy_all()
    before = alive(executor)
    train = await compile_sine()
    assert alive(executor)[0] > before[0]
    train.destroy()
    train.destroy()
    assert alive(executor) == before
    with pytest.raises(wg.InputError, match="destroyed"):
        train.step(batch(0))
    train = await compile_sine()
    await train.step(batch(0))
    train.step(batch(1))  # never awaited
    del train
    assert alive(executor) == before, "a collected program frees itself"


# --- failures ---------------------------------------------------------------------------------------


def parts_for(executor, change):
    """A training program whose first kernel's text is changed."""
    parts = build_training(MLP, loss_fn, INPUTS, wg.optim.Adam(lr=1e-2), 0, executor.target)
    program = parts.ir.program
    at = program.kernels[0].module
    modules = [change(text) if i == at else text for i, text in enumerate(program.modules)]
    parts.ir = dataclasses.replace(parts.ir, program=dataclasses.replace(program, modules=tuple(modules)))
    return parts


async def test_a_kernel_that_naga_refuses_is_named_with_its_operations_and_lines(executor):
    before = alive(executor)
    parts = parts_for(executor, lambda text: re.sub(r"(fn main\(.*?\{)", r"\1 let oops: f32 = 1u;", text))
    with pytest.raises(wg.CompileError) as caught:
        await create_runtime(parts, executor)
    message = str(caught.value)
    kernel = parts.ir.program.kernels[0]
    assert f"kernel {kernel.name!r} (number 0)" in message
    assert "matmul" in message and "test_native_executor.py:" in message
    line = 1 + parts.ir.program.modules[kernel.module].split("let oops")[0].count("\n")
    assert re.search(rf"WGSL line {line}:\d+: the type of `oops` is expected to be `f32`", message)
    assert f"{line:4} | fn main(" in message
    assert alive(executor) == before, "a program that was not loaded leaves nothing"


async def test_a_kernel_whose_bindings_do_not_fit_is_named(executor):
    before = alive(executor)
    parts = parts_for(
        executor, lambda text: text.replace("var<storage, read>", "var<storage, read_write>", 1)
    )
    with pytest.raises(wg.CompileError, match=r"kernel 'contract 0' \(number 0\) could not be built"):
        await create_runtime(parts, executor)
    assert alive(executor) == before


async def test_a_feature_that_the_adapter_lacks_is_named(executor):
    parts = build_training(MLP, loss_fn, INPUTS, None, 0, executor.target)
    program = dataclasses.replace(parts.ir.program, features=("no-such-feature",))
    parts.ir = dataclasses.replace(parts.ir, program=program)
    with pytest.raises(wg.CompileError, match="lacks no-such-feature"):
        await create_runtime(parts, executor)


async def test_a_buffer_over_the_limit_is_named(executor):
    most = executor.target.max_buffer_bytes
    with pytest.raises(wg.OutOfMemoryError, match=rf"weights: {most + 4} bytes.*allows {most}"):
        executor.allocate(most + 4, "weights")


async def test_memory_that_the_driver_refuses_is_named(executor, monkeypatch):
    wgpu = pytest.importorskip("wgpu")
    out_of_memory = next(kind for kind in wgpu.GPUError.__subclasses__() if issubclass(kind, MemoryError))

    def refuse(**_):
        raise out_of_memory("Not enough memory left.")

    monkeypatch.setattr(executor.device, "create_buffer", refuse)
    with pytest.raises(wg.OutOfMemoryError, match="weights: no GPU memory"):
        executor.allocate(64, "weights")


def lose(executor):
    """The device ends, as when a driver gives it up; the package's own thread goes on."""
    device = executor.device
    poller, device._poller = device._poller, None
    device.destroy()
    device._poller = poller


async def test_a_lost_device_ends_every_call_and_training_goes_on_after_a_recompile(executor):
    train = await compile_sine()
    for i in range(4):
        await train.step(batch(i))
    checkpoint = await train.state_dict()
    expected = await train.step(batch(4))
    pending = [train.step(batch(i)) for i in range(3)]
    lose(executor)
    calls = [*pending, train.step(batch(0)), train.step(batch(0), read_loss=False)]
    calls += [asyncio.ensure_future(train.download_params())]
    ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    assert all(isinstance(end, wg.DeviceLostError) for end in ends[3:]), ends
    assert all(isinstance(end, float | wg.DeviceLostError) for end in ends[:3]), ends
    with pytest.raises(wg.DeviceLostError, match="Compile again"):
        train.upload_initial_params()
    train.destroy()
    async with await compile_sine() as again:
        assert again._executor is not executor
        again.load_state_dict(checkpoint)
        assert await again.step(batch(4)) == expected


async def test_closing_ends_what_is_pending(executor):
    train = await compile_sine()
    waiting = train.step(batch(0))

    async def value():
        return await waiting

    task = asyncio.ensure_future(value())
    await asyncio.sleep(0)
    executor.close()
    with pytest.raises(wg.DeviceLostError, match="was closed"):
        await asyncio.wait_for(task, 20)
    with pytest.raises(wg.DeviceLostError, match="was closed"):
        await train.step(batch(1))
    train.destroy()


# --- no adapter -------------------------------------------------------------------------------------


@pytest.fixture
def unopened(monkeypatch):
    """A process that has not asked for a device yet."""
    monkeypatch.setattr(runtime, "_executor", None)


async def test_a_missing_package_is_named(unopened, monkeypatch):
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(wg.NoAdapterError, match=r"package wgpu.*pip install 'webgrad\[native\]'"):
        await open_executor("native")


async def test_a_machine_without_an_adapter_is_told_what_to_install(unopened, monkeypatch):
    wgpu = pytest.importorskip("wgpu")

    def none(**_):
        raise RuntimeError("Request adapter failed (3): No suitable adapter found")

    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", none)
    with pytest.raises(wg.NoAdapterError, match=r"No suitable adapter found.*Vulkan.*mesa-vulkan"):
        await compile_sine()


async def test_in_a_page_it_names_the_pages_gpu(unopened, monkeypatch):
    monkeypatch.setattr(sys, "platform", "emscripten")
    with pytest.raises(wg.NoAdapterError, match='device="webgpu"'):
        await open_executor("native")


async def test_there_is_one_executor_a_process(executor):
    assert await open_executor("native") is await open_executor("native") is executor


# --- what naga takes and says -----------------------------------------------------------------------


def test_the_line_that_enables_subgroups_goes_and_the_others_keep_their_numbers():
    assert accepted("enable subgroups;\nfn f() {}") == "\nfn f() {}"
    assert accepted("enable f16;\nenable subgroups;\nfn f() {}") == "enable f16;\n\nfn f() {}"
    assert accepted("fn f() {}  // enable subgroups;") == "fn f() {}  // enable subgroups;"


def test_nagas_places_are_read():
    said = (
        "Shader 'map 3' parsing error: the type of `x` is expected to be `f32`, but got `u32`\n"
        "  ┌─ wgsl:12:17\n   │\n12 │ fn main() { let x: f32 = 1u; }\n"
        "   │                 ^ definition of `x`\n"
    )
    (place,) = places_of(said)
    assert (place["line"], place["column"]) == (12, 17)
    assert place["message"] == "the type of `x` is expected to be `f32`, but got `u32`; definition of `x`"
    assert places_of("something else went wrong") == []
