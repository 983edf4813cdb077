"""The peers' bundles in ``bench/dist``, made anew when a source or a version changed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from demo.serve import load_setup

BENCH = Path(__file__).resolve().parent
MODULES = BENCH / "node_modules"
DIST = BENCH / "dist"
BUNDLED = ["peers/jax.mjs", "peers/tfjs.mjs"]
OPTIONS = [
    "--bundle",
    "--minify",
    "--format=esm",
    "--target=es2022",
    "--platform=browser",
    "--log-level=error",
]


def ensure_bundles() -> None:
    """Install the peers from npm and bundle them, unless that is done."""
    setup = load_setup()
    lock = (BENCH / "package-lock.json").read_bytes()
    sources = b"".join((BENCH / name).read_bytes() for name in BUNDLED)
    digest = hashlib.sha256(lock + sources + repr(OPTIONS).encode()).hexdigest()
    stamp = DIST / ".stamp"
    if stamp.exists() and stamp.read_text() == digest:
        return
    installed = MODULES / ".webgrad-lock"
    if not installed.exists() or installed.read_bytes() != lock:
        if not shutil.which("npm"):
            raise setup.SetupError(
                "npm is missing: install Node.js 20 or newer (Debian: apt-get install npm)"
            )
        setup.say("npm ci (the benchmark's peers)")
        setup.run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=BENCH)
        installed.write_bytes(lock)
    setup.say("bundling the benchmark's peers")
    esbuild = MODULES / ".bin" / "esbuild"
    setup.run(str(esbuild), *BUNDLED, *OPTIONS, "--outdir=dist", "--out-extension:.js=.mjs", cwd=BENCH)
    stamp.write_text(digest)


def copy_wheel() -> str:
    """A copy of webgrad's wheel for this run; returns its name in ``bench/dist``."""
    wheel: Path = load_setup().ensure_wheel()
    DIST.mkdir(exist_ok=True)
    shutil.copyfile(wheel, DIST / wheel.name)
    return wheel.name


def versions() -> dict[str, str]:
    """Versions of the peers."""
    packages = json.loads((BENCH / "package-lock.json").read_text())["packages"]
    names = {"jax-js": "@jax-js/jax", "tfjs": "@tensorflow/tfjs-backend-webgpu"}
    return {system: packages[f"node_modules/{package}"]["version"] for system, package in names.items()}
