# make help says what there is. Exit codes come from the commands: make itself ends with 2 for any recipe that fails.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

# What builds the environment. PYTHON is any CPython from 3.11 to 3.13. TORCH is what pip is asked for, options included: on a
# machine with an NVIDIA driver TORCH=torch may be wanted, without one the small build of PyTorch's CPU index.
PYTHON ?= python3
TORCH ?= torch==2.13.0
EXTRAS := numerics,kernels,exports,configs,test
VENV ?= .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
JOBS ?= 2

# make validate NAME=value: these reach the notebooks, and only when given on make's own command line. (Names like ENV and GPU
# are set for other purposes in many shells.) $(value) keeps make from expanding a $ in them, the quotes keep the shell from it.
PARAMETERS := CHECKPOINT SGLANG RUNNER A2A QUANTIZATION TP EP DP GPU ENV LAUNCH EXPECT ORACLE ORIGINAL
lower = $(shell printf %s $1 | tr A-Z a-z)
quoted = '$(subst ','\'',$(value $1))'
given = $(strip $(foreach name,$(PARAMETERS),$(if $(filter command,$(origin $(name))),-p $(call lower,$(name))=$(call quoted,$(name)))))
# A misspelt name would be ignored by make, and the defaults would be validated instead.
typed = $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
strangers = $(filter-out $(PARAMETERS) PYTHON TORCH VENV JOBS RELEASES -%,$(typed))

.DEFAULT_GOAL := help
.PHONY: help env validate test lint lab bench sglang vllm differential clean

help: ## this text
	@echo "make TARGET [NAME=value …]"
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' Makefile | expand -t 16
	@echo
	@echo "make validate takes $(PARAMETERS), e.g."
	@echo "  make validate CHECKPOINT=/models/x SGLANG=0.5.15 RUNNER=flashinfer_cutedsl A2A=deepep GPU=sm_100 EXPECT=refused"
	@echo "PYTHON=python3.12 chooses the Python, TORCH=torch the torch that is installed (now: $(TORCH))."

env: $(INSTALLED) ## build the environment (.venv)

$(INSTALLED): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 to 3.13, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
	  || { echo "make: $$($(PYTHON) -V) is not between 3.11 and 3.13: say make PYTHON=python3.12" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) \
	  || { echo "make: $(PYTHON) cannot make environments: install its venv package (Debian, Ubuntu: python3-venv)" >&2; exit 1; }
	@echo "Installing into $(VENV): 5 GB and a few minutes the first time"
	@{ $(PY) -m pip install $(TORCH) && $(PY) -m pip install -e '.[$(EXTRAS)]'; } \
	  || { echo "make: pip could not install everything: the lines above say what; the packages come from PyPI, so it needs the network or a mirror" >&2; exit 1; }
	@touch $@

validate: $(INSTALLED) ## run every notebook and write runs/latest/index.html
	@$(if $(strangers),echo "make: unknown variable $(strangers): known are $(PARAMETERS)" >&2; exit 2)
	@$(PY) -m helpers run $(given)

test: $(INSTALLED) lint ## all the tests
	$(PY) -m pytest -n $(JOBS) --dist loadfile

lint: $(INSTALLED) ## ruff on code and notebooks, and notebooks without outputs
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m nbstripout --keep-id --verify notebooks/*.ipynb

lab: $(INSTALLED) ## open JupyterLab on notebooks/00_start_here.ipynb
	$(PY) -m jupyterlab --notebook-dir=. notebooks/00_start_here.ipynb

bench: $(INSTALLED) ## measure everything that has a speed target
	$(PY) -m benchmarks

sglang: $(INSTALLED) ## install real SGLang releases, to ask them: RELEASES="0.5.15 0.5.23" (default: three of them)
	@$(PY) -m helpers sglang build $(RELEASES)

vllm: $(INSTALLED) ## install one real vLLM release, to ask it about the same checkpoints
	@$(PY) -m helpers vllm build

differential: $(INSTALLED) ## hold the model here against the real releases: RELEASES=all
	@$(PY) -m helpers sglang compare $(if $(RELEASES),--releases $(RELEASES))

clean: ## remove runs and caches, not the environment
	rm -rf runs build .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
