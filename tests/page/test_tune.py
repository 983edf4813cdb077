"""Tuning on the page's adapter: the same results, nothing left over, and nothing timed twice."""

from __future__ import annotations

import pytest


async def tuned_product(adapter_class):
    """Twice the same tuned product: errors, strategies, candidates timed, what is left and unharmed."""
    import dataclasses
    import os

    from webgrad import storage, tune
    from webgrad.runtime.webgpu import open_webgpu

    executor = await open_webgpu()
    plain = executor.target
    executor.target = dataclasses.replace(plain, adapter_class=adapter_class, quads=False)
    os.environ.pop(storage.VARIABLE, None)
    await storage.clear("tuning")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((40, 72), (72, 36)))
    errors, strategies, timed, left = [], [], [], []
    before = executor.stats()
    price, priced = tune._price, []

    async def counted(*arguments):
        priced.append(arguments)
        return await price(*arguments)

    tune._price = counted
    try:
        for _ in range(2):
            priced.clear()
            owner = await compile_product(x, w, tune=False)
            params = await owner.download_params()
            program = await compile_product(x, w, tune=True, cache=False, shared_params=owner.params)
            timed.append(len(priced))
            errors.append(float(np.abs(await program.run({"x": x}) - np.maximum(x @ w, 0)).max()))
            strategies += [str(k.body.strategy) for k in program.ir.schedule.kernels if k.kind == "contract"]
            same = np.array_equal((await owner.download_params())["w"], params["w"])
            program.destroy(), owner.destroy()
            left.append((executor.stats().buffers <= before.buffers + 2, same))  # but for idle staging
    finally:
        executor.target, tune._price = plain, price
        await storage.clear("tuning")
    return errors, strategies, timed, left


async def both_clocks():
    """Seconds of a hundred products by the device's clock and by the wall's, and buffers left."""
    import time

    from webgrad import tune
    from webgrad.runtime.webgpu import open_webgpu

    executor = await open_webgpu()
    before = executor.stats().buffers
    owner = await compile_product(np.ones((128, 128), np.float32), np.ones((128, 128), np.float32))
    program = tune.alone(owner.ir.kernels[0])
    session = await executor.load(program, owner.ir.plan, {})
    upload = np.zeros(program.upload_bytes, np.uint8)
    await session.run("1 times", upload, ("end",))
    found = {}
    for calls in (0, 1, 64):
        start = time.perf_counter()
        device = await session.timed(f"{calls} times", upload)
        found[calls] = device, time.perf_counter() - start
    session.destroy(), owner.destroy()
    return session.has_clock, found, executor.stats().buffers - before


def test_the_device_tells_how_long_it_was_busy(page_py):
    has_clock, found, left = page_py(both_clocks, uses=[compile_product])
    assert has_clock, "this browser grants timestamp-query"
    assert found[0][0] == 0
    assert all(device <= wall for device, wall in found.values())
    assert found[64][0] > 4 * found[1][0]
    assert left <= 1  # an idle staging buffer


async def open_device():
    """The executor lives as long as the page."""
    from webgrad.runtime.webgpu import open_webgpu

    await open_webgpu()


async def compile_product(x, w, **options):
    """``relu(x @ w)``, with ``w`` a parameter."""

    class Layer(nn.Module):
        def __init__(self):
            self.w = self.param(w.shape, init=lambda size, shape: w)

    return await wg.compile_forward(
        Layer, lambda m, x: wg.relu(x @ m.w), inputs={"x": x.shape}, device="webgpu", **options
    )


@pytest.mark.parametrize("adapter_class", ["software", "hardware"])
def test_a_tuned_product_is_right_and_timed_once(page_py, proxy_counts, adapter_class):
    page_py(open_device)
    before = proxy_counts()
    errors, (first, second), timed, left = page_py(
        tuned_product, adapter_class, uses=[compile_product], timeout=60
    )
    assert max(errors) < 1e-4
    assert first == second
    assert timed[0] >= 1 and timed[1] == 0, "a known product is not timed again"
    assert left == [(True, True)] * 2
    assert max((proxy_counts() - before).values()) <= 0
