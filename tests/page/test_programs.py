"""Every test program on the page's adapter agrees with float64."""

from pathlib import Path

import pytest

from tests import programs
from tests.unit.test_programs import assert_close, assert_same_bits
from webgrad.runtime.reference import NumpyExecutor

SOURCE = Path(programs.__file__).read_text()


async def run_in_page(source, runner, name, adapter_class="software"):
    """Execute the programs' module once, then run one of them on WebGPU, compiled for an adapter class."""
    import dataclasses

    import __main__
    from webgrad.runtime.webgpu import open_webgpu

    if not hasattr(__main__, "test_programs"):
        __main__.test_programs = {"__name__": "test_programs"}
        exec(compile(source, "programs.py", "exec"), __main__.test_programs)
    executor = await open_webgpu()
    own = executor.target
    executor.target = dataclasses.replace(own, adapter_class=adapter_class)
    try:
        return await __main__.test_programs[runner](name, executor)
    finally:
        executor.target = own


@pytest.mark.parametrize("name", programs.PROGRAMS)
async def test_page_agrees_with_float64(page_py, name):
    expected = await programs.run_program(name, NumpyExecutor("graph", float64=True))
    assert_close(page_py(run_in_page, SOURCE, "run_program", name), expected, name, relative=1e-4)


@pytest.mark.parametrize("name", programs.SPECIALS)
async def test_special_values_are_the_same_bits(page_py, name):
    expected = await programs.run_special(name, NumpyExecutor("graph"))
    assert_same_bits(page_py(run_in_page, SOURCE, "run_special", name), expected, name)


#: programs whose reductions run one workgroup a row on hardware adapters, or whose products are tiled there
WORKGROUPS = [
    "long sum",
    "long rows",
    "sums",
    "any and all",
    "softmax",
    "long softmax",
    "cross entropy",
    "attention",
    "matmul tall",
    "matmul large",
    "convnet",
]


@pytest.mark.parametrize("name", WORKGROUPS)
async def test_kernels_for_hardware_adapters_compute_the_same(page_py, name):
    expected = await programs.run_program(name, NumpyExecutor("graph", float64=True))
    found = page_py(run_in_page, SOURCE, "run_program", name, "hardware")
    assert_close(found, expected, name, relative=1e-4)


@pytest.mark.parametrize("name", ["long reductions"])
async def test_special_values_on_hardware_adapters(page_py, name):
    expected = await programs.run_special(name, NumpyExecutor("graph"))
    assert_same_bits(page_py(run_in_page, SOURCE, "run_special", name, "hardware"), expected, name)
