"""The two levels of the NumPy executor agree on every test program, and both with float64."""

import numpy as np
import pytest
from webgrad.runtime.reference import NumpyExecutor

from tests.programs import PROGRAMS, run_program


def assert_close(found, expected, name, relative=2e-5):
    """Floats to a relative tolerance of the tensor's largest magnitude, everything else exactly."""
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape, (name, number)
        if b.dtype.kind == "f":
            scale = np.max(np.abs(b), initial=1.0, where=np.isfinite(b))
            np.testing.assert_allclose(a, b, rtol=relative, atol=relative * scale, err_msg=f"{name} [{number}]")
        else:
            np.testing.assert_array_equal(a, b, err_msg=f"{name} [{number}]")


@pytest.mark.parametrize("name", PROGRAMS)
async def test_levels_agree(name):
    oracle = await run_program(name, NumpyExecutor("graph", float64=True))
    assert_close(await run_program(name, NumpyExecutor("graph")), oracle, name)
    assert_close(await run_program(name, NumpyExecutor("schedule")), oracle, name)
