# Each target does its own set-up: a bare machine needs Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# torch's CPU build where the index has one; a machine with a GPU can set TORCH=torch.
TORCH  ?= torch==2.13.0

.PHONY: demo test test-slow check bench format clean

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	touch $@

demo: $(READY)  ## capture a real diffusion transformer, replay, import, list
	$(BIN)/python examples/demo.py

test: $(READY)  ## every test but the slow ones and the engines'
	$(BIN)/python -m pytest -q -n 2

test-slow: $(READY)  ## faults and load: minutes
	$(BIN)/python -m pytest -q -m slow

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
	rm -rf $(VENV) .check demo-out
