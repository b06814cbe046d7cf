# `make` or `make help` lists the targets. Everything runs from .venv, which `setup` makes.

PYTHON ?= python3
TORCH  := 2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
TIERS  := bash scripts/tiers.sh
# The name carries the pin, so another pin means another setup.
STAMP  := $(VENV)/.setup-torch-$(TORCH)

TORCH_VERSION := $(BIN)/python -c "from importlib.metadata import version; print(version('torch'))"

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-python-emitter test-torch test-slow test-ray test-flower fuzz lint docs clean \
  bench bench-real bench-cores bench-w3 bench-methods bench-layers bench-seeds bench-memory bench-scaling bench-peers bench-ray bench-flower

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## make .venv with pinned versions (again when a pin changes)

$(STAMP): pyproject.toml requirements/ci.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "setup: $(PYTHON) is not Python 3.11 or newer; try make setup PYTHON=python3.12" >&2; exit 1; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV) || \
	  { echo "setup: $(PYTHON) cannot make a virtual environment (on Debian: install python3-venv)" >&2; exit 1; }
	@rm -f $(VENV)/.setup-torch-*
	@echo "setup: torch $(TORCH)"
	@$(PIP) install -q torch==$(TORCH) -c requirements/ci.txt || \
	  { echo "setup: torch==$(TORCH) could not be installed; shoal is tested with exactly that version, and pip says above why it cannot be had here" >&2; exit 1; }
	@$(TORCH_VERSION) > $(VENV)/.torch-version
	@echo "setup: requirements/ci.txt"
	@$(PIP) install -q --no-deps -r requirements/ci.txt
	@echo "setup: shoal itself"
	@$(PIP) install -q --no-deps --no-build-isolation -e .
	@after="$$($(TORCH_VERSION))"; before="$$(cat $(VENV)/.torch-version)"; \
	  case "$$after" in $(TORCH)|$(TORCH)+*) ;; *) before=mismatch ;; esac; \
	  [ "$$after" = "$$before" ] || \
	  { echo "setup: torch is now $$after, not the $(TORCH) that was installed first; a pin in requirements/ci.txt replaced it" >&2; exit 1; }
	@$(PIP) check -q || \
	  { $(PIP) check; echo "setup: the pins contradict each other, see above" >&2; exit 1; }
	@touch $@

demo: setup ## two minutes: a small drifting federation, a table and a picture
	@$(BIN)/shoal demo

# Two workers on one thread each: torch's own threads would only fight over the cores. Devices have processes of
# their own: torch does not take a new device after its first gradient.
test: setup ## unit tests and laws, doctests, kills of runs, a minute of the fuzzer
	@$(TIERS) \
	  "unit and laws" 'OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not kill and not slow" --ignore tests/devices' \
	  "devices"       'OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/devices' \
	  "doctests"      '$(BIN)/python -m pytest -q --doctest-modules shoal' \
	  "fuzz"          'OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --first 1 --count 40' \
	  "kills"         '$(BIN)/python -m pytest -q -m kill'

test-python-emitter: setup ## engines and their laws where torch has no TorchScript
	@$(TIERS) "without TorchScript" 'SHOAL_TORCHSCRIPT=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest \
	  -q -n 2 tests/laws/test_engines.py tests/engines'

# An environment per version of torch, beside $(VENV), which it leaves alone. Pins come first and torch last,
# since another version may want another sympy. pip's own settings say where torch comes from: on Linux its
# usual index brings gigabytes for GPUs, an index of CPU builds does not. An environment that somebody made by
# hand, with this version of torch in it, keeps that build.
VERSION   ?= $(TORCH)
TORCH_ENV := .torch/$(VERSION)
TORCH_PIP := $(TORCH_ENV)/bin/python -m pip --disable-pip-version-check
TORCH_IS  := $(TORCH_ENV)/bin/python -c 'import sys, torch; sys.exit(torch.__version__.split("+")[0] != "$(VERSION)")'

test-torch: $(TORCH_ENV)/.complete ## engines, laws and worked examples on another torch, in .torch (VERSION=2.8.0)
	@$(TIERS) \
	  "engines"  'OMP_NUM_THREADS=1 $(TORCH_ENV)/bin/python -m pytest -q -n 2 -m "not kill and not slow" \
	    tests/engines tests/models tests/core/test_layout.py' \
	  "examples" 'OMP_NUM_THREADS=1 $(TORCH_ENV)/bin/python -m pytest -q -m "not kill and not slow" tests/papers/worked_examples' \
	  "laws"     'OMP_NUM_THREADS=1 $(TORCH_ENV)/bin/python -m pytest -q -n 2 -m "not kill and not slow" tests/laws'

