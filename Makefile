# Each target does its own set-up: a bare machine needs Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
# Test processes. Each loads torch; two fit a small machine.
JOBS   ?= 2
# Where there is no NVIDIA driver, torch's CPU build saves gigabytes: from the configured indexes
# where they have one, else from PyTorch's own. TORCH='torch==2.13.0' takes the plain one.
TORCH  ?= $(if $(shell command -v nvidia-smi 2>/dev/null),torch==2.13.0,torch==2.13.0+cpu)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# SGLang pins other versions than kclab's own environment has, so it gets one of its own.
ENGINES := .venv-sglang
ENGINES_PIP := $(ENGINES)/bin/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test test-slow test-engines check bench format clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"kclab needs Python 3.11 or newer; this is {v[0]}.{v[1]}. Say PYTHON=python3.11, or what yours is called.")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt '$(TORCH)' 2>/dev/null \
	  || $(PIP) --retries 1 --timeout 15 install -c constraints.txt --extra-index-url $(TORCH_INDEX) '$(TORCH)' \
	  || $(PIP) install -c constraints.txt torch==2.13.0
	$(PIP) install -c constraints.txt -e '.[demo,dev]'
	touch $@

demo: $(READY)  ## capture a real diffusion transformer, replay, import, list
	$(BIN)/python examples/demo.py

test: $(READY)  ## every test but the slow ones and the engines'
	$(BIN)/python -m pytest -n $(JOBS)

test-slow: $(READY)  ## faults and load: minutes
	$(BIN)/python -m pytest -m slow

$(ENGINES)/.ready: pyproject.toml tests/engines/requirements.txt
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	$(ENGINES_PIP) install torch==2.13.0+cpu 2>/dev/null \
	  || $(ENGINES_PIP) --retries 1 --timeout 15 install --extra-index-url $(TORCH_INDEX) torch==2.13.0+cpu \
	  || $(ENGINES_PIP) install torch==2.13.0
	$(ENGINES_PIP) install --no-deps -r tests/engines/requirements.txt
	$(ENGINES_PIP) install --no-deps -e .
	touch $@

test-engines: $(ENGINES)/.ready  ## the real SGLang, on a CPU: minutes
	$(ENGINES)/bin/python -m pytest -m engines tests/engines

check: $(READY)  ## style, types, layers, migrations, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	rm -rf .check && mkdir .check
	$(BIN)/alembic -x db=.check/kclab.db upgrade head
	$(BIN)/alembic -x db=.check/kclab.db check
	rm -rf .check
	$(BIN)/python -m tests.docs_check

bench: $(READY)  ## kclab against the plain way of doing the same work
	$(BIN)/python -m benchmarks

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(ENGINES) .check demo-out
