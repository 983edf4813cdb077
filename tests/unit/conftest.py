"""Fixtures of the unit tests: nothing here needs a browser."""

from __future__ import annotations

import pytest

from webgrad.runtime.reference import NumpyExecutor


@pytest.fixture(params=["graph", "schedule"])
def device(request):
    """A NumPy executor of its own, at each of the two levels."""
    return NumpyExecutor(request.param)
