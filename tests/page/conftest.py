"""Tests in the page: one Chromium and one Pyodide for all of them.

``page_py`` runs Python in the page and returns its value. It takes a function of the test file::

    def test_doubles(page_py):
        async def double(x):
            return 2 * x                    # np, wg, nn, js and keep are there; import the rest inside

        assert page_py(double, np.ones(3)).tolist() == [2, 2, 2]

or a snippet, whose keyword arguments are its variables and which may ``await`` and ``return``::

        assert page_py("return 2 * x", x=4) == 8

Values travel by pickle, so arrays, NaN, tuples and named tuples arrive as they are; an exception is raised
here as it was raised there, the page's traceback in its notes, with this file's line numbers. Further
functions and classes that the code needs go in ``uses=[...]``. The dict ``keep`` lives until the test ends.

A console error or an uncaptured GPU error fails the test that caused it; ``page_py.expect_errors(pattern)``
says that some are meant. After a time-out, a crash or a boot that failed, the next test gets a new page.
"""

from __future__ import annotations

import ast
import base64
import inspect
import pickle
import textwrap
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from demo.serve import DevServer, load_config
from tests.browser import Browser, PageLog

config = load_config()
ROOT = Path(__file__).resolve().parents[2]


class Counts(dict[str, int]):
    """Totals by name; ``after - before`` is what happened between."""

    def __sub__(self, other: dict[str, int]) -> Counts:
        return Counts({name: value - other[name] for name, value in self.items()})


class PagePython:
    """The shared page: booted at first use, and anew after it broke."""

    def __init__(self, browser: Browser, server: DevServer) -> None:
        self.browser = browser
        self.log = PageLog()
        self._address = server.url + "tests/page/harness.html"
        self._page: Any = None

    def __call__(
        self,
        code: Callable[..., Any] | str,
        *args: Any,
        uses: Sequence[Any] = (),
        timeout: float = config.CALL_TIMEOUT,
        **kwargs: Any,
    ) -> Any:
        """Run ``code`` in the page with these arguments and return its value."""
        self.boot()
        caller = inspect.stack()[1]
        request = pickle.dumps((*_source(code, uses, kwargs, caller), args, kwargs))
        text = base64.b64encode(request).decode()
        reply = pickle.loads(base64.b64decode(self.evaluate(f"app.call('run_request', '{text}')", timeout)))
        if "error" in reply:
            reply["error"].add_note("In the page:\n" + reply["traceback"])
            raise reply["error"]
        return reply["value"]

    def evaluate(self, expression: str, timeout: float = config.CALL_TIMEOUT) -> Any:
        """Evaluate JavaScript in the page and return its value (JSON)."""
        self.boot()
        try:
            return self.browser.run(self._page.evaluate(expression), timeout)
        except TimeoutError:
            self.reboot()
            raise

    def boot(self) -> None:
        """Open the page and start Python, unless it runs."""
        if self._page is not None and not self.log.crashed:
            return
        self.reboot()
        self.log.crashed = False

        async def start() -> Any:
            page = await self.browser.new_page(self.log)
            try:
                await page.goto(self._address)
                await page.evaluate("booted.then(() => null)")
            except BaseException:
                await self.browser.close_page(page)
                raise
            return page

        self._page = self.browser.run(start(), config.BOOT_TIMEOUT)

    def reload(self) -> None:
        """Load the page again: a second visit, with the same storage."""
        self.boot()

        async def again() -> None:
            await self._page.reload()
            await self._page.evaluate("booted.then(() => null)")

        self.browser.run(again(), config.BOOT_TIMEOUT)

    def reboot(self) -> None:
        """Close the page; the next call opens another."""
        page, self._page = self._page, None
        if page is not None:
            self.browser.run(self.browser.close_page(page), 30)

    def settle(self) -> None:
        """Wait for queued GPU work and for the errors it may report."""
        if self._page is not None:
            self.evaluate("globalThis.gpuCounts?.settle().then(() => null)", 30)

    def check_errors(self) -> None:
        """Raise if the page had an error that nobody expected."""
        self.settle()
        if errors := self.log.take_errors():
            raise AssertionError("the page reported errors:\n" + "\n".join(errors))

    @contextmanager
    def expect_errors(self, pattern: str) -> Iterator[list[str]]:
        """The block causes at least one console or GPU error that matches; they are put in the list."""
        found: list[str] = []
        yield found
        self.settle()
        found += self.log.take_errors(pattern)
        assert found, f"no console or GPU error matches {pattern!r}; there were: {self.log.errors}"

    def end_test(self) -> None:
        """Leave the page as the next test wants it, or leave it to be booted anew."""
        if self._page is None or self.log.crashed:
            return
        try:
            self.evaluate("app.call('end_test')", 30)
        except Exception:
            self.reboot()
            raise


