# `make demo` trains CartPole, `make test` runs the tests; both first make .venv with the packages that they need.
# Python 3.11 or newer: python3, or else the newest that runs. Debian and Ubuntu keep ensurepip, which venv needs, in a package.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
NO_PYTHON = expected Python 3.11 or newer with venv as python3 or python3.11 to python3.14, found none: install it \
	(Debian, Ubuntu: apt-get install python3-venv), or name it: make PYTHON=/path/to/python
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROTO := common/wire/pb/crossborder.proto common/wire/pb/acting.proto

# Tests start hundreds of processes. They use the compiled modules that the first one wrote, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast test-oldest chaos check cluster-test format generated lint proto proto-check proto-release proto-buf dashboards dashboards-check dashboards-types film pages \
	docs site-check wheel release-check node-actor clients-test manifests manifests-check kustomize lock audit images compose-test bench clean

$(BIN)/python:
	$(or $(PYTHON),$(error $(NO_PYTHON))) -m venv $(VENV)

# torch goes first, by itself: a later open requirement could fetch a CUDA build of several GB. uv installs the rest in
# a tenth of pip's time. Neither compiles modules: Python does so for those that are imported.
$(READY): pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile "torch>=2.8,<2.14" "uv>=0.9,<1"
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/learner-server --config configs/cartpole.yaml --local-actors 2 --listen 127.0.0.1:0 \
		--set metrics.listen=127.0.0.1:0

# Many tests wait for processes: five at a time keep two cores busy. Those of a file stay together, and the
# longest come first. A process of tests that ended is not replaced: it would begin again with the test that ended it.
test: $(READY)
	$(BIN)/pytest -n 5 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

FAST := -n 2 --dist loadfile -m "not slow and not browser and not compose and not clusters and not figures"
# The tests that start no process, in two to three minutes.
test-fast: $(READY)
	$(BIN)/pytest $(FAST)

# The same with the oldest packages that pyproject.toml allows, in .venv-oldest.
test-oldest: $(READY)
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct -e '.[dev]'
	.venv-oldest/bin/python -m pytest $(FAST) -W ignore::DeprecationWarning -W "ignore:Protobuf gencode"

# Long: kills, lost hosts, partitions, resumes, a soak, shutdowns, a million mutated messages, a siege; then the tables of their results.
SOAK_MINUTES ?= 30
chaos: $(READY)
	for exercise in kills ranks recovery partition address resume shutdown serving storm fuzz doors agreement siege greed power host_loss; do \
		$(BIN)/python -m tests.chaos $$exercise || exit 1; \
	done
	$(BIN)/python -m tests.chaos soak --minutes $(SOAK_MINUTES)
	$(BIN)/python -m tests.chaos.tables

format: $(READY)
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file .ci/mypy-darwin.ini --platform darwin -p actor -p common
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml docker/docker-compose.*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

# Generated code runs with the versions of grpcio and protobuf of its generators and with newer ones. So these are the
# oldest versions that pyproject.toml allows, in an environment of their own.
PROTOC = $(BIN)/uv run --quiet --isolated --no-project --python $(BIN)/python \
	--with grpcio-tools==1.73.1 --with mypy-protobuf==5.1.0 python -m grpc_tools.protoc

# sed removes the calls without a channel that gRPC generates as an experiment: nothing uses them, and they are half of these files.
proto: $(READY)
	$(PROTOC) -Icommon/wire/pb=protos/crossborder/v1 \
		--python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. $(PROTO)
	sed -i.bak -e '/^ # This class is part of an EXPERIMENTAL API/,/^class .*Stub(/{/^class .*Stub(/!d;}' $(PROTO:.proto=_pb2_grpc.py)
	rm $(PROTO:.proto=_pb2_grpc.py.bak)

# Generated code is committed; this fails when it differs from the code that protos/ generates.
proto-check: proto
	git diff --exit-code -- common/wire/pb

# The protocol of the actors in use: stored at a release, and kept for ever. tests/test_protos.py and buf compare with it.
proto-release: $(READY)
	$(PROTOC) -Iprotos --descriptor_set_out=protos/crossborder.binpb crossborder/v1/crossborder.proto

# buf's own rules, style and compatibility; needs npm.
proto-buf:
	cd protos && npx --yes @bufbuild/buf@1.75.0 lint && npx --yes @bufbuild/buf@1.75.0 breaking --against crossborder.binpb

dashboards: $(READY)
	$(BIN)/python -m dashboards

# The dashboards are committed; this fails when they differ from those that dashboards/ generates.
dashboards-check: dashboards
	git diff --exit-code -- docker/grafana/dashboards

