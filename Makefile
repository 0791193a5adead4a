# The environment is in .venv/, and build products are in target/. A second run redoes only what changed.
# PROFILE=release builds the optimised binary (`make bench` does).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
PROFILE ?= dev
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
INSTALLED := $(VENV)/.installed-$(PROFILE)
CLIPPY := cargo clippy --workspace --all-targets --locked --profile $(PROFILE) -- -D warnings

export PATH := $(BIN):$(PATH)
export PYTHON
export PROFILE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CARGO_TARGET_DIR := $(CURDIR)/target

# The tests start a thousand Python processes, many of which import sources. So byte code is cached even if the
# environment turns that off.
unexport PYTHONDONTWRITEBYTECODE

# What goes into the wheel. Tests are not part of it, so a changed test does not reinstall the package.
SOURCES := pyproject.toml README.md LICENSE Cargo.toml Cargo.lock \
	$(shell find src kernel-proxy gpu-worker broker crates plan runner kernelspec python-shim/baton python-shim/baton_shim \
		-type f -not -path '*/tests/*' -not -path '*/__pycache__/*')

.PHONY: help
help:
	@echo "make demo      build, install into .venv, run an example notebook on a GPU service of its own"
	@echo "make lab       the same, then open JupyterLab on the examples"
	@echo "make test      everything that must pass"
	@echo "make check     lint and unit tests: what to run while you work"
	@echo "make lint      formatting, clippy, ruff, mypy, spelling"
	@echo "make deny      licences, duplicates and sources of the crates"
	@echo "make test-matrix  the Python package with other versions of Python and of the libraries"
	@echo "make test-cuda-libraries  PyTorch, CuPy, cuda.core, Numba on a CUDA driver in host memory (Python 3.10, 2 GB)"
	@echo "make bench     measure, and write the page of this release in benches/results/"
	@echo "make test-gpu  the checks that need an NVIDIA GPU"
	@echo "make bench-gpu what needs one, measured into target/benches/"
	@echo "make gpu-first-day  on a GPU for the first time: at most nine minutes, one report in target/benches/"
	@echo "make gpu-kit   pack what that needs for a machine without compiler or network, into dist/gpu-kit"
	@echo "make cuda-names  list anew which functions of the CUDA driver libraries look up (downloads 5 GB)"
	@echo "make labextension  build the extension of JupyterLab anew, into kernelspec/"
	@echo "make clean     remove .venv and target/"

.PHONY: demo
demo: $(INSTALLED)
	$(BIN)/python scripts/demo.py examples/notebooks/02-train-a-model.ipynb

.PHONY: lab
lab: $(INSTALLED)
	$(BIN)/jupyter lab --ServerApp.root_dir=examples/notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: test
test: browser prepared lint test-rust test-python test-ends
	@echo "Not run: make test-cuda-libraries (needs Python 3.10, and takes some minutes)"

# The compiler works while packages are downloaded and unpacked, which keeps one processor busy at most.
.PHONY: prepared
prepared: $(BIN)/python
	$(MAKE) compiled & trap "kill $$! 2>/dev/null || true" EXIT; $(MAKE) downloaded; wait $$!

.PHONY: compiled
compiled:
	$(CLIPPY)
	if cargo nextest --version >/dev/null 2>&1; \
	then cargo nextest run --no-run --workspace --locked --cargo-profile $(PROFILE); \
	else cargo test --no-run --workspace --locked --profile $(PROFILE); fi

.PHONY: downloaded
downloaded: $(foreach needed,dev build examples test cuda frameworks kubernetes,$(VENV)/.requirements-$(needed)) \
	$(VENV)/.azurite $(VENV)/.suites $(VENV)/.hub $(VENV)/.batch $(VENV)/.labextension

