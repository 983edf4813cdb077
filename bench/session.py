"""A Chromium with the benchmark's page, in a profile of its own, and what is said to it.

``async with Session(...) as session: await session.call("steps", "jax-js", "W1", 20, 1500)`` calls a function
of `bench/page.mjs`. Arrays travel there as text.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from playwright.async_api import Error, async_playwright

from bench import yardstick
from bench.workloads import PRODUCTS, WORKLOADS, batches, initial_params, operands
from demo.serve import load_config

config = load_config()
GPU_COUNTS = Path(__file__).resolve().parent.parent / "tests" / "gpu_counts.js"
LIMIT = 300.0  # seconds that one call may take

HEADS = 4  # of W3 and W6
COUNTED_FROM = {"W6": 5}  # the loss counts only the digits of the sum


class PageError(RuntimeError):
    """What went wrong in the page, or in the browser."""


class PageHung(PageError):
    """The page does not answer or has crashed: nothing more can be asked of it."""


class Session:
    """One browser with one page; gone, with its profile, at the end of the block."""

    def __init__(self, address: str, wheel: str) -> None:
        self.address, self.wheel = address, wheel
        self.errors: list[str] = []

    async def __aenter__(self) -> Session:
        self._playwright = await async_playwright().start()
        try:
            self._browser = await config.launch(self._playwright, handle_sigint=False)
            page = await self._browser.new_page(viewport=config.VIEWPORT)
            page.on("pageerror", lambda error: self.errors.append(str(error)))
            page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
            await page.add_init_script(path=GPU_COUNTS)
            await page.goto(f"{self.address}bench/page.html")
            await page.wait_for_function("globalThis.bench")
            self._page = page
            if problem := config.webgpu_problem(probe := await page.evaluate(config.WEBGPU_PROBE)):
                raise PageError(problem)
            self.adapter: dict[str, Any] = probe["adapter"]
            self.browser: str = self._browser.version
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if hasattr(self, "_browser"):
            with contextlib.suppress(Error, TimeoutError):  # one that hangs goes with Playwright's driver
                await asyncio.wait_for(self._browser.close(), 20)
        await self._playwright.stop()

    async def call(self, function: str, *arguments: Any, limit: float = LIMIT) -> Any:
        """Call a function of the page. Raises `PageError` with what the page says, or `PageHung`."""
        self.errors.clear()
        expression = "([name, given]) => bench[name](...given)"
        try:
            result = await asyncio.wait_for(
                self._page.evaluate(expression, [function, list(arguments)]), limit
            )
        except TimeoutError:
            raise PageHung(f"{function}{arguments[:2]}: no answer within {limit:g} s") from None
        except Error as error:
            kind = PageHung if self._page.is_closed() or "crash" in error.message.lower() else PageError
            raise kind("\n".join([error.message.strip(), *self.errors])[:2000]) from None
        if self.errors:
            raise PageError("\n".join(self.errors)[:2000])
        return result

    async def expose(self, name: str, function: Callable[[], Any]) -> None:
        """Let the page call ``await <name>()``."""
        await self._page.expose_function(name, function)

    async def open(self, system: str) -> None:
        """Start a system's library."""
        await self.call("open", system, {"wheel": f"/bench/dist/{self.wheel}"})


def task(name: str) -> dict[str, Any]:
    """What the page needs of a workload: arrays and settings."""
    w = WORKLOADS[name]
    return {
        "params": _encode_all(initial_params(name)),
        "batches": [_encode_all(batch) for batch in batches(name)],
        "optimizer": {"weight_decay": 0.0, "clip_norm": None, **w.optimizer.hyper()},
        "heads": HEADS,
        "start": COUNTED_FROM.get(name, 0),
    }


def product(name: str) -> dict[str, Any]:
    """What the page needs of a product. A square one is chained, so that only its last result is read."""
    p = PRODUCTS[name]
    pair = [_encode(array) for array in operands(p)]
    plain = {
        f"{rows},{vectors}": {
            "code": yardstick.text(p, rows, vectors),
            "workgroups": yardstick.workgroups(p, rows, vectors),
        }
        for rows, vectors in yardstick.BLOCKS.values()
    }
    return {**dataclasses.asdict(p), "chained": p.m == p.k == p.n, "operands": pair, "yardstick": plain}


def _encode(array: NDArray[Any]) -> dict[str, Any]:
    text = base64.b64encode(array.tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": text}


def _encode_all(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: _encode(array) for name, array in arrays.items()}
