"""Fixtures of the unit tests: nothing here needs a browser."""

from __future__ import annotations

import pytest

from webgrad import storage
from webgrad.compiler import check
from webgrad.runtime.reference import NumpyExecutor


@pytest.fixture(params=["graph", "schedule"])
def device(request):
    """A NumPy executor of its own, at each of the two levels."""
    return NumpyExecutor(request.param)


@pytest.fixture(autouse=True, scope="session")
def every_program_is_checked():
    """Whatever a test compiles goes through `webgrad.compiler.check`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "wanted", lambda: True)
        yield


@pytest.fixture(autouse=True, scope="session")
def nothing_is_remembered():
    """No test meets what another one, or another run, left in the cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(storage.VARIABLE, "off")
        yield
