# Every target sets up what it needs by itself; a second run is quick.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Without compiled modules on disk, each process that a test starts would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

# `make test PARALLEL=` runs the tests in one process. More processes than cores, since many tests wait; long trainings
# have several processes each.
test test-quick test-all: PARALLEL ?= -n 4
test-heavy: PARALLEL ?= -n 3

.PHONY: bench bytes check clean client-lines demo dev docs format-web gpu gpu-wheels lab older-clients programs runtime screenshots serve sync-client wheel wheelhouse
.PHONY: test test-all test-compose test-compose-smoke test-gpu test-heavy test-quick test-slow test-slurm test-slurm-smoke test-torch test-web

# What is installed belongs to the folder of the clone: a copied .venv would start the programs of the other folder.
PLACE   := $(shell pwd | cksum | cut -d ' ' -f 1)
RUNTIME := $(VENV)/.runtime-$(PLACE)
DEV     := $(VENV)/.dev-$(PLACE)

INSTALL := $(PYTHON) -m trainyard.installation.dependencies
INSTALLED_FROM := pyproject.toml constraints.txt trainyard/installation/dependencies.py

# What `make demo` and `make serve` need.
runtime: $(RUNTIME) sync-client

$(RUNTIME): $(INSTALLED_FROM)
	@$(INSTALL) service,worker,examples "68 packages, 1.2 GiB on disk, 1 to 3 minutes"
	@touch $@

# What tests, checks and benchmarks need too.
dev: $(DEV) sync-client

# The synchronous client, from the asynchronous one. An installation writes it too.
sync-client:
	@$(PYTHON) -m trainyard.installation.sync_client

$(DEV): $(INSTALLED_FROM)
	@$(INSTALL) dev "about 180 packages, 2.7 GiB on disk, 2 to 6 minutes"
	@touch $(RUNTIME) $@

# Older clients of trackers and of OpenAI's API, whose programs some tests run.
older-clients: $(VENV)/.older

