"""``make train``'s program: its last line, its screenshot, and how it ends when something is wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demo.serve import ROOT, load_config

COMMAND = [sys.executable, str(ROOT / "demo/train.py")]


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options], env=os.environ | environment, text=True, capture_output=True, timeout=120
    )


@pytest.mark.usefixtures("server")  # the wheel is built
def test_it_trains_tests_and_keeps_a_screenshot():
    began = time.time()
    done = run("--steps", "100")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"test accuracy: 0\.9\d{3}", lines[-1])
    assert lines[-2] == "screenshot: build/train.png"
    assert (ROOT / "build/train.png").stat().st_mtime > began
    assert re.search(r"^step +100/100  loss 0\.\d{4}  .* steps/s  accuracy 0\.9\d{3}$", done.stdout, re.M)
    assert any(line.startswith("compiling: ") for line in lines)


def test_a_missing_browser_is_named(tmp_path: Path):
    done = run(WEBGRAD_CHROMIUM=str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert done.stderr.startswith("train: WEBGRAD_CHROMIUM=")
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("server")
@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script in the browser's place")
def test_missing_webgpu_is_explained(tmp_path: Path):
    deaf = tmp_path / "chromium"
    deaf.write_text(
        "#!/usr/bin/env bash\n"
        'for argument in "$@"; do [[ $argument == *webgpu* ]] || kept+=("$argument"); done\n'
        f'exec "{load_config().require_chromium()}" "${{kept[@]}}" --disable-gpu --disable-features=WebGPU\n'
    )
    deaf.chmod(0o755)
    done = run(WEBGRAD_CHROMIUM=str(deaf))
    assert done.returncode == 1, done.stdout
    assert "train: No WebGPU: " in done.stderr
    assert "--enable-unsafe-webgpu" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("server")
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_ctrl_c_stops_it_and_its_browser():
    program = subprocess.Popen(
        COMMAND, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline().strip()  # it is loading the page
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does
        _, errors = program.communicate(timeout=30)
    except BaseException:
        program.kill()
        raise
    assert program.returncode == 130
    assert errors.strip() == "train: stopped"
    with pytest.raises(ProcessLookupError):  # nothing of its group lives on
        os.killpg(program.pid, 0)
