"""Tests of the pages as a person uses them: a fresh page a test, and nothing but this machine.

Tests are ``async def`` and use Playwright's ``page``. Requests to any other host are refused and recorded;
a test fails when one was attempted, or when the page reported an error that the test did not take out of
``page_log`` (``page_log.take_errors(pattern)``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from playwright.async_api import Page

from demo.serve import DevServer
from tests.browser import Browser, PageLog


@pytest.fixture
def base_url(server: DevServer) -> str:
    return server.url


@pytest.fixture
def page_log() -> PageLog:
    return PageLog()


@pytest.fixture
def page(browser: Browser, server: DevServer, page_log: PageLog) -> Iterator[Page]:
    """A page in a fresh context."""
    fresh = browser.run(browser.new_page(page_log), 90)
    yield fresh
    browser.run(browser.close_page(fresh), 30)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """The page's errors and its requests to other hosts fail the test that caused them."""
    result = yield
    log = pyfuncitem.funcargs.get("page_log")
    if isinstance(log, PageLog):
        assert not log.outside, f"the page asked for addresses beyond this machine: {log.outside}"
        assert not log.errors, "the page reported errors:\n" + "\n".join(log.errors)
    return result
