# Everything that is made lies in .venv and target/. A second run does only what changed.
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

export PATH := $(BIN):$(PATH)
export PYTHON
export PROFILE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CARGO_TARGET_DIR := $(CURDIR)/target

# The tests start a thousand Pythons, many of them from sources: compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

# What goes into the wheel. Tests do not, so a changed test installs nothing anew.
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
	@echo "make test-cuda-libraries  PyTorch 1.12 in turns on a CUDA driver in host memory (Python 3.10, 2 GB on disk)"
	@echo "make bench     measure, and write the page of this release in benches/results/"
	@echo "make test-gpu  the checks that need an NVIDIA GPU"
	@echo "make bench-gpu what needs one, measured into target/benches/"
	@echo "make gpu-first-day  on a GPU for the first time: at most nine minutes, one report in target/benches/"
	@echo "make gpu-kit   pack what that needs for a machine without compiler or network, into dist/gpu-kit"
	@echo "make labextension  build the extension of JupyterLab anew, into kernelspec/"
	@echo "make clean     remove .venv and target/"

.PHONY: demo
demo: $(INSTALLED)
	$(BIN)/python scripts/demo.py examples/notebooks/02-train-a-model.ipynb

.PHONY: lab
lab: $(INSTALLED)
	$(BIN)/jupyter lab --ServerApp.root_dir=examples/notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: test
test: browser lint test-rust test-python test-ends
	@echo "Not run: make test-cuda-libraries (needs Python 3.10, and takes some minutes)"

# The Rust tests start kernels: they find Python and the shim here.
.PHONY: test-rust
test-rust: export PYTHONPATH := $(CURDIR)/python-shim
test-rust: export BATON_TEST_PYTHON := $(BIN)/python
test-rust: $(VENV)/.requirements-test $(VENV)/.azurite $(VENV)/.requirements-cuda $(INSTALLED)
	scripts/install-system-packages postgres sandbox
	if cargo nextest --version >/dev/null 2>&1; \
	then cargo nextest run --no-fail-fast --workspace --locked --cargo-profile $(PROFILE); \
	else cargo test --no-fail-fast --workspace --locked --profile $(PROFILE); fi

# Two at a time, which share nothing but processors; those of one file are one user's, in order, and so each library
# that takes seconds to load is loaded by one of the two.
.PHONY: test-python
test-python: $(VENV)/.requirements-frameworks $(VENV)/.requirements-kubernetes $(VENV)/.suites $(VENV)/.hub $(VENV)/.azurite $(VENV)/.batch $(VENV)/.labextension $(INSTALLED)
	scripts/install-system-packages network sandbox guest slurm gridengine containers
	$(BIN)/pytest -m "not gpu" -n 2 --dist loadfile python-shim/tests
	$(BIN)/pytest -m "not gpu and not cuda_libraries" -n 2 --dist loadfile tests

# The oldest and the newest versions that are supported, with the tests that tell most. It says so where a Python is missing.
.PHONY: test-ends
test-ends: $(VENV)/.requirements-test
	scripts/install-system-packages stubs
	$(BIN)/python scripts/test_matrix.py --ends

# Four further environments, of up to 5 GB, so apart from `make test`; MATRIX="newest --remove" runs one.
.PHONY: test-matrix
test-matrix: $(VENV)/.requirements-test $(INSTALLED)
	scripts/install-system-packages stubs sandbox
	$(BIN)/python scripts/test_matrix.py $(MATRIX)

# Real libraries of CUDA under the interposer, with moves at random. BATON_TEST_SEED=N repeats what a run printed.
.PHONY: test-cuda-libraries
test-cuda-libraries: $(VENV)/.cuda-libraries $(VENV)/.requirements-test
	$(BIN)/pytest -m cuda_libraries --reruns 0 tests/cuda_libraries

.PHONY: test-gpu
test-gpu: gpu $(VENV)/.requirements-gpu $(VENV)/.requirements-cuda $(INSTALLED)
	$(BIN)/pytest -m gpu

# Also without a GPU: then the result says what was not run. `make bench-gpu GPU="--minutes 10 --seconds 15"` is a first look.
.PHONY: bench-gpu
bench-gpu: export PROFILE := release
bench-gpu: $(VENV)/.requirements-test $(VENV)/.requirements-cuda
	$(BIN)/python benches/gpu/counts.py
	$(BIN)/python benches/gpu/run.py $(GPU)

