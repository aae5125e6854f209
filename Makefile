# Every target sets up what it needs by itself; a second run is quick.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Without compiled modules on disk, each process that a test starts would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

# `make test PARALLEL=` runs the tests in one process.
PARALLEL ?= -n 3

.PHONY: bench check clean demo docs gpu gpu-wheels lab screenshots serve sync-client venv wheelhouse
.PHONY: test test-all test-compose test-compose-smoke test-gpu test-heavy test-quick test-slow test-slurm test-slurm-smoke test-web

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt tests/older_clients.txt tests/older_openai.txt
	@echo "Installing the dependencies into $(VENV); this takes several minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	rm -rf $(VENV)/older
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/older --requirement tests/older_clients.txt
	for pin in $$(grep ^openai== tests/older_openai.txt); do \
		folder=$(VENV)/openai-$${pin#openai==} && rm -rf $$folder && \
		$(BIN)/python -m pip install --quiet --no-deps --target $$folder $$pin || exit 1; done
	@touch $@

demo: venv
	$(BIN)/python -m trainyard.demo

# Everything that needs neither a long training, nor Slurm, Docker or a GPU.
test: venv
	$(BIN)/python -m pytest $(PARALLEL) -m "not heavy and not slow and not slurm and not compose and not gpu" --durations 10

# For the loop of a developer: unit tests, and the tests of the service on SQLite alone.
test-quick: venv
	$(BIN)/python -m pytest $(PARALLEL) --databases sqlite -m "not slow" tests/unit tests/integration/service

# Trainings on many layouts, and the commands of the documentation. CI runs them too.
test-heavy: venv
	$(BIN)/python -m pytest $(PARALLEL) -m "heavy and not slow" --durations 10

test-slow: venv
	$(BIN)/python -m pytest -m "slow and not compose and not gpu" --timeout 1000

test-slurm: venv
	$(BIN)/python -m pytest -m "slurm and not slow and not compose" --durations 10

test-slurm-smoke: venv
	$(BIN)/python -m pytest -m "slurm and smoke" --durations 10 tests/slurm

test-compose: venv
	$(BIN)/python -m pytest -m compose --durations 10 tests/compose

test-compose-smoke: venv
	$(BIN)/python -m pytest -m "compose and smoke" --durations 10 tests/compose

test-gpu: venv
	$(BIN)/python -m pytest -m gpu --timeout 1000 --durations 10

# Needs only the packages of the worker, and no network; see docs/gpu.md. `make gpu ARGS="--phase speed"`.
gpu:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m bench.gpu $(ARGS)

# The wheels that a machine with torch alone lacks, for Python 3.12 on x86_64.
gpu-wheels: venv
	$(BIN)/python -m pip download --quiet --dest build/gpu-wheels --only-binary :all: --python-version 3.12 \
		--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --constraint constraints.txt --no-deps \
		--requirement bench/gpu/requirements.txt
	du -sh build/gpu-wheels

test-web: venv
	$(BIN)/python -m pytest -m web --durations 10

# Everything, with both databases wherever a test uses one. Takes hours.
test-all: test-slurm test-compose test-slow test-gpu
	$(BIN)/python -m pytest $(PARALLEL) --databases both -m "not slow and not slurm and not compose and not gpu"

screenshots: venv
	$(BIN)/python -m tests.support.screenshots screenshots

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.alembic_check
	$(BIN)/python -m tests.support.generate_sync_client --check
	$(BIN)/python -m tests.support.size_report
	$(BIN)/python -m tests.support.name_lint
	$(BIN)/python -m tests.support.advisories

sync-client: venv
	$(BIN)/python -m tests.support.generate_sync_client

docs: venv
	$(BIN)/python -m trainyard.contract.spec.reference > docs/spec.md
	$(BIN)/python -m service.core.settings_reference > docs/settings.md
	$(BIN)/python -m tests.support.api_reference > docs/api-reference.md

serve: venv
	$(BIN)/trainyard serve

lab: venv
	$(BIN)/python -m tests.support.lab $(if $(ACCOUNTING),--accounting) $(if $(GPUS),--gpus)

wheelhouse: venv
	$(BIN)/python -m pip download --quiet --dest docker/wheelhouse --constraint constraints.txt \
		'setuptools>=78.1.1' '.[service,worker,hf,examples]'

bench: venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist *.egg-info .trainyard
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
