"""The harness itself: values cross unchanged, and no error of the page goes unnoticed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.page.conftest import PagePython


def test_arrays_come_back_bit_for_bit(page_py):
    sent = np.array([[-0.0, np.nan, np.inf], [1e-45, 1.5, -3.0]], np.float32)
    back = page_py("return x", x=sent)
    assert back.dtype == np.float32
    assert back.tobytes() == sent.tobytes()


def test_a_function_of_the_test_runs_in_the_page(page_py):
    async def where(x, scale=1):
        import asyncio
        import sys

        await asyncio.sleep(0)
        return sys.platform, x * scale

    assert page_py(where, np.arange(3), scale=2)[0] == "emscripten"
    assert page_py(where, 5, scale=2)[1] == 10


def helper(x):
    return x + 1


def test_helpers_are_sent_along(page_py):
    def twice(x):
        return helper(helper(x))

    assert page_py(twice, 1, uses=[helper]) == 3


def test_an_exception_is_raised_here_with_the_line_of_this_file(page_py):
    def broken():
        raise KeyError("gone")  # this line

    with pytest.raises(KeyError, match="gone") as caught:
        page_py(broken)
    line = broken.__code__.co_firstlineno + 1
    assert f'test_harness.py", line {line}' in caught.value.__notes__[0]
    assert 'raise KeyError("gone")  # this line' in caught.value.__notes__[0]


def test_what_is_kept_lives_between_calls(page_py):
    page_py("keep['x'] = 41")
    assert page_py("keep['x'] += 1; return keep['x']") == 42


def test_what_is_kept_is_gone_in_the_next_test(page_py):
    assert page_py("return list(keep)") == []


def test_a_value_that_cannot_travel_says_so(page_py):
    with pytest.raises(TypeError, match="cannot send back a generator"):
        page_py("return (i for i in range(3))")


def test_a_console_error_is_caught(page_py: PagePython):
    page_py("js.console.error('something broke')")
    with pytest.raises(AssertionError, match="something broke"):
        page_py.check_errors()
    page_py.check_errors()


def test_an_uncaught_error_of_the_page_is_caught(page_py: PagePython):
    with page_py.expect_errors("never awaited by anyone"):
        page_py.evaluate("void Promise.reject(new Error('never awaited by anyone'))")


def test_an_uncaptured_gpu_error_is_caught(page_py: PagePython):
    with page_py.expect_errors("uncaptured GPUValidationError"):
        page_py.evaluate("""(async () => {
            const adapter = await navigator.gpu.requestAdapter();
            const device = await adapter.requestDevice();
            device.createBuffer({size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.STORAGE});
            globalThis.brokenDevice = device;
        })()""")
    page_py.evaluate("brokenDevice.destroy()")


def test_a_call_that_never_ends_is_given_up_and_the_page_started_anew(page_py: PagePython):
    with pytest.raises(TimeoutError, match="within 2 seconds"):
        page_py("import asyncio; await asyncio.sleep(3600)", timeout=2)
    assert page_py("return 1") == 1


def test_gpu_calls_are_counted_from_outside(page_py, gpu_counts):
    before = gpu_counts()
    page_py.evaluate("""(async () => {
        const device = await (await navigator.gpu.requestAdapter()).requestDevice();
        const kept = device.createBuffer({size: 64, usage: GPUBufferUsage.COPY_DST});
        device.createBuffer({size: 32, usage: GPUBufferUsage.COPY_DST}).destroy();
        device.queue.writeBuffer(kept, 0, new Float32Array(8), 2, 4);
        const encoder = device.createCommandEncoder();
        encoder.beginComputePass().end();
        device.queue.submit([encoder.finish()]);
        globalThis.countedDevice = device;
    })()""")
    happened = {name: n for name, n in (gpu_counts() - before).items() if n}
    assert happened == {
        "devices": 1, "buffers_created": 2, "buffers_destroyed": 1, "live_buffers": 1, "live_bytes": 64,
        "encoders": 1, "passes": 1, "submits": 1, "writes": 1, "write_bytes": 16,
    }  # fmt: skip
    page_py.evaluate("countedDevice.destroy()")


def test_calls_leave_no_proxies(page_py, proxy_counts):
    page_py("return 0")
    before = proxy_counts()
    for _ in range(5):
        page_py("return js.Object.new() is None")
    assert set((proxy_counts() - before).values()) == {0}


def test_the_thread_of_the_tests_has_no_running_loop(page_py):
    assert asyncio.run(asyncio.sleep(0, "free")) == "free"
    assert page_py("return 'and the page answers'") == "and the page answers"