# `python3 benches/gpu/first_day.py` does the same where there is no make.
.PHONY: gpu-first-day
gpu-first-day: gpu
	$(PYTHON) benches/gpu/first_day.py $(GPU)

# For a machine with this Python. What PyTorch brings, such as the bindings of the CUDA driver, is not in it.
KIT := dist/gpu-kit
KIT_PYTHON ?= 3.12
.PHONY: gpu-kit
gpu-kit: $(VENV)/.requirements-build
	rm -rf $(KIT)
	mkdir -p $(KIT)
	cargo build --release --locked -p baton-gpu-tests --example turns
	cp target/release/examples/turns $(KIT)/
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
	cargo clippy --workspace --all-targets --locked --profile $(PROFILE) -- -D warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/typos

# What needs no server, browser or framework, and of the Rust tests what takes seconds.
.PHONY: check
check: lint $(VENV)/.requirements-test
	if cargo nextest --version >/dev/null 2>&1; \
	then cargo nextest run --workspace --locked --lib --bins \
		-E 'not (test(exploration) + test(sweep::) + test(objects::) + package(baton-broker-store))'; \
	else cargo test --quiet --workspace --exclude baton-broker-store --locked --lib --bins -- \
		--skip exploration --skip sweep:: --skip objects::; fi
	$(BIN)/pytest -q -n 2 tests/test_repository.py tests/test_rust_structure.py \
		$(foreach name,analysis completion first_uses link options source,python-shim/tests/shim/test_$(name).py) \
		$(foreach name,errors in_place keeper names singletons,python-shim/tests/state/test_$(name).py)

# Licences, duplicates and sources of the crates; needs `cargo install cargo-deny`.
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

# After a change in labextension/. What it makes is checked in, so that `pip install` from source needs no Node.
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

# The same with the CUDA libraries that torch names: of the stand-ins none is left.
$(VENV)/.requirements-gpu: requirements/frameworks.txt requirements/gpu.txt scripts/stub_cuda.py \
		$(VENV)/.requirements-test
	scripts/install-system-packages stubs
	$(BIN)/pip install --quiet -r requirements/frameworks.txt -r requirements/gpu.txt
	$(BIN)/python scripts/stub_cuda.py
	touch $@

# Helm as a library, and schemas. What they need is pinned for the Hub.
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

# Test suites of others, for tests/test_foreign_suites.py: source archives, which contain the tests. Their plugins are
# kept apart, because they change how pytest runs.
$(VENV)/.suites: requirements/suites.txt requirements/suite-plugins.txt $(VENV)/.requirements-test
	rm -rf $(VENV)/suites
	$(BIN)/pip download --quiet --no-deps --no-binary ipykernel,jupyter_server,nbclient \
		--dest $(VENV)/suites -r requirements/suites.txt
	for archive in $(VENV)/suites/*.tar.gz; do tar -xzf $$archive -C $(VENV)/suites; done
	$(BIN)/pip install --quiet --no-deps --target $(VENV)/suites/plugins -r requirements/suite-plugins.txt
	touch $@

# The proxy of a JupyterHub, for tests/test_hub.py. No script of a package is run.
$(VENV)/.hub: requirements/hub/package.json requirements/hub/package-lock.json $(VENV)/.requirements-hub
	mkdir -p $(VENV)/hub
	cp requirements/hub/*.json $(VENV)/hub
	$(BIN)/npm ci --prefix $(VENV)/hub --silent --ignore-scripts --no-audit --no-fund
	touch $@

# Microsoft's server for tests of Azure Blob Storage. No script of a package is run.
$(VENV)/.azurite: requirements/azurite/package.json requirements/azurite/package-lock.json $(VENV)/.requirements-hub
	mkdir -p $(VENV)/azurite
	cp requirements/azurite/*.json $(VENV)/azurite
	$(BIN)/npm ci --prefix $(VENV)/azurite --silent --ignore-scripts --no-audit --no-fund
	touch $@

# Programs that run notebooks by themselves, for tests/test_batch_tools.py. They add to JupyterLab, so they are kept apart.
$(VENV)/.batch: requirements/batch.txt $(VENV)/.requirements-hub
	rm -rf $(VENV)/batch
	$(BIN)/pip install --quiet --no-deps --target $(VENV)/batch -r $<
	touch $@

# What builds the extension of JupyterLab. No script of a package is run.
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
