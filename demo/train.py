"""``make train``: train on MNIST in a headless Chromium, on the page's WebGPU, and watch from the terminal.

    python demo/train.py [--model mlp|cnn] [--seed 0] [--steps N]

It opens the digits page as a person would, presses Start, shows what the page shows, and keeps a
screenshot. The last line is the accuracy on the 10,000 test images, by which nothing was chosen. Exit status:
0; 1 after a failure (the message says what is missing); 130 after Ctrl+C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from playwright.async_api import Error, Page, async_playwright
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeElapsedColumn
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from demo.serve import DevServer, load_config  # noqa: E402

config = load_config()
SCREENSHOT = ROOT / "build" / "train.png"
PATIENCE = 60.0  # seconds without any change after which the page counts as hung

# What the page shows at this moment; nothing but this is asked of it.
GLANCE = """() => ({
  state: document.body.dataset.state ?? "loading",
  message: document.querySelector("#loader [role=status]")?.textContent ?? "",
  failure: document.querySelector(".failure .what")?.textContent,
  traceback: document.querySelector(".failure pre")?.textContent ?? "",
  adapter: document.querySelector("#adapter").textContent,
  device: document.querySelector("#adapter").dataset.kind,
  training: document.body.dataset.training,
  report: globalThis.demo?.report() ?? {},
})"""


class Failure(RuntimeError):
    """What keeps training from ending well, in words for the person."""


class Figures(ProgressColumn):
    """Step, loss, speed and accuracy, or what is being loaded."""

    def render(self, task: Task) -> Text:
        return Text(figures(task.fields["report"]) or task.fields["message"])


def figures(report: dict[str, Any]) -> str:
    """A report of the page in one line; the accuracy is that on held-out training images."""
    if "loss" not in report:
        return ""
    parts = [f"step {report['step']:>4}/{report['goal']}", f"loss {report['loss']:.4f}"]
    parts += [f"{report['speed']:5.1f} steps/s"]
    parts += [f"accuracy {report['held_out']:.4f}"] if "held_out" in report else []
    return "  ".join(parts)


async def glances(page: Page, until: Any) -> AsyncIterator[dict[str, Any]]:
    """What the page shows, several times a second, until ``until(seen)``; raises `Failure` when it fails."""
    last, changed = None, time.monotonic()
    while True:
        try:
            seen = await asyncio.wait_for(page.evaluate(GLANCE), PATIENCE)
        except TimeoutError:
            raise Failure(f"the page did not answer for {PATIENCE:g} seconds") from None
        except Error as error:
            raise Failure(f"the browser or its page crashed: {error.message.splitlines()[0]}") from None
        if seen["failure"]:
            raise Failure(f"the page says {seen['failure']}\n{seen['traceback']}".rstrip())
        yield seen
        if until(seen):
            return
        if seen != last:
            last, changed = seen, time.monotonic()
        elif time.monotonic() - changed > PATIENCE:
            doing = f"at step {seen['report']['step']}" if seen["report"] else seen["message"] or "loading"
            raise Failure(f"nothing happened in the page for {PATIENCE:g} seconds ({doing})")
        await asyncio.sleep(0.2)


async def watch(page: Page, address: str, console: Console) -> float:
    """Open the digits page, train, and show how it goes; returns the test accuracy."""
    await page.goto(address)
    if problem := config.webgpu_problem(await page.evaluate(config.WEBGPU_PROBE)):
        raise Failure(problem)

    def log(line: str) -> None:
        if not console.is_terminal:  # where no bar can move
            print(line, flush=True)

    columns = (BarColumn(10), Figures(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None, message="", report={})
        message = ""
        async for seen in glances(page, lambda seen: seen["state"] == "ready"):
            if seen["message"] != message:
                message = seen["message"]
                progress.update(bar, message=message)
                log(message)
        if seen["device"] != "gpu":
            raise Failure(f"the page has WebGPU, but its Python computes with {seen['adapter']}")
        adapter = seen["adapter"]

        await page.click("#toggle")
        began, spent, logged = time.monotonic(), 0.0, 0
        async for seen in glances(page, lambda seen: "test" in seen["report"]):
            report = seen["report"]
            if not report:
                continue
            progress.update(bar, completed=report["step"], total=report["goal"], report=report)
            if report["step"] < report["goal"]:
                spent = time.monotonic() - began
            if report["step"] - logged >= 200:
                logged = report["step"]
                log(figures(report))

    SCREENSHOT.parent.mkdir(exist_ok=True)
    await page.screenshot(path=SCREENSHOT, full_page=True)
    print(figures(report))
    print(f"trained with {adapter} for {spent:.0f} s")
    print(f"screenshot: {SCREENSHOT.relative_to(ROOT)}")
    return float(report["test"])


async def train(options: argparse.Namespace, console: Console) -> float:
    """Serve the project, start Chromium and train in it; returns the test accuracy."""
    with DevServer() as server:
        address = f"{server.url}demo/digits/?model={options.model}&seed={options.seed}&steps={options.steps}"
        async with async_playwright() as playwright:
            try:
                browser = await config.launch(playwright, handle_sigint=False)
            except Error as error:
                raise Failure(f"Chromium did not start: {error.message.splitlines()[0]}") from None
            try:
                page = await browser.new_page(viewport=config.VIEWPORT)
                return await watch(page, address, console)
            finally:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(browser.close(), 10)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train on MNIST in a headless Chromium, on WebGPU.")
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and of the images' order")
    parser.add_argument("--steps", type=int, default=0, help="a shorter training (default: its epochs)")
    options = parser.parse_args(arguments)
    try:
        accuracy = asyncio.run(train(options, Console()))
    except (Failure, config.BrowserNotFound, ValueError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    except (Error, OSError) as error:
        print(f"train: the browser failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("train: stopped", file=sys.stderr)
        return 130
    print(f"test accuracy: {accuracy:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
