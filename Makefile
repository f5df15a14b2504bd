# `make demo` trains CartPole, `make test` passes the tests; both make what they need in .venv.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROTO := common/pb/crossborder.proto

.PHONY: demo test chaos check lint proto proto-check dashboards dashboards-check dashboards-types pages docs node-actor \
	bench clean

# torch goes first, by itself: a later open requirement could fetch a CUDA build of several GB.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "torch>=2.4,<2.14"
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/learner-server --config configs/cartpole.yaml --local-actors 2 --listen 127.0.0.1:0 \
		--set metrics.trainer_port=0 --set metrics.ingest_port=0

test: $(READY)
	$(BIN)/pytest

# Long: kills, partitions, resumes, a soak, shutdowns, a million mutated messages; then the tables of what they found.
SOAK_MINUTES ?= 30
chaos: $(READY)
	for exercise in kills partition address resume shutdown fuzz; do \
		$(BIN)/python -m tests.chaos $$exercise || exit 1; \
	done
	$(BIN)/python -m tests.chaos soak --minutes $(SOAK_MINUTES)
	$(BIN)/python -m tests.chaos.tables

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

proto: $(READY)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -Icommon/pb=protos/crossborder/v1 \
		--python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. $(PROTO)

# Generated code is committed; this fails when it is not what protos/ generates.
proto-check: proto
	git diff --exit-code -- common/pb

dashboards: $(READY)
	$(BIN)/python -m dashboards

# The dashboards are committed; this fails when they are not what dashboards/ generates.
dashboards-check: dashboards
	git diff --exit-code -- docker/grafana/dashboards

# The dashboards against Grafana's own TypeScript types; needs npm.
dashboards-types: $(READY)
	npm install --prefix build/grafana --silent --no-save --no-audit --no-fund @grafana/schema@11.6.0 typescript@5
	$(BIN)/python -m dashboards.typescript build/grafana
	build/grafana/node_modules/.bin/tsc --noEmit --strict --skipLibCheck --target es2022 --module es2022 \
		--moduleResolution bundler build/grafana/*.ts

# Generated pages are committed, to be read without the site; a test sees that they are what the models say.
pages: $(READY)
	$(BIN)/python -m pages

# The documentation as a site in build/site; a link to nowhere is an error.
docs: $(READY)
	$(BIN)/zensical build --strict

# What the actor in another language needs; its test is skipped without. Needs npm.
node-actor:
	npm ci --prefix examples/node --silent --no-audit --no-fund

check: lint proto-check dashboards-check docs test

bench: $(READY)
	$(BIN)/python -m benchmarks.ingest
	$(BIN)/python -m benchmarks.acting
	$(BIN)/python -m benchmarks.frames

clean:
	rm -rf $(VENV) build dist examples/node/node_modules *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
