"""The one place that says which browser webgrad drives, with which flags, where, and how long it waits.

Tests, ``demo/train.py`` and ``web/setup.py`` read it. The dot in the name keeps it out of ``import``;
``demo.serve.load_config()`` loads it. ``launch`` works with Playwright's sync and async APIs alike: it
returns whatever that Playwright's ``chromium.launch`` returns.

Environment
    WEBGRAD_CHROMIUM   path of the Chrome or Chromium to use, instead of looking for one
    WEBGRAD_ADAPTER    ``swiftshader`` (the default: software, the same everywhere) or ``hardware``
    WEBGRAD_HEADED     ``1`` shows the window
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
ARTIFACTS = ROOT / "test-artifacts"

CHROMIUM_VARIABLE = "WEBGRAD_CHROMIUM"
HOST = "127.0.0.1"
DEFAULT_PORT = 8300  # `make serve`; tests and `make train` take a free one
VIEWPORT = {"width": 1280, "height": 900}

# Seconds. Software rendering on a busy two-core machine sets the scale.
LAUNCH_TIMEOUT = 60.0
BOOT_TIMEOUT = 120.0
ACTION_TIMEOUT = 30.0
CALL_TIMEOUT = 120.0

QUIET_FLAGS = [
    # Nothing may reach for the network, and a page out of focus must not slow down.
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--no-first-run",
]
ADAPTER_FLAGS = {
    "swiftshader": ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"],
    "hardware": ["--enable-unsafe-webgpu", "--enable-features=Vulkan"],
}

# Evaluated in a page, this tells whether WebGPU is there: {adapter: {...}} or {problem: "..."}.
WEBGPU_PROBE = """async () => {
  if (!isSecureContext) return {problem: "the page is no secure context (use localhost or https)"};
  if (!navigator.gpu) return {problem: "the browser has no navigator.gpu"};
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) return {problem: "navigator.gpu gives no adapter"};
  const {vendor, architecture, device, description} = adapter.info;
  return {adapter: {vendor, architecture, device, description}};
}"""

WEBGPU_REMEDY = (
    "webgrad needs Chrome or Chromium 113 or newer, started with {flags}. Point {variable} at one, or "
    "run `make setup`, which installs Chromium through the system's package manager. With "
    "WEBGRAD_ADAPTER=hardware, a GPU and its Vulkan driver must be there; without it the browser's "
    "own software adapter (SwiftShader) is used."
)


class BrowserNotFound(RuntimeError):
    """No Chrome or Chromium on this machine."""


def adapter() -> str:
    """The kind of adapter asked for by WEBGRAD_ADAPTER."""
    name = os.environ.get("WEBGRAD_ADAPTER", "swiftshader")
    if name not in ADAPTER_FLAGS:
        raise ValueError(f"WEBGRAD_ADAPTER={name!r}: expected one of {', '.join(sorted(ADAPTER_FLAGS))}")
    return name


def flags() -> list[str]:
    """Chromium's command-line flags."""
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [*ADAPTER_FLAGS[adapter()], *QUIET_FLAGS, *sandbox]


def find_chromium() -> Path | None:
    """WEBGRAD_CHROMIUM, else an installed Chrome or Chromium, else Playwright's own download."""
    override = os.environ.get(CHROMIUM_VARIABLE)
    if override:
        if not Path(override).is_file():
            raise BrowserNotFound(f"{CHROMIUM_VARIABLE}={override}: there is no such file")
        return Path(override)
    for name in ("google-chrome", "google-chrome-stable", "chromium", "chromium-browser", "chrome"):
        if found := shutil.which(name):
            return Path(found)
    candidates = [*_system_places(), *_playwright_places()]
    return next((place for place in candidates if place.is_file()), None)


def _system_places() -> list[Path]:
    if sys.platform == "darwin":
        programs = [Path("/Applications"), Path.home() / "Applications"]
        names = ["Google Chrome", "Chromium"]
        return [p / f"{name}.app/Contents/MacOS/{name}" for p in programs for name in names]
    if sys.platform == "win32":
        roots = [os.environ.get(v) for v in ("PROGRAMFILES", "PROGRAMFILES(X86)", "LOCALAPPDATA")]
        return [Path(r) / "Google/Chrome/Application/chrome.exe" for r in roots if r]
    return []


def _playwright_places() -> list[Path]:
    caches = {
        "darwin": Path.home() / "Library/Caches/ms-playwright",
        "win32": Path.home() / "AppData/Local/ms-playwright",
    }
    root = Path(
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
        or caches.get(sys.platform, Path.home() / ".cache/ms-playwright")
    )
    patterns = (
        "chromium-*/chrome-linux*/chrome",
        "chromium-*/chrome-mac*/Chromium.app/Contents/MacOS/Chromium",
        "chromium-*/chrome-win*/chrome.exe",
    )
    return sorted((place for pattern in patterns for place in root.glob(pattern)), reverse=True)


def require_chromium() -> Path:
    """The browser's path; raises `BrowserNotFound` with the remedy."""
    path = find_chromium()
    if path is None:
        raise BrowserNotFound(
            f"no Chrome or Chromium found. Run `make setup` (it installs one), or install one and set "
            f"{CHROMIUM_VARIABLE} to its path."
        )
    return path


def launch(playwright: Any, **options: Any) -> Any:
    """Launch the browser with WebGPU. ``options`` go to Playwright's ``launch`` and win over these."""
    extra = options.pop("args", [])
    defaults: dict[str, Any] = {
        "executable_path": str(require_chromium()),
        "headless": os.environ.get("WEBGRAD_HEADED", "") in ("", "0"),
        "args": [*flags(), *extra],
        "timeout": LAUNCH_TIMEOUT * 1000,
    }
    return playwright.chromium.launch(**(defaults | options))


def webgpu_problem(probe: dict[str, Any]) -> str | None:
    """What is missing and how to get it, from the result of `WEBGPU_PROBE`; None when all is there."""
    if "problem" not in probe:
        return None
    needed = " ".join(ADAPTER_FLAGS[adapter()])
    return f"No WebGPU: {probe['problem']}.\n" + WEBGPU_REMEDY.format(
        flags=needed, variable=CHROMIUM_VARIABLE
    )
