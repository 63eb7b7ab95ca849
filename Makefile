# Each target is one script: read scripts/ to see what it does.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check fast bench pins coverage clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## create .venv and bundle the page; fast if nothing changed
	@scripts/bootstrap

demo: setup ## run the demo with a local model, no API key needed (DEMO=--scripted: without a model)
	@.venv/bin/retinue demo $(DEMO)

test: setup ## run all checks and all tests
	@scripts/check
	@scripts/test

check: setup ## check format, lint, types, import contracts and generated files
	@scripts/check

fast: setup ## run all tests except the slow tiers
	@scripts/test --ignore=tests/crash --ignore=tests/surfaces

bench: setup ## run the benchmark (BENCH="--quick --peers" passes options)
	@scripts/bench $(BENCH)

pins: setup ## update requirements/*.txt and web/package-lock.json
	@scripts/pins

coverage: setup ## regenerate tests/stories/COVERAGE.md
	@.venv/bin/python scripts/coverage_rows

clean: ## remove everything the other targets created
	rm -rf .venv .demo .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	rm -rf dist web/node_modules src/retinue/server/static
