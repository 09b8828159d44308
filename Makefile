# The set-up a newcomer needs. Every target makes .venv and installs into it on the first call; a stamp file newer than
# pyproject.toml tells the next call that nothing is to be installed. Use another interpreter with `make PYTHON=python3.12`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := smollm2-135m-instruct

.DEFAULT_GOAL := help
.PHONY: help serve test check bench model
.NOTPARALLEL: # two pips must not share one .venv

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10
	@echo 'ARGS="…" is handed on, as in: make test ARGS="tests/ops -x"   make serve ARGS="--port 8001"'

serve: $(VENV)/.installed model ## serve SmolLM2-135M-Instruct on http://127.0.0.1:8000
	$(BIN)/litspec serve --config serve/smollm2-135m $(ARGS)

test: $(VENV)/.installed-test model ## run the tests, all but the slow ones
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile $(ARGS)

check: $(VENV)/.installed-test ## lint, formatting, types and the import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

bench: $(VENV)/.installed model ## measure plain decoding against n-gram drafting on this machine
	$(BIN)/litspec bench --scenario decode $(ARGS)

model: $(VENV)/.installed ## take the embedded model into the cache folder
	$(BIN)/litspec download $(MODEL)

$(VENV)/.created:
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.created
	$(BIN)/python -m pip install -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/.created
	$(BIN)/python -m pip install -e '.[test]'
	@touch $(VENV)/.installed $@
