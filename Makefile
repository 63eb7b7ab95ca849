# Each target is one script: read scripts/ to see what it does.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check fast bench pins coverage clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make the environment in .venv and bundle the page; quick when nothing changed
	@scripts/bootstrap

demo: setup ## watch agents at work, killed and going on: no key, no configuration (DEMO=--scripted: no model either)
	@.venv/bin/retinue demo $(DEMO)

test: setup ## every check and every test
	@scripts/check
	@scripts/test

check: setup ## format, lint, types (also the page's), import contracts, generated files
	@scripts/check

fast: setup ## every test but the slow tiers
	@scripts/test --ignore=tests/crash --ignore=tests/surfaces

bench: setup ## measure what Retinue costs on this machine (BENCH="--quick --peers": options)
	@scripts/bench $(BENCH)

pins: setup ## resolve requirements/*.txt and web/package-lock.json anew
	@scripts/pins

coverage: setup ## write tests/stories/COVERAGE.md anew
	@.venv/bin/python scripts/coverage_rows

clean: ## take away what the other targets made
	rm -rf .venv .demo .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	rm -rf dist web/node_modules src/retinue/server/static