# The Rust tests start kernels, and these variables say where Python and the shim are. The tests wait a lot, so there are
# two at a time for each processor.
.PHONY: test-rust
test-rust: export PYTHONPATH := $(CURDIR)/python-shim
test-rust: export BATON_TEST_PYTHON := $(BIN)/python
test-rust: $(VENV)/.requirements-test $(VENV)/.azurite $(VENV)/.requirements-cuda $(INSTALLED)
	scripts/install-system-packages postgres sandbox
	if cargo nextest --version >/dev/null 2>&1; \
	then cargo nextest run --no-fail-fast --workspace --locked --cargo-profile $(PROFILE) \
		--test-threads $$(( 2 * $$(nproc) )); \
	else cargo test --no-fail-fast --workspace --locked --profile $(PROFILE); fi

# Several processes run the tests, each as an imaginary user of its own. `loadfile` keeps the tests of a file in one
# process and in order, so that only one of them loads each slow library. The folder's order has no long file at its end.
.PHONY: test-python
test-python: $(VENV)/.requirements-frameworks $(VENV)/.requirements-kubernetes $(VENV)/.suites $(VENV)/.hub $(VENV)/.azurite $(VENV)/.batch $(VENV)/.labextension $(INSTALLED)
	scripts/install-system-packages network sandbox guest $(if $(filter 0,$(shell id -u)),slurm gridengine containers)
	$(BIN)/pytest -m "not gpu" -n 3 --dist loadfile --no-loadscope-reorder python-shim/tests
	$(BIN)/python scripts/test_end_to_end.py

# The oldest and the newest supported versions, with the tests that depend most on versions. If a Python is missing, its
# tests are skipped and a line says so.
.PHONY: test-ends
test-ends: $(VENV)/.requirements-test
	scripts/install-system-packages stubs
	$(BIN)/python scripts/test_matrix.py --ends

# Four environments, some of which take 5 GB, so `make test` does not include them. MATRIX="newest --remove" runs one of
# them and removes it afterwards.
.PHONY: test-matrix
test-matrix: $(VENV)/.requirements-test $(INSTALLED)
	scripts/install-system-packages stubs sandbox
	$(BIN)/python scripts/test_matrix.py $(MATRIX)

# Real CUDA libraries on the interposer, which moves memory at random times. BATON_TEST_SEED=N repeats the run that
# printed this seed.
.PHONY: test-cuda-libraries
test-cuda-libraries: $(VENV)/.cuda-libraries $(VENV)/.requirements-test
	$(BIN)/pytest -m cuda_libraries tests/cuda_libraries

.PHONY: test-gpu
test-gpu: gpu $(VENV)/.requirements-gpu $(VENV)/.requirements-cuda $(INSTALLED)
	$(BIN)/pytest -m gpu

# Without a GPU, the result says what was not run. `make bench-gpu GPU="--minutes 10 --seconds 15"` gives a first
# impression.
.PHONY: bench-gpu
bench-gpu: export PROFILE := release
bench-gpu: $(VENV)/.requirements-test $(VENV)/.requirements-cuda
	$(BIN)/python benches/gpu/counts.py
	$(BIN)/python benches/gpu/times.py
	$(BIN)/python benches/gpu/run.py $(GPU)

# On a machine without make, run `python3 benches/gpu/first_day.py` instead.
.PHONY: gpu-first-day
gpu-first-day: gpu
	$(PYTHON) benches/gpu/first_day.py $(GPU)

# The target machine needs the Python of KIT_PYTHON. Packages that PyTorch installs, such as the bindings of the CUDA
# driver, are not in the kit.
KIT := dist/gpu-kit
KIT_PYTHON ?= 3.12
.PHONY: gpu-kit
gpu-kit: $(VENV)/.requirements-build
	rm -rf $(KIT)
	mkdir -p $(KIT)
	cargo build --release --locked -p baton-gpu-tests --bin gpu-timeshare
	cp target/release/gpu-timeshare $(KIT)/
	MATURIN_PEP517_ARGS="--profile release --locked" \
		$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(KIT) .
	$(BIN)/pip download --quiet --no-deps --only-binary=:all: --python-version $(KIT_PYTHON) --dest $(KIT) \
		$(foreach old,17 28 34,--platform manylinux_2_$(old)_x86_64) --platform manylinux2014_x86_64 \
		-r requirements/runtime.txt
	@du -sh $(KIT)

