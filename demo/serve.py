"""The development server: serves the pages, their Python and ``web/`` to a browser on this machine.

    python demo/serve.py [--port 8300]

Tests and ``demo/train.py`` start it in a thread on a free port::

    with DevServer() as server:
        page.goto(server.url + "demo/sine/")

It sends the headers that cross-origin isolation needs (PyScript workers touch the DOM through shared
memory), never lets a browser keep a stale source, and rebuilds webgrad's wheel when a page asks for
it and the package changed: edit, reload, see.
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import sys
import threading
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SERVED = ("demo", "web", "tests", "bench")  # folders of the repository that a page may ask for


def load_module(path: Path, name: str) -> ModuleType:
    """Import a file that is no package's module, once."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def load_config() -> Any:
    """The module ``playwright.config.py``."""
    return load_module(ROOT / "playwright.config.py", "webgrad_playwright_config")


def load_setup() -> Any:
    """The module ``web/setup.py``."""
    return load_module(ROOT / "web" / "setup.py", "webgrad_web_setup")


def demos() -> list[str]:
    """Addresses of the demo pages, relative to the server's root."""
    pages = sorted(ROOT.glob("demo/*/index.html")) + sorted(ROOT.glob("demo/load/*.html"))
    return [str(p.relative_to(ROOT).as_posix()).removesuffix("index.html") for p in pages]


class Handler(SimpleHTTPRequestHandler):
    """Static files of the allowed folders, with the right types and headers."""

    protocol_version = "HTTP/1.1"
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".json": "application/json",
        ".py": "text/x-python; charset=utf-8",
        ".wasm": "application/wasm",
        ".whl": "application/zip",
        ".wgsl": "text/plain; charset=utf-8",
    }
    quiet = True

    def do_GET(self) -> None:
        self.respond(super().do_GET)

    def do_HEAD(self) -> None:
        self.respond(super().do_HEAD)

    def respond(self, serve_file: Any) -> None:
        path = unquote(urlsplit(self.path).path)
        parts = [part for part in path.split("/") if part]
        if parts == ["favicon.ico"]:
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
        elif not parts and not (ROOT / "demo/index.html").exists():
            self.send_page(index_page())
        elif not parts:
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", "/demo/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif parts[0] not in SERVED or any(p.startswith(".") or p == "node_modules" for p in parts):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            if parts[:2] == ["web", "vendor"] and parts[2:3] in (["manifest.json"], ["wheels"]):
                refresh_wheel()
            serve_file()

    def send_page(self, text: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        if not self.quiet:
            super().log_message(format, *arguments)


_wheel_lock = threading.Lock()


def refresh_wheel() -> None:
    """Rebuild the wheel if the package changed; a failure is told and the old wheel served."""
    with _wheel_lock:
        try:
            load_setup().ensure_wheel()
        except RuntimeError as error:
            print(f"serve: {error}", file=sys.stderr)


def index_page() -> str:
    rows = "\n".join(f'<li><a href="/{html.escape(d)}">{html.escape(d)}</a></li>' for d in demos())
    return f"<!doctype html><meta charset=utf-8><title>webgrad demos</title><h1>webgrad</h1><ul>{rows}</ul>"


class Server(ThreadingHTTPServer):
    """A threading server that neither waits for idle connections nor complains of closed ones."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class DevServer:
    """The server in a thread: ``with DevServer() as server: server.url``. Port 0 is a free one."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self._server = Server((host, port), partial(Handler, directory=str(ROOT)))
        self._thread = threading.Thread(target=self._server.serve_forever, name="webgrad-server", daemon=True)
        self.url = f"http://{host}:{self._server.server_address[1]}/"

    def __enter__(self) -> DevServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Serve until interrupted."""
        while self._thread.is_alive():
            self._thread.join(0.5)


def main() -> int:
    config = load_config()
    parser = argparse.ArgumentParser(description="Serve webgrad's demos on this machine.")
    parser.add_argument("--port", type=int, help=f"default {config.DEFAULT_PORT}, or a free one if taken")
    parser.add_argument("--verbose", action="store_true", help="log each request")
    options = parser.parse_args()
    Handler.quiet = not options.verbose
    try:
        server = DevServer(options.port if options.port is not None else config.DEFAULT_PORT, config.HOST)
    except OSError as error:
        if options.port is not None:
            print(f"serve: port {options.port}: {error.strerror}", file=sys.stderr)
            return 1
        server = DevServer(0, config.HOST)
    with server:
        print(f"webgrad demos at {server.url}  (Ctrl+C stops)")
        for demo in demos():
            print(f"  {server.url}{demo}")
        try:
            server.wait()
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