$(VENV)/.older: tests/older_clients.txt tests/older_openai.txt | $(DEV)
	@echo "Installing older clients, which tests use, into $(VENV)/older and $(VENV)/openai-VERSION."
	rm -rf $(VENV)/older
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --target $(VENV)/older --requirement tests/older_clients.txt
	for pin in $$(grep ^openai== tests/older_openai.txt); do \
		folder=$(VENV)/openai-$${pin#openai==} && rm -rf $$folder && \
		$(BIN)/python -m pip install --quiet --no-compile --no-deps --target $$folder $$pin || exit 1; done
	@touch $@

# The lowest version of each minor line of the trackers' clients.
client-lines: $(VENV)/.client-lines

$(VENV)/.client-lines: tests/client_lines.txt | $(DEV)
	@echo "Installing $$(grep -c == $<) versions of clients, 1.1 GiB on disk, into $(VENV)/client-lines."
	rm -rf $(VENV)/client-lines
	grep == $< | while read -r pin more; do \
		$(BIN)/python -m pip install --quiet --no-compile --no-deps --target $(VENV)/client-lines/$$pin $$pin $$more || exit 1; done
	@touch $@

# The environment of a user, in which slow tests run programs of libraries that Trainyard does not use.
programs: $(VENV)/.programs

$(VENV)/.programs: tests/programs.txt constraints.txt | $(DEV)
	@echo "Installing keras, fastai, hydra and notebooks, 1.6 GiB on disk, into $(VENV)/programs."
	rm -rf $(VENV)/programs && $(PYTHON) -m venv $(VENV)/programs
	$(VENV)/programs/bin/python -m pip install --quiet --constraint constraints.txt --requirement $<
	@touch $@

demo: runtime
	$(BIN)/python -m trainyard.demo

# Everything that needs neither a long training, nor Slurm, Docker or a GPU.
test: dev
	$(BIN)/python -m pytest $(PARALLEL) --own-groups -m "not heavy and not slow and not slurm and not compose and not gpu" --durations 10

# For the loop of a developer: unit tests, and the tests of the service on SQLite alone.
test-quick: dev
	$(BIN)/python -m pytest $(PARALLEL) --own-groups --databases sqlite -m "not slow and not heavy and not cpu_seconds" \
		tests/unit tests/integration/service

# Trainings on many layouts, and the commands of the documentation. CI runs them too.
test-heavy: dev older-clients
	$(BIN)/python -m pytest $(PARALLEL) --own-groups -m "heavy and not slow" --durations 10

test-slow: dev older-clients client-lines programs
	$(BIN)/python -m pytest -m "slow and not compose and not gpu" --timeout 1000

# The second part has the Slurm of a newer Debian.
test-slurm: dev
	$(BIN)/python -m pytest -m "slurm and not slow and not compose" --durations 10
	$(BIN)/python -m tests.support.newer_slurm -m "slurm and smoke" tests/slurm

test-slurm-smoke: dev
	$(BIN)/python -m pytest -m "slurm and smoke" --durations 10 tests/slurm

test-compose: dev
	$(BIN)/python -m pytest -m compose --durations 10 tests/compose

test-compose-smoke: dev
	$(BIN)/python -m pytest -m "compose and smoke" --durations 10 tests/compose

# The worker's tests with another release of torch, built with CUDA as users get it: `make test-torch TORCH=2.11.0`.
test-torch: sync-client
	$(PYTHON) -m venv build/torch-$(TORCH)
	grep -v ^torch== constraints.txt > build/torch-$(TORCH)/constraints.txt
	build/torch-$(TORCH)/bin/python -m pip install --quiet --constraint build/torch-$(TORCH)/constraints.txt \
		--editable .[dev] torch==$(TORCH)
	build/torch-$(TORCH)/bin/python -m pytest -n 2 --own-groups \
		-m "not slow and not heavy and not cpu_seconds" tests/unit/worker tests/unit/bench tests/integration/worker

test-gpu: dev
	$(BIN)/python -m pytest -m gpu --timeout 1000 --durations 10

# Needs only the packages of the worker, and no network; see docs/gpu.md. `make gpu ARGS="--phase speed"`.
gpu: sync-client
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m bench.gpu $(ARGS)

# What a step moves through memory, counted without a GPU.
bytes: dev
	$(BIN)/python -m bench.bytes

# The wheels that a machine with torch alone lacks, for Python 3.12 on x86_64.
gpu-wheels: dev
	$(BIN)/python -m pip download --quiet --dest build/gpu-wheels --only-binary :all: --python-version 3.12 \
		--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --constraint constraints.txt --no-deps \
		--requirement bench/gpu/requirements.txt
	du -sh build/gpu-wheels

test-web: dev
	$(BIN)/python -m pytest -m web --durations 10

# Everything, with both databases wherever a test uses one. Takes hours.
test-all: older-clients test-slurm test-compose test-slow test-gpu
	$(BIN)/python -m pytest $(PARALLEL) --databases both -m "not slow and not slurm and not compose and not gpu"

screenshots: dev
	$(BIN)/python -m tests.support.screenshots screenshots

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.alembic_check
	$(BIN)/python -m tests.support.size_report
	$(BIN)/python -m tests.support.name_lint
	$(BIN)/python -m tests.support.phrase_lint
	$(BIN)/python -m tests.support.web_check
	$(BIN)/python -m tests.support.advisories

# The scripts of the dashboard, as `make check` expects them.
format-web: dev
	$(BIN)/python -m tests.support.web_check --format

docs: dev
	$(BIN)/python -m trainyard.contract.spec.reference > docs/spec.md
	$(BIN)/python -m service.core.settings_reference > docs/settings.md
	$(BIN)/python -m tests.support.api_reference > docs/api-reference.md

serve: runtime
	$(BIN)/trainyard serve

lab: dev
	$(BIN)/python -m tests.support.lab $(if $(ACCOUNTING),--accounting) $(if $(GPUS),--gpus)

# A wheel for other machines. What an earlier build left would be packed too.
wheel: runtime
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

wheelhouse: dev
	$(BIN)/python -m pip download --quiet --dest docker/wheelhouse --constraint constraints.txt \
		'setuptools>=78.1.1' '.[service,worker,hf,examples]'

bench: dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist *.egg-info .trainyard trainyard/client/_sync
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
