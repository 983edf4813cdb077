"""The prelude by a second WGSL compiler (naga) on this machine's own adapter, if there is one.

The same tables as in the page: two compilers and two adapters lose different NaNs.
"""

import numpy as np
import pytest

from tests.page import test_prelude as page
from tests.unit.native import native
from webgrad import rng
from webgrad.wgsl.prelude import FUNCTIONS, source_for


@pytest.fixture(scope="module")
def device():
    return native().device


@pytest.fixture(scope="module")
def evaluate(device):
    import wgpu

    def call(expression, *arguments, result="f32"):
        data = np.concatenate([np.ascontiguousarray(array).view(np.uint32) for array in arguments])
        size = len(arguments[0])
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        buffers = [device.create_buffer_with_data(data=data, usage=usage)]
        buffers.append(device.create_buffer(size=4 * size, usage=usage))
        module = device.create_shader_module(code=page.kernel_text(expression, arguments, result))
        compute = {"module": module, "entry_point": "main"}
        pipeline = device.create_compute_pipeline(layout="auto", compute=compute)
        group = device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[{"binding": i, "resource": {"buffer": buffer}} for i, buffer in enumerate(buffers)],
        )
        encoder = device.create_command_encoder()
        encoding = encoder.begin_compute_pass()
        encoding.set_pipeline(pipeline)
        encoding.set_bind_group(0, group)
        encoding.dispatch_workgroups(-(-size // 64))
        encoding.end()
        device.queue.submit([encoder.finish()])
        return page.decoded(np.frombuffer(device.queue.read_buffer(buffers[1]), np.uint32), result)

    return call


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_compiles(device, name):
    device.create_shader_module(code=source_for([name]))


@pytest.mark.parametrize("name", [*page.UNARY, *page.BINARY])
def test_functions_hold(evaluate, name):
    if name in page.UNARY:
        function, limit, x = page.UNARY[name]
        arguments = (x,)
    else:
        function, limit, arguments = page.BINARY[name]
    call = f"{name}({', '.join('ab'[: len(arguments)])})"
    page.check(evaluate(call, *arguments), page.reference(function)(*arguments), limit, *arguments)


def test_comparisons_conversions_and_integers(evaluate):
    page.test_comparisons_know_nan(evaluate)
    page.test_the_larger_and_the_smaller_keep_nan(evaluate)
    page.test_kinds_of_numbers_and_truth(evaluate)
    page.test_constants_have_their_bits(evaluate)
    page.test_the_remainder_and_the_floored_quotient_are_numpys(evaluate)
    page.test_a_power_that_f32_holds_is_exact(evaluate)
    page.test_integer_division_floors_and_by_zero_gives_zero(evaluate)
    for dtype, low, high in [("i32", -(2**31), 2**31 - 1), ("u32", 0, 2**32 - 1)]:
        page.test_floats_to_integers_truncate_and_saturate(evaluate, dtype, low, high)


def test_sine_and_cosine(evaluate):
    page.test_sine_and_cosine(evaluate, "wg_sin", np.sin)
    page.test_sine_and_cosine(evaluate, "wg_cos", np.cos)


def test_random_words(evaluate):
    index = np.arange(4096, dtype=np.uint32)
    found = evaluate("wg_threefry(vec2<u32>(9u, 17u), vec2<u32>(a, 3u)).x", index, result="u32")
    assert (found == rng.threefry2x32(9, 17, index, 3)[0]).all()