.PHONY: gpu
gpu:
	@[[ -e /dev/nvidia0 ]] || { echo "This machine has no NVIDIA GPU (no /dev/nvidia0): nothing was run" >&2; exit 1; }

.PHONY: lint
lint: $(VENV)/.requirements-dev
	cargo fmt --all --check
	$(CLIPPY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/typos

# Tests that need no server, browser or framework. Of the Rust tests, only those that take seconds.
.PHONY: check
check: lint $(VENV)/.requirements-test
	if cargo nextest --version >/dev/null 2>&1; \
	then cargo nextest run --workspace --locked --lib --bins \
		-E 'not (test(exploration) + test(sweep::) + test(objects::) + package(baton-broker-store))'; \
	else cargo test --quiet --workspace --exclude baton-broker-store --locked --lib --bins -- \
		--skip exploration --skip sweep:: --skip objects::; fi
	$(BIN)/pytest -q tests/test_repository.py tests/test_rust_structure.py
	$(BIN)/pytest -q -n 2 \
		$(foreach name,analysis completion first_uses link options source,python-shim/tests/shim/test_$(name).py) \
		$(foreach name,errors in_place keeper names singletons,python-shim/tests/state/test_$(name).py)

# Checks licences, duplicates and sources of the crates. Needs `cargo install cargo-deny`.
.PHONY: deny
deny:
	cargo deny --all-features check licenses bans sources

.PHONY: bench
bench:
	$(MAKE) PROFILE=release bench-installed

.PHONY: bench-installed
bench-installed: $(VENV)/.requirements-test $(INSTALLED)
	scripts/install-system-packages network
	$(BIN)/python benches/run.py

.PHONY: clean
clean:
	rm -rf $(VENV) target tests/artefacts .mypy_cache .ruff_cache .hypothesis

# Run this after a change in labextension/. Its output is checked in, so that `pip install` from source needs no Node.
.PHONY: labextension
labextension: $(VENV)/.labextension
	scripts/build-labextension

.PHONY: browser
browser:
	scripts/install-system-packages browser qt

$(INSTALLED): $(VENV)/.requirements-build $(VENV)/.requirements-examples $(SOURCES)
	@command -v cargo >/dev/null || { echo "Rust is missing: install it with rustup, then try again" >&2; exit 1; }
	rm -f $(VENV)/.installed-*
	MATURIN_PEP517_ARGS="--profile $(PROFILE) --locked" \
		$(BIN)/pip install --quiet --no-deps --no-build-isolation --force-reinstall .
	touch $@

$(VENV)/.requirements-frameworks: requirements/frameworks.txt scripts/stub_cuda.py $(VENV)/.requirements-test
	scripts/install-system-packages stubs
	$(BIN)/pip install --quiet --no-deps -r $<
	$(BIN)/python scripts/stub_cuda.py
	touch $@

# The same with the CUDA libraries that torch requires. stub_cuda.py then removes the stubs.
$(VENV)/.requirements-gpu: requirements/frameworks.txt requirements/gpu.txt scripts/stub_cuda.py \
		$(VENV)/.requirements-test
	scripts/install-system-packages stubs
	$(BIN)/pip install --quiet -r requirements/frameworks.txt -r requirements/gpu.txt
	$(BIN)/python scripts/stub_cuda.py
	touch $@

# Helm as a library, and schemas. Their dependencies are pinned in hub.txt.
$(VENV)/.requirements-kubernetes: requirements/kubernetes.txt $(VENV)/.requirements-hub
	$(BIN)/pip install --quiet --no-deps -r $<
	touch $@

$(VENV)/.requirements-cuda: requirements/cuda.txt | $(BIN)/python
	$(BIN)/pip install --quiet --upgrade --target $(VENV)/cuda -r $<
	touch $@

$(VENV)/.cuda-libraries: requirements/cuda-libraries.txt scripts/find-python | $(BIN)/python
	rm -rf $(VENV)/cuda-libraries
	"$$(scripts/find-python 3.10)" -m venv $(VENV)/cuda-libraries
	$(VENV)/cuda-libraries/bin/python -m pip install --quiet --no-deps -r $<
	touch $@

# Lists the functions of the CUDA driver that the newest versions of these libraries look up. Downloads about 5 GB.
# The interposer's tests then name the functions that it does not know.
ASKED := gpu-worker/interposer/src/library/sys/asked.txt
CUDA_LIBRARIES ?= $(shell sed -n 's/^\# \([a-z0-9_]*\) .*/\1/p' $(ASKED))
WHEELS := target/cuda-names
.PHONY: cuda-names
cuda-names: | $(BIN)/python
	rm -rf $(WHEELS)
	$(BIN)/pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --dest $(WHEELS) \
		$(foreach old,17 24 27 28 34,--platform manylinux_2_$(old)_x86_64) --platform manylinux2014_x86_64 \
		$(CUDA_LIBRARIES)
	$(BIN)/python scripts/cuda_names.py $(WHEELS)/*.whl > $(WHEELS)/asked.txt
	mv $(WHEELS)/asked.txt $(ASKED)
	rm -rf $(WHEELS)

# Test suites of other projects, for tests/test_foreign_suites.py. Only source archives contain the tests. The plugins
# are in a folder of their own, because they change how pytest runs.
$(VENV)/.suites: requirements/suites.txt requirements/suite-plugins.txt $(VENV)/.requirements-test
	rm -rf $(VENV)/suites
	$(BIN)/pip download --quiet --no-deps --no-binary ipykernel,jupyter_server,nbclient \
		--dest $(VENV)/suites -r requirements/suites.txt
	for archive in $(VENV)/suites/*.tar.gz; do tar -xzf $$archive -C $(VENV)/suites; done
	$(BIN)/pip install --quiet --no-deps --target $(VENV)/suites/plugins -r requirements/suite-plugins.txt
	touch $@

# JupyterHub's proxy, for tests/test_hub.py. Packages may not run install scripts.
$(VENV)/.hub: requirements/hub/package.json requirements/hub/package-lock.json $(VENV)/.requirements-hub
	mkdir -p $(VENV)/hub
	cp requirements/hub/*.json $(VENV)/hub
	$(BIN)/npm ci --prefix $(VENV)/hub --silent --ignore-scripts --no-audit --no-fund
	touch $@

# Azurite, Microsoft's test server for Azure Blob Storage. Packages may not run install scripts.
$(VENV)/.azurite: requirements/azurite/package.json requirements/azurite/package-lock.json $(VENV)/.requirements-hub
	mkdir -p $(VENV)/azurite
	cp requirements/azurite/*.json $(VENV)/azurite
	$(BIN)/npm ci --prefix $(VENV)/azurite --silent --ignore-scripts --no-audit --no-fund
	touch $@

# Programs that run notebooks unattended, for tests/test_batch_tools.py. They extend JupyterLab, so they are in a folder
# of their own.
$(VENV)/.batch: requirements/batch.txt $(VENV)/.requirements-hub
	rm -rf $(VENV)/batch
	$(BIN)/pip install --quiet --no-deps --target $(VENV)/batch -r $<
	touch $@

# Tools that build the JupyterLab extension. Packages may not run install scripts.
$(VENV)/.labextension: labextension/package.json labextension/package-lock.json $(VENV)/.requirements-hub
	rm -rf $(VENV)/labextension
	mkdir -p $(VENV)/labextension
	cp labextension/package.json labextension/package-lock.json $(VENV)/labextension
	$(BIN)/npm ci --prefix $(VENV)/labextension --silent --ignore-scripts --no-audit --no-fund
	touch $@

$(VENV)/.requirements-%: requirements/%.txt | $(BIN)/python
	$(BIN)/pip install --quiet -r $<
	touch $@

$(BIN)/python:
	scripts/install-system-packages build
	$(PYTHON) -m venv $(VENV)
