"""One Chromium for a test run, driven from a thread of its own.

Playwright's asynchronous API runs on this thread's event loop, so the tests' own thread stays free of a
running loop (``asyncio.run`` works in a test) and every wait can be given up on: `Browser.run` is a call
with a time limit. `PageLog` is what a page said and asked for, kept for assertions and artefacts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, ConsoleMessage, Page, Request, Route, async_playwright

from demo.serve import load_config

config = load_config()
Result = TypeVar("Result")

GPU_COUNTS = Path(__file__).with_name("gpu_counts.js")


class PageLog:
    """What one page printed, which errors it had, and which addresses it wanted beyond this machine."""

    def __init__(self) -> None:
        self.console: list[str] = []
        self.errors: list[str] = []
        self.outside: list[str] = []
        self.crashed = False
        self.page: Page | None = None

    def watch(self, page: Page) -> None:
        self.page = page
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self._error(f"uncaught {error}"))
        page.on("crash", lambda _: self._crash())

    def _heard(self, message: ConsoleMessage) -> None:
        self.console.append(f"[{message.type}] {message.text}")
        if message.type == "error":
            place = message.location.get("url", "")
            self.errors.append(f"{message.text} ({place})" if place else message.text)

    def _error(self, text: str) -> None:
        self.console.append(f"[pageerror] {text}")
        self.errors.append(text)

    def _crash(self) -> None:
        self.crashed = True
        self._error("the page crashed")

    def take_errors(self, pattern: str = "") -> list[str]:
        """Remove and return the errors that match ``pattern``."""
        taken = [text for text in self.errors if re.search(pattern, text)]
        self.errors = [text for text in self.errors if text not in taken]
        return taken

    async def save(self, folder: Path) -> None:
        """Keep a screenshot and the console."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "console.log").write_text("\n".join(self.console) + "\n")
        if self.page is not None and not self.page.is_closed() and not self.crashed:
            await self.page.screenshot(path=folder / "page.png", timeout=10_000)


def _is_outside(address: str) -> bool:
    """Whether an address is on another host (``data:`` and ``blob:`` have none)."""
    return urlsplit(address).hostname not in (config.HOST, "localhost", None)


class Browser:
    """Chromium with WebGPU, started at the first page."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="playwright", daemon=True)
        self._thread.start()
        self._playwright: Any = None
        self._chromium: Any = None

    def run(self, work: Coroutine[Any, Any, Result], timeout: float = config.ACTION_TIMEOUT) -> Result:
        """Run ``work`` on the browser's loop and wait for it, at most ``timeout`` seconds."""
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), self._loop)
        try:
            return future.result(timeout + 10)
        except (TimeoutError, concurrent.futures.TimeoutError):
            future.cancel()
            raise TimeoutError(f"no answer from the browser within {timeout:g} seconds") from None

    async def new_page(self, log: PageLog) -> Page:
        """A page in a fresh context; its errors and its requests to other hosts go to ``log``."""
        if self._chromium is None or not self._chromium.is_connected():
            self._playwright = self._playwright or await async_playwright().start()
            # No name but this machine's resolves, so even a request that no route sees goes nowhere.
            nowhere = f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {config.HOST}"
            self._chromium = await config.launch(self._playwright, args=[nowhere])
        context: BrowserContext = await self._chromium.new_context(viewport=config.VIEWPORT)
        context.set_default_timeout(config.ACTION_TIMEOUT * 1000)

        async def refuse(route: Route) -> None:
            await route.abort()

        def record(request: Request) -> None:
            if _is_outside(request.url):
                log.outside.append(request.url)

        await context.route(_is_outside, refuse)
        context.on("request", record)
        await context.add_init_script(path=GPU_COUNTS)
        page = await context.new_page()
        log.watch(page)
        return page

    async def close_page(self, page: Page) -> None:
        """Close the page's context; when even that hangs, end this browser (the next page starts another)."""
        try:
            await asyncio.wait_for(page.context.close(), 10)
        except Exception:
            chromium, self._chromium = self._chromium, None
            await asyncio.wait_for(chromium.close(), 10)

    def stop(self) -> None:
        async def close() -> None:
            if self._chromium is not None:
                await self._chromium.close()
            if self._playwright is not None:
                await self._playwright.stop()

        try:
            self.run(close(), 20)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)