def _source(
    code: Callable[..., Any] | str, uses: Sequence[Any], variables: dict[str, Any], caller: inspect.FrameInfo
) -> tuple[str, str, str]:
    """(file name, source, name of the function), each part on the line where it stands in the test file."""
    if isinstance(code, str):
        filename, name = _relative(caller.filename), "snippet"
        tree = ast.parse(textwrap.dedent(code))
        function = ast.parse(f"async def snippet({', '.join(variables)}): pass").body[0]
        assert isinstance(function, ast.AsyncFunctionDef)
        function.body = tree.body
        parts = [(1, ast.unparse(ast.fix_missing_locations(function)))]
        filename = f"<snippet of {filename}:{caller.lineno}>"
    else:
        filename, name = _relative(inspect.getsourcefile(code) or ""), code.__name__
        parts = [_lines(code)]
    parts += [_lines(used) for used in uses]
    source = ""
    for line, text in sorted(parts):
        source += "\n" * max(0, line - 1 - source.count("\n")) + text + "\n"
    return filename, source, name


def _lines(thing: Any) -> tuple[int, str]:
    """The first line and the dedented source of a function or class, without decorators of functions."""
    lines, first = inspect.getsourcelines(thing)
    while inspect.isfunction(thing) and lines[0].lstrip().startswith("@"):
        lines, first = lines[1:], first + 1
    return first, textwrap.dedent("".join(lines))


def _relative(filename: str) -> str:
    path = Path(filename)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


@pytest.fixture(scope="session")
def shared_page(browser: Browser, server: DevServer) -> Iterator[PagePython]:
    page = PagePython(browser, server)
    yield page
    page.reboot()


@pytest.fixture
def page_log(shared_page: PagePython) -> PageLog:
    shared_page.log.console.clear()
    shared_page.log.errors.clear()
    return shared_page.log


@pytest.fixture
def page_py(shared_page: PagePython, page_log: PageLog) -> Iterator[PagePython]:
    """Run Python in the page; see the top of this file."""
    shared_page.boot()
    yield shared_page
    shared_page.end_test()


@pytest.fixture
def gpu_counts(page_py: PagePython) -> Callable[[], Counts]:
    """Call it for the totals of WebGPU calls (tests/gpu_counts.js); subtract two for what lies between."""

    def totals() -> Counts:
        page_py.settle()
        return Counts(page_py.evaluate("gpuCounts.snapshot()"))

    return totals


@pytest.fixture
def proxy_counts(page_py: PagePython) -> Callable[[], Counts]:
    """Call it for the proxies that live after a garbage collection, in each direction."""

    def totals() -> Counts:
        page_py("import gc; gc.collect()")
        return Counts(page_py.evaluate("proxyCounts()"))

    return totals


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A page's errors fail the very test that caused them."""
    result = yield
    page = pyfuncitem.funcargs.get("page_py")
    if isinstance(page, PagePython) and not pyfuncitem.get_closest_marker("allow_page_errors"):
        page.check_errors()
    return result
