# Everything is run by `make`; `make help` lists what there is. Each target makes the environment ready
# first, works from any working directory (make -C, make -f), also where the path has spaces.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

ROOT := $(shell cd "$$(dirname "$(strip $(MAKEFILE_LIST))")" && pwd -P)
SETUP := bash "$(ROOT)/scripts/setup.sh"
RUN := bash "$(ROOT)/scripts/run.sh"
PYTEST := bash "$(ROOT)/scripts/pytest.sh"
# More arguments for pytest: make test ARGS="-k frontier -x"
ARGS ?=

.PHONY: help setup env fmt lint types layers unit check test test-spark long fuzz golden-update mutants bench demo across-runs handover late-data scd2 docs changelog lane-base lane-spark lane-python lane-features lane-databricks audit release clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' "$(ROOT)/Makefile" | column -t -s '|' 2>/dev/null || \
		sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1  \2/p' "$(ROOT)/Makefile"

setup: ## Python environment in .venv and a JDK; installs what is missing
	@$(SETUP)

env: ## the Python environment alone
	@$(SETUP) --no-java

fmt: env ## format the code and apply safe lint fixes
	@$(RUN) -m ruff format .
	@$(RUN) -m ruff check --fix .

lint: env ## check format and lint rules
	@$(RUN) -m ruff format --check .
	@$(RUN) -m ruff check .

types: env ## check types (mypy, strict)
	@bash "$(ROOT)/scripts/types.sh"

layers: env ## check which module imports which
	@$(PYTEST) -q tests/test_import_layers.py

unit: env ## tests that need neither a JVM nor more than moments
	@$(PYTEST) -q -n auto -m "not spark and not connect and not faults and not long and not bench" tests/unit tests/test_import_layers.py tests/test_public_api.py $(ARGS)

# `make check test` does not run the unit tests twice.
check: lint types $(if $(filter test,$(MAKECMDGOALS)),,unit) ## format, lint, types, import layers, unit tests; five minutes

test: setup ## the whole suite except what is marked long: runs in CI on each push
	@bash "$(ROOT)/scripts/test.sh" $(ARGS)

test-spark: setup ## the tests that need Spark
	@$(PYTEST) -m "(spark or connect) and not long and not bench" --durations=15 tests $(ARGS)

long: setup ## everything, with many kills and large random tests; hours
	@SPARK_TIMELY_LONG=1 $(PYTEST) -m "not bench" --durations=15 tests $(ARGS)

fuzz: env ## a million mutated captures, JSON lines and CDCv2 messages in bounded memory; about 20 minutes
	@$(RUN) -m tests.property.fuzzing --inputs 1000000 $(ARGS)

golden-update: setup ## rewrite the expected texts under tests/golden; read the difference before you commit it
	@$(PYTEST) -q --golden-update -m golden tests

mutants: env ## change the code in small ways in a copy: does a test notice? 20 minutes; ARGS="--seed 2 --minutes 60"
	@nice -n 10 $(RUN) -m tests.mutants.rules
	@nice -n 10 $(RUN) -m tests.mutants $(ARGS)

bench: setup ## measure against the peers; writes build/bench.jsonl
	@$(RUN) -m benchmarks $(ARGS)

demo: setup ## capture and replay of a year of flights
	@$(RUN) examples/flights.py $(ARGS)

across-runs: setup ## what is complete when sources take turns over runs, beside Spark's watermark
	@$(RUN) examples/across_runs.py $(ARGS)

handover: setup ## three jobs in a row, night after night, and a join of two streams that keeps no state
	@$(RUN) examples/handover.py $(ARGS)

late-data: setup ## the same late rows in batches of other sizes: Spark's counts beside a dataflow's
	@$(RUN) examples/late_data.py $(ARGS)

scd2: setup ## where each aircraft was, and when that was known: all versions of a table, in one go and live
	@$(RUN) examples/scd2.py $(ARGS)

docs: env ## the documentation as a site in build/docs; renews its generated pages first
	@bash "$(ROOT)/scripts/docs.sh"

changelog: env ## put the entries of changelog.d into CHANGELOG.md, for a release: first set __version__
	@cd "$(ROOT)" && $(RUN) -m towncrier build --yes --version "$$($(RUN) -c 'import spark_timely; print(spark_timely.__version__)')"

lane-base: env ## lane: without optional packages
	@bash "$(ROOT)/scripts/lane.sh" base $(ARGS)

lane-spark: setup ## lane: the newest pyspark 4.2.x
	@bash "$(ROOT)/scripts/lane.sh" spark $(ARGS)

lane-python: setup ## lane: Python 3.13, or another: VERSION=3.12
	@VERSION="$(VERSION)" bash "$(ROOT)/scripts/lane.sh" python $(ARGS)

lane-features: env ## lane: which features are found in pyspark 4.0 and 4.1
	@bash "$(ROOT)/scripts/lane.sh" features $(ARGS)

lane-databricks: env ## lane: the packages of Databricks' environment version 5
	@bash "$(ROOT)/scripts/lane.sh" databricks $(ARGS)

audit: env ## known vulnerabilities of the pinned packages; needs an advisory service
	@bash "$(ROOT)/scripts/audit.sh" $(ARGS)

release: setup ## build, install and use each extra, follow the pages; TAG=1 tags a clean tree
	@TAG="$(TAG)" bash "$(ROOT)/scripts/release.sh"

clean: ## remove what was built, the environment excepted
	@rm -rf "$(ROOT)"/build "$(ROOT)"/spark-warehouse "$(ROOT)"/metastore_db "$(ROOT)"/derby.log "$(ROOT)"/.mypy_cache "$(ROOT)"/.ruff_cache
