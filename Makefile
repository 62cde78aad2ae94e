# Everything a person types. `make help` lists the targets.
#
# A virtual environment is made in .venv on first use. Stamps say what is in it: the runtime alone
# (enough for `make demo REPORT=`), Spark on top for the report of `make demo`, or the test tools; all
# follow pyproject.toml and constraints.txt, so a second call does nothing.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_EXTRAS := postgres,mysql,otel,events,bench,spark
PINS := constraints.txt
BATCHES := sdk/batches
DEFINITIONS := pyproject.toml sdk/pyproject.toml $(PINS) $(BATCHES)/pyproject.toml $(BATCHES)/setup.py \
	$(BATCHES)/sharecoord_batches/_native.c
DISTRIBUTIONS := --editable ./sdk --editable ./$(BATCHES)
PIP_INSTALL = $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint $(PINS)
PROTO_VENV := .cache/protoc
WHEELS_VENV := .cache/wheels
SUPPLY_VENV := .cache/supply
IMAGE_VENV := .cache/image
FUZZ := .cache/fuzz
IMAGE ?= sharecoord:0.1.0

# `python -m pytest`, so that the root of the repository is on the path (tests.*, tools.*). One hash
# seed, so that a seed of tests/simulation/test_mutations.py is the same life each time. Bytecode is
# kept: tests start hundreds of processes, and each would compile two hundred modules anew.
PYTEST = env -u PYTHONDONTWRITEBYTECODE PYTHONHASHSEED=0 $(BIN)/python -m pytest -p tools.suite_minutes
# Two processes for what does not mind; see tools/suite_minutes.py.
BESIDE := -n 2 --dist loadscope --no-loadscope-reorder
FAST_SUITES := $(wildcard tests/unit tests/property tests/batches tests/architecture tests/sdk)

# Given on the command line: `make demo KAFKA=real`, `make demo KAFKA_ADDR=host:9092`,
# `make demo DEMO_ARGS="--seed 7"`, `make test PYTEST_ARGS="-k window"`, `make bench BENCH_ARGS=...`.
KAFKA ?=
KAFKA_ADDR ?=
# The report is made by Spark: only where Java is.
REPORT ?= $(if $(shell command -v java),demo-report.html)
DEMO_ARGS ?=
BENCH_ARGS ?= --plan all
PYTEST_ARGS ?=
FUZZ_ARGS ?= --seconds 50
# `make test SECURITY=on`: every coordinator has rules, quotas, tokens and an audit trail.
SECURITY ?= off
SEEDS ?= 100000
FIRST ?= 0

.PHONY: help venv demo test check simulate lint format bench proto settings-doc public-names notebooks chart-example test-long fuzz wheels lock sbom image clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile

venv: $(VENV)/.stamp-test ## Make .venv with everything that the tests need

demo: $(VENV)/$(if $(REPORT),.stamp-report,.stamp-runtime) ## Run the demonstration (KAFKA=real, KAFKA_ADDR=host:port, REPORT=FILE or nothing, DEMO_ARGS=...)
	@$(BIN)/sharecoord demo $(if $(filter real,$(KAFKA)),--kafka-real) \
		$(if $(KAFKA_ADDR),--kafka $(KAFKA_ADDR)) $(if $(REPORT),--report $(REPORT)) $(DEMO_ARGS)

test: $(VENV)/.stamp-test ## Run all suites but the long ones (CI's command; SECURITY=on; Java, Maven, PostgreSQL, Helm, Chromium)
	@tools/ensure_java.sh
	@tools/ensure_postgres.sh
	@tools/ensure_helm.sh >/dev/null
	@tools/ensure_chromium.sh
	@SHARECOORD_TEST_SECURITY=$(SECURITY) $(PYTEST) tests -m "not long" $(BESIDE) --durations 25 $(PYTEST_ARGS)

check: $(VENV)/.stamp-test ## Run the fast suites (unit, property, architecture, sdk; no Java)
	@$(PYTEST) $(FAST_SUITES) -m "not long and not kafka" -n 2 --dist worksteal $(PYTEST_ARGS)

simulate: $(VENV)/.stamp-test ## Run simulated lives of coordinators in all processors (SEEDS=100000 FIRST=0)
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation.run --first $(FIRST) --seeds $(SEEDS)

lint: $(VENV)/.stamp-test $(PROTO_VENV)/.stamp ## Check style, types, imports, and that generated files are current
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import_linter
	@$(PROTO_VENV)/bin/python tools/make_proto.py --check
	@$(BIN)/python -m sharecoord.config.docs --check
	@$(BIN)/python -m sharecoord.events.docs --check
	@$(BIN)/python -m sharecoord.runtime.admin.docs --check

format: $(VENV)/.stamp-test ## Rewrite the code in the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.stamp-test ## Measure against peers and each store (BENCH_ARGS=...)
	@tools/ensure_java.sh
	@tools/ensure_postgres.sh
	@$(BIN)/sharecoord bench $(BENCH_ARGS)

proto: $(PROTO_VENV)/.stamp ## Generate the stubs from proto/
	@$(PROTO_VENV)/bin/python tools/make_proto.py

settings-doc: $(VENV)/.stamp-test ## Write docs/settings.md and the tables of docs/events.md and docs/security.md
	@$(BIN)/python -m sharecoord.config.docs
	@$(BIN)/python -m sharecoord.events.docs
	@$(BIN)/python -m sharecoord.runtime.admin.docs

public-names: $(VENV)/.stamp-test ## Write down the public names after a wanted change
	@$(BIN)/python -m tools.public_names --write

