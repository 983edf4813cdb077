"""No adapter, a lost device, a broken kernel: each its own exception, and nothing hangs."""

import numpy as np
import pytest

import webgrad as wg
from tests.page.test_steps import USES, batch


def lose_devices():
    """Lose the device, from outside webgrad."""
    js.gpuCounts.loseDevices()


def test_no_adapter_is_said_and_auto_falls_back_with_one_warning(page_py):
    async def without():
        import asyncio
        import warnings

        from webgrad.runtime import webgpu

        executor = await webgpu.open_webgpu()
        lose_devices()
        while executor.alive:
            await asyncio.sleep(0.01)
        js.eval("navigator.gpu.requestAdapter = async () => null")
        try:
            try:
                await compile_sine()
                message = "no error"
            except wg.NoAdapterError as error:
                message = str(error)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                train = await compile_sine(device="auto")
                other = await compile_sine(device="auto")
            loss = await train.step(batch(0))
            return message, train.device, other.device, [str(w.message) for w in caught], loss
        finally:
            js.eval("delete navigator.gpu.requestAdapter")

    message, device, other, warned, loss = page_py(without, uses=[*USES, lose_devices])
    assert "adapter" in message and "--enable-unsafe-webgpu" in message
    assert device == other == "numpy"
    assert len(warned) == 1 and "NumPy" in warned[0]
    assert np.isfinite(loss)


def test_a_device_lost_in_mid_training_ends_every_call_and_training_goes_on_after_a_recompile(page_py):
    async def lost():
        import asyncio

        train = await compile_sine()
        for i in range(4):
            await train.step(batch(i))
        checkpoint = await train.state_dict()
        expected = await train.step(batch(4))
        pending = [train.step(batch(i)) for i in range(3)]
        lose_devices()
        ends = await asyncio.wait_for(asyncio.gather(*pending, return_exceptions=True), 20)
        later = []
        for call in (
            lambda: train.step(batch(0)),
            lambda: train.step(batch(0), read_loss=False),
            lambda: train.download_params(),
        ):
            try:
                await asyncio.wait_for(asyncio.ensure_future(_awaited(call())), 20)
                later.append("no error")
            except Exception as error:
                later.append(type(error).__name__)
        train.destroy()
        again = await compile_sine()
        again.load_state_dict(checkpoint)
        resumed = await again.step(batch(4))
        return [type(e).__name__ for e in ends], later, expected, resumed

    async def _awaited(pending):
        return await pending

    ends, later, expected, resumed = page_py(lost, uses=[*USES, lose_devices, _awaited], timeout=60)
    assert set(ends) <= {"DeviceLostError", "float"} and ends[-1] == "DeviceLostError"
    assert later == ["DeviceLostError"] * 3
    assert resumed == expected


def test_a_broken_kernel_names_the_kernel_the_operation_and_the_users_line(page_py):
    async def broken():
        import webgrad.lowering as compiler

        link = compiler.make_program

        def spoiled(plan, kernels, entry):
            from dataclasses import replace

            kernels[1] = replace(kernels[1], wgsl=kernels[1].wgsl.replace("let b =", "let b = oops +"))
            return link(plan, kernels, entry)

        compiler.make_program = spoiled
        try:
            await compile_sine()
        finally:
            compiler.make_program = link

    with pytest.raises(wg.CompileError) as caught:
        page_py(broken, uses=USES)
    message = str(caught.value)
    assert "oops" in message, "the WGSL line"
    assert "matmul" in message, "the operation"
    assert "tests/page/test_faults.py:" in message and "in __call__" in message, "the user's line"


def test_a_tensor_beyond_the_adapter_is_refused_by_name(page_py):
    async def huge():
        await wg.compile_forward(
            nn.Module,
            lambda model, x: wg.reshape(x, -1, 1) * np.ones(70_000, np.float32),
            inputs={"x": (70_000,)},
            device="webgpu",
        )

    with pytest.raises(wg.OutOfMemoryError, match=r"multiply.*70000.*bytes"):
        page_py(huge)


def test_the_page_trains_after_the_faults(page_py):
    async def train():
        program = await compile_sine()
        return [await program.step(batch(i)) for i in range(30)]

    losses = page_py(train, uses=USES)
    assert losses[-1] < losses[0] / 2
