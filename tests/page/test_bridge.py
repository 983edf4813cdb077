"""The bridge and its executor, with hand-written programs: no compiler takes part.

The program of `doubler` has uploaded ``x`` and kept ``total`` (which counts the steps): a step makes
``y = 2 x + total`` and then adds 1 to ``total``.
"""

import pytest

from tests.browser import PageLog
from webgrad.errors import (
    CompileError,
    DeviceLostError,
    InputError,
    NoAdapterError,
    OutOfMemoryError,
    WebgradError,
)


def doubler(size=64, **changes):
    from webgrad.compiler.program import Binding, BufferSpec, KernelSpec, Program, Range

    wgsl = """
    @group(0) @binding(0) var<storage, read> x: array<f32>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    @group(0) @binding(2) var<storage, read_write> total: array<f32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        let i = id.x;
        if (i >= arrayLength(&x)) { return; }
        y[i] = 2.0 * x[i] + total[i];
        total[i] = total[i] + 1.0;
    }"""
    nbytes = 4 * size
    bindings = (Binding(0, 0, nbytes, "read"), *(Binding(i, 0, nbytes, "read_write") for i in (1, 2)))
    kernel = KernelSpec(
        "double", 0, bindings, (-(-size // 64), 1, 1), ("multiply", "add"), ("train.py:3 in loss",)
    )
    fields = {
        "buffers": (BufferSpec(nbytes, "owned"),) * 3,
        "modules": (wgsl,),
        "kernels": (kernel,),
        "entries": {"step": (0,), "twice": (0, 0), "nothing": ()},
        "upload_buffer": 0,
        "inputs": {"x": Range(0, 0, nbytes, (size,), "f32")},
        "scalars": {},
        "ranges": {
            "y": Range(1, 0, nbytes, (size,), "f32"),
            "first": Range(1, 0, 4, (), "f32"),
            "total": Range(2, 4, 4, (), "f32"),
            "empty": Range(1, 0, 0, (0,), "f32"),
        },
    }
    return Program(**(fields | changes))


async def load(program, **externals):
    from webgrad.runtime.webgpu import open_webgpu

    executor = await open_webgpu()
    return executor, await executor.load(program, None, externals)


def uploaded(values):
    import numpy as np

    return np.ascontiguousarray(values, np.float32).view(np.uint8)


USES = [doubler, load, uploaded]


# --- steps ------------------------------------------------------------------------------------------


def test_a_step_uploads_runs_and_reads(page_py):
    async def run():
        _, session = await load(doubler())
        x = np.arange(64, dtype=np.float32)
        result = await session.run("step", uploaded(x), ("y", "total", "empty", "first"))
        assert {name: data.dtype for name, data in result.items()} == dict.fromkeys(result, np.uint8)
        return {name: (data.view(np.float32).tolist(), data.flags.owndata) for name, data in result.items()}

    result = page_py(run, uses=USES)
    assert list(result) == ["y", "total", "empty", "first"]
    assert result["y"] == ([2.0 * i for i in range(64)], True)
    assert result["total"] == ([1.0], True)
    assert result["empty"] == ([], True)
    assert result["first"] == ([0.0], True)


def test_the_upload_is_copied_at_the_call_and_calls_keep_their_order(page_py):
    async def run():
        import asyncio

        _, session = await load(doubler())
        upload = np.zeros(64, np.float32)
        pending = []
        for step in range(40):
            upload[:] = step
            pending.append(session.run("step", upload.view(np.uint8), ("first",)))
        upload[:] = -1
        pending.reverse()  # awaiting late and in another order changes nothing
        results = await asyncio.gather(*pending)
        return [float(r["first"].view(np.float32)[0]) for r in results]

    assert page_py(run, uses=USES) == [3.0 * step for step in reversed(range(40))]


def test_an_entry_runs_its_kernels_in_order_and_may_be_empty(page_py):
    async def run():
        _, session = await load(doubler())
        await session.run("twice", uploaded(np.ones(64)), ())
        await session.run("nothing", uploaded(np.full(64, 5)), ())
        result = await session.run("step", uploaded(np.ones(64)), ("first", "total"))
        return [float(data.view(np.float32)[0]) for data in result.values()]

    assert page_py(run, uses=USES) == [2 + 2, 3]


def test_a_result_may_be_awaited_often_by_several_or_never(page_py, proxy_counts):
    async def run():
        import asyncio
        import gc
        import warnings

        _, session = await load(doubler())
        upload = uploaded(np.ones(64))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(50):
                session.run("step", upload, ("y",))
                session.run("step", upload, ())
            gc.collect()
            pending = session.run("step", upload, ("total",))
            first, second, third = await asyncio.gather(
                pending, asyncio.ensure_future(pending), asyncio.wait_for(pending, 9)
            )
            assert first is second is third is await pending
        return float(first["total"].view(np.float32)[0]), [str(w.message) for w in caught]

    page_py(run, uses=USES)
    before = proxy_counts()
    for _ in range(3):
        assert page_py(run, uses=USES) == (101, [])
        page_py("import gc; gc.collect()")
    grown = proxy_counts() - before
    assert grown["python"] <= 0
    assert grown["javascript"] <= 3


def test_a_step_is_one_write_one_pass_one_submit_one_map_and_makes_nothing(page_py, gpu_counts):
    async def start():
        _, session = await load(doubler())
        keep.update(session=session, upload=uploaded(np.ones(64)))
        await session.run("twice", keep["upload"], ("y", "total"))

    async def steps(reads):
        for _ in range(20):
            await keep["session"].run("twice", keep["upload"], reads)

    page_py(start, uses=USES)
    for reads in (("y", "total"), ("first",), ()):
        before = gpu_counts()
        page_py(steps, reads)
        made = gpu_counts() - before
        wanted = dict.fromkeys(("writes", "passes", "submits", "encoders"), 20) | {
            "dispatches": 40,
            "write_bytes": 20 * 256,
        }
        wanted |= {"maps": 20 * bool(reads), "copies": 20 * len(reads), "errors": 0}
        wanted |= dict.fromkeys(
            ("buffers_created", "buffers_destroyed", "bind_groups", "pipelines", "modules"), 0
        )
        assert {name: made[name] for name in wanted} == wanted


def test_staging_buffers_grow_with_the_steps_in_flight_and_are_used_again(page_py, gpu_counts):
    async def start():
        _, keep["session"] = await load(doubler())

    async def overlap(count):
        import asyncio

        upload = uploaded(np.ones(64))
        await asyncio.gather(*[keep["session"].run("step", upload, ("y",)) for _ in range(count)])

    page_py(start, uses=USES)
    page_py(overlap, 12, uses=USES)
    before = gpu_counts()
    for _ in range(5):
        page_py(overlap, 12, uses=USES)
    assert (gpu_counts() - before)["buffers_created"] == 0
    page_py(overlap, 100, uses=USES)
    after = gpu_counts()
    assert after["live_buffers"] - before["live_buffers"] <= 16


def test_steps_that_read_nothing_feel_back_pressure(page_py):
    async def run():
        import time

        slow = (
            doubler()
            .modules[0]
            .replace(
                "total[i] = total[i] + 1.0;",
                """var s = x[i];
                for (var k = 0; k < 300000; k++) { s = s * 0.999 + 1.0; }
                total[i] = total[i] + select(0.0, 1.0, s > 0.0);""",
            )
        )
        _, session = await load(doubler(modules=(slow,)))
        upload = uploaded(np.ones(64))
        start = time.perf_counter()
        await session.run("step", upload, ("first",))
        one = time.perf_counter() - start
        times = []
        start = time.perf_counter()
        for _ in range(24):
            await session.run("step", upload, ())
            times.append(time.perf_counter() - start)
        end = await session.run("nothing", upload, ("total",))
        return one, times, time.perf_counter() - start, float(end["total"].view(np.float32)[0])

    one, times, whole, total = page_py(run, uses=USES)
    assert total == 25
    assert times[6] < 0.5 * times[-1]  # the first eight do not wait
    assert times[-1] > 0.4 * whole  # the others do
    assert one < whole


def test_buffers_that_are_cleared_each_step(page_py):
    from webgrad.compiler.program import BufferSpec

    async def run(buffers):
        _, session = await load(doubler(buffers=buffers))
        for _ in range(3):
            result = await session.run("step", uploaded(np.ones(64)), ("total",))
        return float(result["total"].view(np.float32)[0])

    kept, cleared = BufferSpec(256, "owned"), BufferSpec(256, "owned", "", "each_step")
    assert page_py(run, (kept, kept, kept), uses=USES) == 3
    assert page_py(run, (kept, kept, cleared), uses=USES) == 1


# --- buffers ----------------------------------------------------------------------------------------


def test_buffers_are_zeroed_written_cleared_and_read_in_order(page_py):
    async def run():
        from webgrad.runtime.webgpu import open_webgpu

        executor = await open_webgpu()
        handle = executor.allocate(40, "arena")
        values = np.array([-0.0, np.nan, np.inf, 1e-45, 5], np.float32)
        reads = [executor.read(handle, 0, 40)]
        executor.write(handle, 8, values)
        reads.append(executor.read(handle, 8, 20))
        executor.write(handle, 0, np.arange(1, 7, dtype=np.uint8)[::2])  # three bytes: a word is written
        executor.clear(handle, 12, 8)
        reads.append(executor.read(handle, 0, 40))
        assert (await executor.read(handle, 0, 3)).tolist() == [1, 3, 5]
        before = executor.stats()
        executor.free(handle)
        executor.free(handle)
        assert before.buffers - executor.stats().buffers == 1
        arrays = [await read for read in reads]
        assert all(array.flags.owndata for array in arrays)
        return values.tobytes(), [array.tobytes() for array in arrays]

    values, (fresh, written, end) = page_py(run)
    assert fresh == bytes(40)
    assert written == values
    assert end == bytes([1, 3, 5, 0]) + bytes(4) + values[:4] + bytes(8) + values[12:] + bytes(12)


def test_externals_are_bound_by_key_and_constants_carry_their_bytes(page_py):
    from webgrad.compiler.program import BufferSpec

    async def run(buffers):
        executor, _ = await load(doubler())
        handle = executor.allocate(256, "weights")
        executor.write(handle, 0, np.full(64, 10, np.float32))
        ramp = np.arange(64, dtype=np.float32).tobytes()
        _, session = await load(doubler(buffers=buffers, blobs=(b"unused", ramp)), weights=handle)
        first = (await session.run("step", uploaded(np.zeros(64)), ("y",)))["y"].view(np.float32)
        session.destroy()
        session.destroy()
        kept = (await executor.read(handle, 0, 256)).view(np.float32)  # externals outlive the session
        executor.free(handle)
        try:
            await load(doubler(buffers=buffers, blobs=(b"", ramp)), weights=handle)
        except Exception as error:
            return first, kept, str(error)

    external, constant = BufferSpec(256, "external", "weights"), BufferSpec(256, "constant", "1")
    owned = BufferSpec(256, "owned")
    y, kept, message = page_py(run, (owned, owned, external), uses=USES)
    assert (y == 10).all()
    assert (kept == 11).all()
    assert "weights" in message
    y, *_ = page_py(run, (owned, owned, constant), uses=USES) or (None,)
    assert y is None or y.tolist() == list(range(64))


def test_addresses_stay_right_when_the_heap_grows(page_py):
    async def run():
        import pyodide_js

        _, session = await load(doubler())
        upload = uploaded(np.full(64, 3))
        size = pyodide_js._module.HEAPU8.byteLength
        hoard = []
        while pyodide_js._module.HEAPU8.byteLength == size:
            hoard.append(np.ones(4 << 20, np.uint8))
        late = uploaded(np.full(64, 4))
        results = [await session.run("step", u, ("first",)) for u in (upload, late)]
        return [float(r["first"].view(np.float32)[0]) for r in results]

    assert page_py(run, uses=USES) == [6, 9]


def test_counts_of_a_session_and_of_the_device(page_py, gpu_counts):
    async def run():
        executor, session = await load(doubler())
        _, same = await load(doubler())
        before = executor.stats()
        for _ in range(3):
            await session.run("twice", uploaded(np.ones(64)), ("y",))
        after, own = executor.stats(), session.stats()
        same.destroy()
        freed = executor.stats()
        session.destroy()
        return before, after, own, freed, session.stats()

    before, after, own, freed, gone = page_py(run, uses=USES)
    assert (own.dispatches, own.submissions, own.maps, own.buffers, own.bytes) == (6, 3, 3, 3, 768)
    assert (own.pipelines, own.modules) == (1, 1)
    assert after.dispatches - before.dispatches == 6
    assert after.buffers - freed.buffers == 3
    assert gone.buffers == 0
    counts = gpu_counts()
    assert counts["pipelines"] == counts["modules"]  # equal text was compiled once


# --- errors -----------------------------------------------------------------------------------------


def test_broken_wgsl_names_the_kernel_the_ops_the_line_and_the_text(page_py):
    broken = doubler().modules[0].replace("2.0 * x[i]", "2.0 * x[i] + missing")

    async def run(broken):
        await load(doubler(modules=(broken,)))

    for _ in range(2):  # a failure is not remembered as a pipeline
        with pytest.raises(CompileError) as raised:
            page_py(run, broken, uses=USES)
        message = str(raised.value)
        for part in (
            "'double'",
            "multiply, add",
            "train.py:3 in loss",
            "WGSL line 8:",
            "missing",
            "8 |         y[i]",
            "^",
        ):
            assert part in message, message


def test_two_kernels_of_one_broken_text_do_not_wait_for_each_other(page_py):
    from dataclasses import replace

    kernel = doubler().kernels[0]
    other = replace(kernel, name="other", bindings=(*kernel.bindings, kernel.bindings[0]))

    async def run(kernels, broken):
        await load(doubler(kernels=kernels, modules=(broken,)))

    for kernels in ((kernel, other), (other, kernel)):
        with pytest.raises(CompileError, match=kernels[0].name):
            page_py(run, kernels, doubler().modules[0] + "\nlet", uses=USES, timeout=30)


def test_a_prepared_pipeline_is_the_one_that_is_loaded(page_py, gpu_counts):
    async def run(suffix):
        from types import SimpleNamespace

        from webgrad.runtime.webgpu import open_webgpu

        executor, program = await open_webgpu(), doubler()
        wgsl = program.modules[0] + suffix
        (spec,) = program.kernels
        executor.prepare(SimpleNamespace(wgsl=wgsl, name="double", bindings=spec.bindings))
        await load(doubler(modules=(wgsl,)))

    before = gpu_counts()
    page_py(run, "// prepared", uses=USES)
    made = gpu_counts() - before
    assert (made["modules"], made["pipelines"]) == (1, 1)
    with pytest.raises(CompileError, match="kernel 'double'"):
        page_py(run, "// broken\n oops", uses=USES)


def test_an_illegal_binding_names_the_kernel_at_load(page_py):
    from dataclasses import replace

    program = doubler()
    kernel = program.kernels[0]
    x, y, total = kernel.bindings
    for bindings, problem in [
        ((x, y, y), "overlap|aliasing|same usage scope|Writable storage buffer binding"),
        ((x, y, replace(total, offset=128, size=128)), "multiple of|alignment|does not satisfy"),
        ((x, y, replace(total, size=4096)), "size"),
    ]:

        async def run(kernel):
            await load(doubler(kernels=(kernel,)))

        with pytest.raises(CompileError, match="'double'") as raised:
            page_py(run, replace(kernel, bindings=bindings), uses=USES)
        import re

        assert re.search(problem, str(raised.value)), str(raised.value)
    with pytest.raises(CompileError, match="'double'"):
        page_py(run, replace(kernel, workgroups=(65_536, 1, 1)), uses=USES)


def test_a_failed_load_leaves_no_buffers(page_py, gpu_counts):
    async def run(broken):
        try:
            await load(doubler(modules=(broken,)))
        except Exception as error:
            return type(error).__name__

    page_py(run, "nonsense", uses=USES)
    before = gpu_counts()
    assert page_py(run, "more nonsense", uses=USES) == "CompileError"
    assert (gpu_counts() - before)["live_buffers"] == 0


def test_too_large_a_buffer_is_refused_with_its_label(page_py):
    from webgrad.compiler.program import BufferSpec

    async def allocate():
        from webgrad.runtime.webgpu import open_webgpu

        (await open_webgpu()).allocate(1 << 40, "embedding.W")

    async def run(huge):
        await load(doubler(buffers=(huge,) * 3))

    with pytest.raises(OutOfMemoryError, match=r"embedding\.W: 1099511627776 bytes"):
        page_py(allocate)
    with pytest.raises(OutOfMemoryError, match="1099511627776 bytes"):
        page_py(run, BufferSpec(1 << 40, "owned"), uses=USES)


@pytest.mark.allow_page_errors
def test_an_error_on_the_device_comes_with_one_of_the_next_results_and_only_once(page_py):
    async def run():
        executor, session = await load(doubler())
        handle = executor.allocate(16, "small")
        executor.write(handle, 64, np.zeros(4, np.float32))  # outside: the device refuses it
        outcomes = []
        session.run(
            "step", uploaded(np.ones(64)), ()
        )  # nobody awaits it, so it must not take the error along
        for _ in range(5):
            try:
                await session.run("step", uploaded(np.ones(64)), ("first",))
                outcomes.append("fine")
            except Exception as error:
                outcomes.append(f"{type(error).__name__}: {error}")
        return outcomes

    with page_py.expect_errors("uncaptured GPUValidationError"):
        outcomes = page_py(run, uses=USES)
    assert [text.split(":")[0] for text in outcomes if text != "fine"] == ["CompileError"]
    assert outcomes[2:] == ["fine"] * 3  # which of the first two, the browser decides


def test_misuse_is_told_by_name(page_py):
    async def destroyed():
        _, session = await load(doubler())
        session.destroy()
        session.run("step", uploaded(np.ones(64)), ())

    async def short():
        _, session = await load(doubler())
        session.run("step", uploaded(np.ones(3)), ())

    async def unknown():
        _, session = await load(doubler())
        await session.run("train", uploaded(np.ones(64)), ())

    with pytest.raises(InputError, match="destroyed"):
        page_py(destroyed, uses=USES)
    with pytest.raises(InputError, match="256 contiguous bytes, found 12"):
        page_py(short, uses=USES)
    with pytest.raises(CompileError, match="no entry train"):
        page_py(unknown, uses=USES)


# --- the device -------------------------------------------------------------------------------------


def test_one_executor_for_all_and_what_it_tells_of_the_adapter(page_py):
    async def run():
        import asyncio

        from webgrad.runtime.webgpu import open_webgpu

        first, second = await asyncio.gather(open_webgpu(), open_webgpu())
        assert first is second is await open_webgpu()
        return first.adapter, first.target, first.name

    adapter, target, name = page_py(run)
    assert name == "webgpu"
    assert adapter["architecture"] == "swiftshader"
    assert adapter["limits"]["maxStorageBuffersPerShaderStage"] >= 8
    assert target.adapter_class == "software"
    assert target.max_storage_buffers == 8
    assert target.max_binding_bytes >= 128 << 20
    assert "subgroups" in target.features


def test_a_lost_device_ends_everything_and_a_new_one_can_be_opened(page_py):
    async def run():
        import asyncio

        from webgrad.errors import DeviceLostError
        from webgrad.runtime.webgpu import open_webgpu

        executor, session = await load(doubler())
        handle = executor.allocate(64, "arena")
        upload = uploaded(np.ones(64))
        pending = [session.run("step", upload, reads) for reads in (("y",), ()) for _ in range(12)]
        pending += [executor.read(handle, 0, 64), executor.load(doubler(size=128), None, {})]
        executor.close()
        pending += [
            session.run("step", upload, ("y",)),
            session.run("step", upload, ("total",)),
            executor.read(handle, 0, 4),
        ]
        pending += [executor.load(doubler(), None, {})]
        outcomes = await asyncio.wait_for(asyncio.gather(*pending, return_exceptions=True), 20)
        kinds = {type(outcome).__name__ for outcome in outcomes}

        for call in (
            lambda: executor.write(handle, 0, np.zeros(1)),
            lambda: executor.clear(handle, 0, 4),
            lambda: executor.allocate(4, "more"),
        ):
            try:
                call()
            except DeviceLostError as error:
                kinds.add(type(error).__name__)
            else:
                kinds.add("nothing raised")
        executor.free(handle)
        session.destroy()
        executor.close()

        fresh = await open_webgpu()
        assert fresh is not executor and fresh.alive and not executor.alive
        _, again = await load(doubler())
        result = await again.run("step", upload, ("first",))
        return kinds, float(result["first"].view(np.float32)[0])

    kinds, first = page_py(run, uses=USES)
    # Steps that read nothing and had room on the queue may have ended well before the loss.
    assert kinds - {"dict"} == {"DeviceLostError"}
    assert first == 2


def test_a_device_that_the_browser_takes_away(page_py):
    async def run():
        import asyncio

        js.eval("""globalThis.takeAway = () => {
            const original = GPUAdapter.prototype.requestDevice;
            GPUAdapter.prototype.requestDevice = async function (...args) {
                globalThis.lastDevice = await original.apply(this, args);
                return globalThis.lastDevice;
            };
            return () => (GPUAdapter.prototype.requestDevice = original);
        }""")
        from webgrad.runtime.webgpu import open_webgpu

        (await open_webgpu()).close()
        restore = js.takeAway()
        _, session = await load(doubler())
        restore()
        pending = session.run("step", uploaded(np.ones(64)), ("y",))
        js.lastDevice.destroy()
        await asyncio.wait_for(pending, 20)

    with pytest.raises(DeviceLostError, match="from a checkpoint"):
        page_py(run, uses=USES)


def test_without_webgpu_the_error_says_what_is_missing(page_py):
    async def run(gone):
        from webgrad.runtime.webgpu import open_webgpu

        (await open_webgpu()).close()
        hidden = js.eval(f"""(() => {{
            const [thing, name] = {gone};
            const own = Object.getOwnPropertyDescriptor(thing, name);
            Object.defineProperty(thing, name, {{...own, value: async () => null}});
            return () => Object.defineProperty(thing, name, own);
        }})()""")
        try:
            await open_webgpu()
        finally:
            hidden()
        return "an executor"

    with pytest.raises(NoAdapterError, match=r"no adapter.*device='numpy'"):
        page_py(run, "[GPU.prototype, 'requestAdapter']")
    with pytest.raises(NoAdapterError, match="no device"):
        page_py(run, "[GPUAdapter.prototype, 'requestDevice']")
    assert page_py("from webgrad.runtime.webgpu import open_webgpu\nreturn (await open_webgpu()).alive")


def test_the_bridge_may_come_from_an_address(page_py):
    async def run(url):
        from webgrad.runtime import webgpu

        (await webgpu.open_webgpu()).close()
        del js.webgradBridge
        webgpu.set_bridge_url(url)
        try:
            _, session = await load(doubler())
            result = await session.run("step", uploaded(np.ones(64)), ("first",))
        finally:
            webgpu.set_bridge_url(None)
        addresses = [entry.name for entry in js.performance.getEntriesByType("resource")]
        return float(result["first"].view(np.float32)[0]), addresses[-1].endswith(url)

    assert page_py(run, "/web/bridge.mjs", uses=USES) == (2, True)
    with page_py.expect_errors("404"), pytest.raises(WebgradError, match="set_bridge_url"):
        page_py(run, "/web/no-bridge.mjs", uses=USES)
    assert page_py("from webgrad.runtime.webgpu import open_webgpu\nreturn (await open_webgpu()).alive")


def test_a_page_with_a_strict_content_security_policy(browser, server):
    log = PageLog()
    program = """
from webgrad.runtime import webgpu
webgpu.set_bridge_url("/web/bridge.mjs")
executor = await webgpu.open_webgpu()
answer = executor.adapter["architecture"]
"""
    files = {
        "strict.html": '<!doctype html><script type="module" src="strict.mjs"></script>',
        "strict.mjs": f"""import {{ boot }} from "/web/boot.mjs";
            const app = boot({{ python: {program!r} }});
            globalThis.answer = app.then(({{ pyodide }}) => pyodide.globals.get("answer"));""",
    }

    async def visit():
        page = await browser.new_page(log)

        async def serve(route):
            name = route.request.url.rsplit("/", 1)[1]
            policy = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'"
            kind = "text/html" if name.endswith("html") else "text/javascript"
            await route.fulfill(
                body=files[name], headers={"content-security-policy": policy, "content-type": kind}
            )

        await page.route("**/strict.*", serve)
        await page.goto(server.url + "strict.html")
        await page.wait_for_function("globalThis.answer")
        try:
            return await page.evaluate("answer")
        finally:
            await browser.close_page(page)

    assert browser.run(visit(), 60) == "swiftshader"
    assert log.errors == []


def test_a_worker_has_a_device_of_its_own(page_py):
    program = """
async def answer():
    import numpy as np
    from webgrad.runtime.webgpu import open_webgpu

    executor = await open_webgpu()
    handle = executor.allocate(16, "arena")
    executor.write(handle, 0, np.arange(4, dtype=np.float32))
    return (await executor.read(handle, 0, 16)).view(np.float32)
"""
    answer = page_py.evaluate(f"""import("/web/boot.mjs").then(async ({{ boot }}) => {{
        const app = await boot({{ worker: true, python: {program!r} }});
        const answer = await app.call("answer");
        await app.terminate();
        return [...answer];
    }})""")
    assert answer == [0, 1, 2, 3]