notebooks: $(VENV)/.stamp-test ## Run the notebooks of docs/ and keep what they print
	@tools/ensure_java.sh
	@$(BIN)/python -m tools.notebook

chart-example: ## Render the chart's copyable example after a wanted change
	@"$$(tools/ensure_helm.sh)" template shop helm/sharecoord --namespace queues \
		--values helm/sharecoord/ci/sidecar-sqlite-values.yaml \
		>helm/sharecoord/examples/sidecar-deployment.yaml

test-long: $(VENV)/.stamp-test ## Run the long forms, and `make test SECURITY=on`, hours; the output goes to docs/evidence/test-long.txt
	@tools/ensure_java.sh
	@tools/ensure_postgres.sh
	@tools/ensure_mariadb.sh
	@tools/ensure_helm.sh >/dev/null
	@tools/ensure_chromium.sh
	@commit=$$(git describe --always --dirty); \
	{ date --utc +'%Y-%m-%d %H:%M UTC'; echo "$$commit"; \
		code=0; $(PYTEST) tests -m "long or mariadb" --durations 25 $(PYTEST_ARGS) || code=$$?; \
		SHARECOORD_TEST_SECURITY=on $(PYTEST) tests -m "not long" $(BESIDE) --durations 25 $(PYTEST_ARGS); \
		exit $$code; } \
		2>&1 | sed -u 's#$(CURDIR)#.#g; s#$(HOME)#~#g' | tee docs/evidence/test-long.txt

fuzz: $(VENV)/.stamp-test ## Feed made-up batches to the extension, built with sanitizers (FUZZ_ARGS="--seconds 50 --seed 0"; gcc)
	@mkdir -p $(FUZZ)
	@gcc -shared -fPIC -O1 -g -Wall -Wextra -Wno-unused-parameter -fsanitize=address,undefined -fno-sanitize-recover=all \
		-I"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
		$(BATCHES)/sharecoord_batches/_native.c -o $(FUZZ)/_native.abi3.so
	@LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		PYTHONMALLOC=malloc $(BIN)/python -m tests.batches.fuzz --extension $(FUZZ)/_native.abi3.so $(FUZZ_ARGS)

wheels: $(WHEELS_VENV)/.stamp ## Build the wheels of sharecoord-batches for this platform in dist/ (Linux: Docker)
	@$(WHEELS_VENV)/bin/python -m cibuildwheel --output-dir dist $(BATCHES)

lock: $(VENV)/.stamp-test $(SUPPLY_VENV)/.stamp ## Write requirements.lock, the image's packages with their hashes, after a change of constraints.txt
	@$(BIN)/python -m tools.dependencies requirements >$(SUPPLY_VENV)/image.in
	@$(SUPPLY_VENV)/bin/uv pip compile $(SUPPLY_VENV)/image.in --constraint $(PINS) --universal --python-version 3.11 \
		--generate-hashes --no-annotate --quiet --custom-compile-command "make lock" --output-file requirements.lock

sbom: $(SUPPLY_VENV)/.stamp ## Install the image's packages by their hashes, and list them in dist/sbom.json (CycloneDX)
	@rm -rf $(IMAGE_VENV) && mkdir -p dist
	@tools/make_venv.sh $(IMAGE_VENV) $(PYTHON)
	@$(IMAGE_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(IMAGE_VENV)/bin/python -m pip uninstall --quiet --yes setuptools pip
	@$(SUPPLY_VENV)/bin/cyclonedx-py environment $(IMAGE_VENV)/bin/python --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.json
	@echo "dist/sbom.json: $$(grep -c '"purl":' dist/sbom.json) packages"

image: ## Build the container image (IMAGE=name:tag, BASE_IMAGE=...)
	@docker build --tag $(IMAGE) $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) .

clean: ## Remove .venv and everything else that these targets made
	@rm -rf $(VENV) .cache build dist *.egg-info sdk/build sdk/*.egg-info $(BATCHES)/build $(BATCHES)/*.egg-info bench-results \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -f $(BATCHES)/sharecoord_batches/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- environments ---------------------------------------------------------------------------------

$(VENV)/.stamp-runtime: $(DEFINITIONS)
	@tools/make_venv.sh $(VENV) $(PYTHON)
	@$(PIP_INSTALL) --upgrade pip
	@$(PIP_INSTALL) --build-constraint $(PINS) $(DISTRIBUTIONS) --editable .
	@touch $@

$(VENV)/.stamp-report: $(VENV)/.stamp-runtime
	@$(PIP_INSTALL) --build-constraint $(PINS) $(DISTRIBUTIONS) --editable '.[spark]'
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-runtime
	@$(PIP_INSTALL) --build-constraint $(PINS) $(DISTRIBUTIONS) --editable '.[$(TEST_EXTRAS)]' --group test
	@touch $@

# The generator has an environment of its own: it needs an older protobuf than the runtime.
$(PROTO_VENV)/.stamp: pyproject.toml
	@tools/make_venv.sh $(PROTO_VENV) $(PYTHON)
	@$(PROTO_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --constraint $(PINS) --upgrade pip
	@$(PROTO_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --group proto
	@touch $@

# So have the tools of `make lock` and `make sbom`.
$(SUPPLY_VENV)/.stamp: pyproject.toml
	@tools/make_venv.sh $(SUPPLY_VENV) $(PYTHON)
	@$(SUPPLY_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --constraint $(PINS) --upgrade pip
	@$(SUPPLY_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --group supply
	@touch $@

# So has what builds wheels.
$(WHEELS_VENV)/.stamp: pyproject.toml
	@tools/make_venv.sh $(WHEELS_VENV) $(PYTHON)
	@$(WHEELS_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --group wheels
	@touch $@
