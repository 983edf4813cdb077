# webgrad: each target does all of its own set-up and redoes only what changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VENV_STAMP := $(VENV)/.stamp

.PHONY: help setup train serve test bench lint clean

help:
	@echo "make train   train on MNIST in a headless Chromium, on the page's WebGPU"
	@echo "make test    run every test"
	@echo "make serve   serve the demos to your own browser"
	@echo "make bench   measure webgrad against its peers (ARGS=--quick for a short run)"
	@echo "make lint    ruff and mypy"
	@echo "make clean   remove everything that the other targets made"

setup: $(VENV_STAMP)
	@$(BIN)/python web/setup.py

train: setup
	@$(BIN)/python demo/train.py

serve: setup
	@$(BIN)/python demo/serve.py

test: setup
	@$(BIN)/python -m pytest

bench: setup
	@$(BIN)/python -m bench $(ARGS)

lint: $(VENV_STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

clean:
	rm -rf $(VENV) web/node_modules web/vendor bench/node_modules bench/dist build dist test-artifacts
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV_STAMP): pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
	  echo "setup: Python 3.11 or newer is needed (set PYTHON=... to choose one)" >&2; exit 1; }
	@echo "setup: Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "setup: python's venv module is missing (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