# The dashboards against Grafana's own TypeScript types; needs npm.
dashboards-types: $(READY)
	npm install --prefix build/grafana --silent --no-save --no-audit --no-fund @grafana/schema@11.6.0 typescript@5
	$(BIN)/python -m dashboards.typescript build/grafana
	build/grafana/node_modules/.bin/tsc --noEmit --strict --skipLibCheck --target es2022 --module es2022 \
		--moduleResolution bundler build/grafana/*.ts

# The film in the README: `make demo` in a terminal.
film: $(READY)
	env -u MAKELEVEL -u MAKEFLAGS $(BIN)/python -m pages.film docs/images/demo.svg make demo

# Generated pages are committed, so that people can read them without the site; a test compares them with the models.
pages: $(READY)
	$(BIN)/python -m pages

# The documentation as a site in build/site; a broken link is an error. Its repository is this clone's origin.
export REPOSITORY_URL ?= $(shell git remote get-url origin 2>/dev/null | sed -nE 's,^git@([^:]+):,https://\1/,; s,\.git$$,,; /^https:/p')

docs: $(READY)
	$(BIN)/zensical build --strict

# The site in a browser, at three widths and in both colours; pictures go to build/screenshots. It needs a browser:
#   apt-get install chromium chromium-driver
site-check: docs
	$(BIN)/pytest -rs -m browser tests/site

# A wheel for hosts without a clone, and the sources, in dist.
wheel: $(READY)
	$(BIN)/hatchling build --directory dist

# The files of a release, and whether they are fit for it: TAG=v0.4.0. Needs the network.
release-check: wheel
	$(BIN)/python -m pages.release $(TAG)
	$(BIN)/uv tool run --quiet twine==6.2.0 check --strict dist/*

# The packages of the actor in another language, without which its test is skipped. Needs npm.
node-actor:
	npm ci --prefix examples/node --silent --no-audit --no-fund

# The packages of the images, pinned by hash. Versions in the lock files stay, unless UPGRADE=--upgrade. actor.lock is for both images;
# learner.lock has the further packages of the learner's image, in versions that fit.
# Where PyTorch's own index cannot be reached: CPU_TORCH="--find-links DIR", a folder with its wheel. More in the images: EXTRAS="--extra atari".
CPU_TORCH ?= --torch-backend cpu
LOCK = $(BIN)/uv pip compile --quiet --no-config --generate-hashes --no-annotate --no-header $(UPGRADE) \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28

lock: $(READY)
	$(LOCK) $(CPU_TORCH) $(EXTRAS) --no-emit-package torch pyproject.toml -o docker/actor.lock
	$(LOCK) $(CPU_TORCH) --extra learner --extra certs $(EXTRAS) --constraint docker/actor.lock --no-emit-package torch \
		$$(sed -n 's/^\([^ =]*\)==.*/--no-emit-package \1/p' docker/actor.lock) pyproject.toml -o docker/learner.lock
	$(LOCK) docker/build.in -o docker/build.lock
	$(LOCK) $(CPU_TORCH) --no-deps docker/torch.in -o docker/torch-cpu.lock
	sed -i '1i --index-url https://download.pytorch.org/whl/cpu' docker/torch-cpu.lock
	$(LOCK) --constraint docker/actor.lock --constraint docker/learner.lock docker/torch.in -o docker/torch-cuda.lock

# Known vulnerabilities of the images' packages; torch's by its CUDA lock alone, since PyPI knows no "+cpu". Needs the network.
ADVISORIES := https://pypi.org/pypi/pip/24.0/json
audit: $(READY)
	@curl --silent --fail --max-time 20 $(ADVISORIES) | grep -q '"vulnerabilities"' \
		|| { echo "make $@: skipped, no advisories come from $(ADVISORIES)" >&2; exit 0; }; \
	for lock in docker/actor.lock docker/learner.lock docker/build.lock docker/torch-cuda.lock; do \
		$(BIN)/uv tool run --quiet pip-audit==2.9.0 --strict --disable-pip --require-hashes --requirement $$lock || exit 1; \
	done

# Clients of acting services in each language whose tools are here, and the page that learns in a browser.
#   apt-get install nodejs chromium chromium-driver mono-mcs mono-runtime libmono-system-net-http4.0-cil g++ cmake libssl-dev nlohmann-json3-dev godot3-server
clients-test: $(READY)
	$(BIN)/pytest -rs -m "browser or not browser" tests/clients

# Both images; DOCKER_BUILD_FLAGS goes to docker build, e.g. --network=host.
images:
	@docker version >/dev/null 2>&1 || { echo "make $@: no container engine answers (docker version)" >&2; exit 1; }
	for target in learner actor; do \
		docker build $(DOCKER_BUILD_FLAGS) -f docker/Dockerfile --target $$target -t crossborder-$$target . || exit 1; \
	done

# docker-compose.yml on a real engine, faults included; takes a few minutes.
compose-test: $(READY) images
	$(BIN)/pytest -m compose tests/compose

# Hosts by ssh, and SLURM, on real programs; where one is missing, its tests are skipped:
#   apt-get install openssh-server openssh-client iproute2 slurm-wlm munge
cluster-test: $(READY)
	$(BIN)/pytest -rs -m clusters tests/clusters

# Manifests that repeat other files are committed; manifests-check fails when they differ from those that deploy/ generates.
manifests: $(READY) dashboards
	$(BIN)/python -m deploy

manifests-check: manifests
	git diff --exit-code -- deploy/components

# The manifests as a cluster would get them.
kustomize:
	for overlay in deploy/base deploy/overlays/*; do kubectl kustomize $$overlay >/dev/null || exit 1; done

# Checks that generated files fit their sources.
generated: proto-check dashboards-check manifests-check

# Tests wait much: meanwhile, the checks of types and of the site use the idle core.
check: generated
	$(MAKE) --jobs 3 --output-sync=line lint docs test

bench: $(READY)
	$(BIN)/pytest -m figures tests/benchmarks
	$(BIN)/python -m benchmarks.ingest
	$(BIN)/python -m benchmarks.model
	$(BIN)/python -m benchmarks.actor
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.replay
	$(BIN)/python -m benchmarks.replay --kind atari
	$(BIN)/python -m benchmarks.learner
	$(BIN)/python -m benchmarks.checkpoint

clean:
	rm -rf $(VENV) .venv-oldest build dist examples/node/node_modules *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
