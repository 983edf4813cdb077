"""The repository keeps its promises: a small wheel with what it needs, and files that name no machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import zipfile

import pytest

from demo.serve import ROOT, DevServer, load_config, load_setup


@pytest.fixture(scope="module")
def wheel():
    with zipfile.ZipFile(load_setup().ensure_wheel()) as archive:
        yield archive


def test_the_wheel_is_small(wheel):
    assert sum(entry.compress_size for entry in wheel.infolist()) < 220_000


def test_the_wheel_carries_the_bridge_and_the_type_marker(wheel):
    names = set(wheel.namelist())
    assert {"webgrad/__init__.py", "webgrad/bridge.mjs", "webgrad/py.typed"} <= names
    assert all(name.startswith(("webgrad/", "webgrad-")) for name in names)
    assert wheel.read("webgrad/bridge.mjs") == (ROOT / "web/bridge.mjs").read_bytes()


def test_the_wheel_needs_numpy_alone(wheel):
    (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    required = re.findall(r"^Requires-Dist: (.*)$", wheel.read(metadata).decode(), re.MULTILINE)
    assert [line.split(">")[0] for line in required if "extra ==" not in line] == ["numpy"]


def test_the_npm_lock_names_no_host():
    assert not re.findall(r'"[^"]*://[^"]*"', (ROOT / "web/package-lock.json").read_text())


def test_the_vendored_lock_names_the_files_beside_it():
    folder = ROOT / "web/vendor/pyodide"
    packages = json.loads((folder / "pyodide-lock.json").read_text())["packages"]
    assert set(packages) == {"numpy", "micropip", "packaging"}
    for entry in packages.values():
        assert load_setup().sha256(folder / entry["file_name"]) == entry["sha256"]


def test_boot_and_the_vendored_pyodide_are_of_one_version():
    version = json.loads((ROOT / "web/package.json").read_text())["devDependencies"]["pyodide"]
    assert f'PYODIDE_VERSION = "{version}"' in (ROOT / "web/boot.mjs").read_text()


def test_the_override_variable_must_name_a_file(monkeypatch):
    config = load_config()
    monkeypatch.setenv(config.CHROMIUM_VARIABLE, str(ROOT / "no-such-browser"))
    with pytest.raises(config.BrowserNotFound, match="no such file"):
        config.find_chromium()


def test_missing_webgpu_is_explained():
    config = load_config()
    assert config.webgpu_problem({"adapter": {"vendor": "any"}}) is None
    message = config.webgpu_problem({"problem": "the browser has no navigator.gpu"})
    assert "no navigator.gpu" in message
    assert "--enable-unsafe-webgpu" in message
    assert config.CHROMIUM_VARIABLE in message


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("web/boot.mjs", 200, "text/javascript"),
        ("web/vendor/pyodide/pyodide.asm.wasm", 200, "application/wasm"),
        ("demo/load/tiny.py", 200, "text/x-python; charset=utf-8"),
        ("favicon.ico", 204, None),
        ("pyproject.toml", 404, None),
        ("web/../pyproject.toml", 404, None),
        ("web/%2e%2e/pyproject.toml", 404, None),
        (".git/config", 404, None),
        ("web/.npmrc", 404, None),
        ("web/node_modules/pyodide/package.json", 404, None),
    ],
)
def test_the_server_sends_what_pages_need_and_no_more(server: DevServer, path, status, kind):
    from http.client import HTTPConnection

    host = server.url.removeprefix("http://").rstrip("/")
    connection = HTTPConnection(host, timeout=5)
    connection.request("GET", f"/{path}")
    answer = connection.getresponse()
    assert answer.status == status
    assert kind is None or answer.getheader("Content-Type") == kind
    assert answer.getheader("Cross-Origin-Opener-Policy") == "same-origin"
    assert answer.getheader("Cross-Origin-Embedder-Policy") == "require-corp"
    connection.close()


def test_the_import_stays_light():
    """``python -c "import webgrad"`` as a whole takes 0.2 s on an idle machine; this only guards against a
    heavy import creeping in, for tests run on busy machines too.
    """
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import webgrad"], check=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 1.0