$(TORCH_ENV)/.complete: pyproject.toml requirements/ci.txt
	@[ -x $(TORCH_ENV)/bin/pip ] || $(PYTHON) -m venv $(TORCH_ENV)
	@echo "test-torch: torch $(VERSION) and requirements/ci.txt, in $(TORCH_ENV)"
	@$(TORCH_PIP) install -q --no-deps -r requirements/ci.txt
	@$(TORCH_IS) 2>/dev/null || $(TORCH_PIP) install -q torch==$(VERSION)
	@$(TORCH_PIP) install -q --no-deps --no-build-isolation -e .
	@$(TORCH_IS) || { echo "test-torch: $(TORCH_ENV) does not have torch $(VERSION)" >&2; exit 1; }
	@touch $@

test-slow: setup ## the tests that are too slow for every commit, with what only they install
	@$(PIP) install -q -r requirements/extra.txt -c requirements/ci.txt
	@$(TIERS) "slow" '$(BIN)/python -m pytest -q -m "slow and not kill" --ignore tests/flower --ignore tests/cluster' \
	  "loggers" '$(BIN)/python -m pytest -q tests/reports/loggers' \
	  "peft"    'OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/laws/test_own_networks.py -k peft'

test-ray: setup ## clusters on loopback: same bits, faults, nodes that come and go
	@$(PIP) install -q -r requirements/extra.txt -c requirements/ci.txt
	@$(TIERS) "ray" 'OMP_NUM_THREADS=1 $(BIN)/python scripts/loopback.py $(BIN)/python -m pytest -q tests/cluster'

test-flower: setup ## real federations: processes, TLS, faults
	@$(TIERS) "flower" 'OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s tests/flower -m "slow or kill"'

# Minutes, and the first seed, which is the time of day unless said.
MINUTES ?= 60
SEED ?= $(shell date +%s)

fuzz: setup ## random runs against laws, an hour of them (MINUTES=, SEED= for the first)
	@OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --minutes $(MINUTES) --first $(SEED)

lint: setup ## ruff, mypy --strict, import layers
	@$(TIERS) \
	  "ruff check"  '$(BIN)/ruff check .' \
	  "ruff format" '$(BIN)/ruff format --check .' \
	  "mypy"        '$(BIN)/mypy --strict shoal' \
	  "imports"     '$(BIN)/lint-imports'

bench: setup ## shoal beside bare loops on small networks, one line per workload
	@$(BIN)/python -m benchmarks.run

bench-real: setup ## the same on networks that people train
	@$(BIN)/python -m benchmarks.real

bench-cores: setup ## two threads against one, and what 16 and 64 cores could bring at most
	@$(BIN)/python -m benchmarks.cores

bench-w3: setup ## how near the convolutional workload comes to a matrix product's rate
	@$(BIN)/python -m benchmarks.roofline_w3

bench-methods: setup ## what a method costs beside FedAvg
	@$(BIN)/python -m benchmarks.methods

bench-layers: setup ## what dropout, augmentation and a frozen body cost
	@$(BIN)/python -m benchmarks.layers

bench-seeds: setup ## three seeds against one, as whole commands
	@$(BIN)/python -m benchmarks.seeds

bench-memory: setup ## peak memory beside the bare loop's, and growth over the rounds
	@$(BIN)/python -m benchmarks.memory

bench-scaling: setup ## how a round grows with clients, members and parameters
	@$(BIN)/python -m benchmarks.scaling

bench-peers: setup ## shoal beside Flower, pfl, fedjax and JAX, each installed in .peers
	@$(BIN)/python -m benchmarks.peers.race

bench-ray: setup ## a round on a Ray cluster of this machine, its cost and a model of it
	@$(BIN)/python -m benchmarks.cluster

bench-flower: setup ## rounds per second of a real federation beside plain Flower's FedAvg
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s tests/flower/test_speed.py

docs: setup ## build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q && echo build/site/index.html

clean: ## remove caches and build output (.venv and runs stay)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	@find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
