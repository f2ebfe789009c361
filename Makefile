# One command each for what a newcomer or a contributor does. CMakePresets.json has the same builds
# for those who prefer `cmake --workflow --preset cpu`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# The tests run with the CUDA kernels where nvcc and a GPU are found.
PRESET ?= $(shell [ -e /dev/nvidia0 ] && command -v nvcc >/dev/null && echo cuda || echo cpu)
PREFIX ?= /usr/local
RUN_PRESET ?= release
FUZZ_SECONDS ?= 20
export JOBS ?= $(shell nproc)

# The command line has no threads of its own to watch.
THREADED_TESTS := foveal_unit_tests foveal_kernel_tests foveal_property_tests
empty :=
space := $(empty) $(empty)

VENV := build/venv
PYTEST_OPTIONS ?= -q

.PHONY: help run test fast test-gpu gpu-bundle asan tsan fuzz format format-check install clean

help: ## What there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

run: ## Compute attention of two real models and compare it with the right answer
	@scripts/install_dependencies.sh run
	@scripts/build.sh $(RUN_PRESET) foveal_cli
	@for file in examples/data/*.safetensors; do \
	  echo; echo "> foveal run --check $$file"; \
	  build/$(RUN_PRESET)/bin/foveal run --check "$$file"; \
	done

test: ## Build and run all tests
	@scripts/install_dependencies.sh test
	@scripts/build.sh $(PRESET)
	@scripts/test.sh $(PRESET)
	@if compgen -G 'tests/python/test_*.py' >/dev/null; then $(MAKE) --no-print-directory pytest; fi

.PHONY: pytest
pytest: $(VENV)/installed ## Build the Python package, install it into build/venv, and test it
	@scripts/install_dependencies.sh test
	@scripts/build.sh $(PRESET) foveal foveal_cli foveal_baseline
	@scripts/step.sh "Installing foveal into $(VENV)" $(VENV)/bin/python -m pip install \
	  --no-build-isolation --no-deps --force-reinstall . \
	  -C build-dir=build/$(PRESET) -C cmake.define.FOVEAL_BUILD_TESTS=ON
	@FOVEAL_BUILD_DIR=build/$(PRESET) $(VENV)/bin/python -m pytest $(PYTEST_OPTIONS) tests/python

# PyTorch is the tests' second opinion; the library and the command do not use it.
$(VENV)/installed: tests/python/requirements.txt
	@scripts/install_dependencies.sh test
	@[ -x $(VENV)/bin/python ] || scripts/step.sh "Creating $(VENV)" python3 -m venv $(VENV)
	@scripts/step.sh "Installing $< into $(VENV)" $(VENV)/bin/python -m pip install --quiet -r $<
	@touch $@

fast: ## Build and run the fast tests (about a minute)
	@scripts/install_dependencies.sh test
	@scripts/build.sh $(PRESET)
	@scripts/test.sh $(PRESET) -L fast

test-gpu: ## The tests of the CUDA kernels; skipped where there is no GPU (GPU_TESTS=--slow for all)
	@scripts/install_dependencies.sh test
	@scripts/build.sh $(PRESET) foveal_cli foveal_kernel_tests foveal_property_tests foveal_tools_tests
	@scripts/gpu_tests.py --bin build/$(PRESET)/bin --out build/gpu-tests $(GPU_TESTS)

gpu-bundle: ## Pack programs and inputs for a GPU machine that has the driver and Python alone
	@scripts/install_dependencies.sh test
	@scripts/build.sh bundle
	@scripts/gpu_bundle.sh build/bundle

asan: ## The fast tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/install_dependencies.sh test
	@scripts/build.sh asan
	@scripts/test.sh asan

tsan: ## The tests of threads under ThreadSanitizer
	@scripts/install_dependencies.sh test
	@scripts/build.sh tsan $(THREADED_TESTS)
	@scripts/test.sh tsan -R '^($(subst $(space),|,$(THREADED_TESTS)))'

fuzz: ## Fuzz the file readers, FUZZ_SECONDS each
	@scripts/install_dependencies.sh fuzz
	@scripts/build.sh fuzz
	@scripts/fuzz.sh $(FUZZ_SECONDS)

format: ## Lay out the sources with clang-format 16
	@scripts/install_dependencies.sh format
	@scripts/format.sh

format-check: ## Fail where `make format` would change something
	@scripts/install_dependencies.sh format
	@scripts/step.sh "Checking the format" scripts/format.sh --check

install: ## Install library, headers and command into PREFIX
	@scripts/install_dependencies.sh run
	@scripts/build.sh release
	@cmake --install build/release --prefix $(PREFIX)

clean: ## Remove build/
	@rm -rf build
