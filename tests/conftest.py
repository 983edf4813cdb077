"""What all tests share: the server, the browser, ``async`` tests, and artefacts of failed ones."""

from __future__ import annotations

import asyncio
import inspect
import re
import shutil
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from demo.serve import DevServer, load_config, load_setup

if TYPE_CHECKING:
    from tests.browser import Browser

config = load_config()


@pytest.fixture(scope="session")
def server() -> Iterator[DevServer]:
    """The development server on a free port, with an up-to-date wheel."""
    load_setup().ensure_wheel()
    with DevServer() as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The run's one Chromium."""
    from tests.browser import Browser

    running = Browser()
    yield running
    running.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run ``async def`` tests: on the browser's loop when they use its ``page``, else on a new one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    test = pyfuncitem.obj(**arguments)
    if "page" in pyfuncitem.funcargs:
        pyfuncitem.funcargs["browser"].run(test, config.CALL_TIMEOUT)
    else:
        asyncio.run(test)
    return True


def pytest_sessionstart(session: pytest.Session) -> None:
    shutil.rmtree(config.ARTIFACTS, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Keep the screenshot and the console of a failed test's page, and show the console's end."""
    report = yield
    log = getattr(item, "funcargs", {}).get("page_log")
    if report.failed and log is not None:
        folder = config.ARTIFACTS / re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")
        try:
            item.funcargs["browser"].run(log.save(folder), 15)
        except Exception as error:  # an artefact is a courtesy; the failure is what counts
            report.sections.append(("page artefacts", f"could not be kept: {error}"))
        report.sections.append((f"page console (all of it: {folder})", "\n".join(log.console[-40:])))
    return report
