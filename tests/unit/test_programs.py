"""The two levels of the NumPy executor agree on every test program, and both with float64."""

import numpy as np
import pytest

from tests.programs import PROGRAMS, SPECIALS, run_program, run_special
from webgrad.runtime.reference import NumpyExecutor


def assert_close(found, expected, name, relative=2e-5):
    """Floats to a relative tolerance of the tensor's largest magnitude, everything else exactly."""
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape, (name, number)
        if b.dtype.kind == "f":
            scale = np.max(np.abs(b), initial=1.0, where=np.isfinite(b))
            np.testing.assert_allclose(
                a, b, rtol=relative, atol=relative * scale, err_msg=f"{name} [{number}]"
            )
        else:
            np.testing.assert_array_equal(a, b, err_msg=f"{name} [{number}]")


@pytest.mark.parametrize("name", PROGRAMS)
async def test_levels_agree(name):
    oracle = await run_program(name, NumpyExecutor("graph", float64=True))
    assert_close(await run_program(name, NumpyExecutor("graph")), oracle, name)
    assert_close(await run_program(name, NumpyExecutor("schedule")), oracle, name)


def assert_same_bits(found, expected, name):
    """Equal values, NaN with NaN, and the same sign of zero."""
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"{name} [{number}]")
        if b.dtype.kind == "f":
            number_of = ~np.isnan(b)
            np.testing.assert_array_equal(
                np.signbit(a)[number_of], np.signbit(b)[number_of], err_msg=f"signs of {name} [{number}]"
            )


@pytest.mark.parametrize("name", SPECIALS)
async def test_special_values_agree(name):
    expected = await run_special(name, NumpyExecutor("graph"))
    assert_same_bits(await run_special(name, NumpyExecutor("schedule")), expected, name)
