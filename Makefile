# Every target sets up what it needs by itself; a second run is quick.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-slow test-slurm test-compose test-gpu test-web screenshots wheelhouse check docs serve lab bench clean venv

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: venv
	$(BIN)/python -m trainyard.demo

test: venv
	$(BIN)/python -m pytest -m "not slow and not slurm and not compose and not gpu" --durations 10

test-slow: venv
	$(BIN)/python -m pytest -m "slow and not compose and not gpu" --timeout 1000

test-slurm: venv
	$(BIN)/python -m pytest -m "slurm and not slow and not compose" --durations 10

test-compose: venv
	$(BIN)/python -m pytest -m compose --durations 10 tests/compose

test-gpu: venv
	$(BIN)/python -m pytest -m gpu --timeout 1000 --durations 10

test-web: venv
	$(BIN)/python -m pytest -m web --durations 10

screenshots: venv
	$(BIN)/python -m tests.support.screenshots screenshots

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.alembic_check
	$(BIN)/python -m tests.support.size_report

docs: venv
	$(BIN)/python -m trainyard.contract.spec.reference > docs/spec.md

serve: venv
	$(BIN)/trainyard serve

lab: venv
	$(BIN)/python -m tests.support.lab $(if $(ACCOUNTING),--accounting) $(if $(GPUS),--gpus)

wheelhouse: venv
	$(BIN)/python -m pip download --quiet --dest docker/wheelhouse --constraint constraints.txt \
		'setuptools>=77' '.[service,worker,hf,examples]'

bench: venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist *.egg-info .trainyard
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
