# Front door for people and for CI. The build itself is CMake's: see CMakePresets.json.

.DEFAULT_GOAL := help
.PHONY: help packages build demo test test-python wheel asan test-gpu test-python-gpu sanitize-gpu bench tables format lint clean

PRESET  ?= release
CAPTURE ?= data/wan_nano_2k_s10_l5.safetensors
TABLES  ?=
JOBS    ?= $(shell nproc)

BUILD  := build/$(PRESET)
CLI    := $(BUILD)/apps/cli/vcattn
# Warnings are errors with the compiler that the project is developed with; another one may know more of them.
WERROR = $(if $(filter 12 12.%,$(shell $(CXX) -dumpversion)),ON,OFF)

configure = cmake --preset $(1) -DVCATTN_WERROR=$(WERROR)
build     = cmake --build --preset $(1) --parallel $(JOBS)
run_tests = ctest --preset $(1) --no-tests=error --parallel $(JOBS)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

packages: ## install the Debian or Ubuntu packages that are missing
	@tools/install_packages.sh

build: packages ## configure and build everything
	$(call configure,$(PRESET))
	$(call build,$(PRESET))

demo: packages ## compare all recipes on the shipped capture, write demo-out/report.html
	$(call configure,$(PRESET))
	$(call build,$(PRESET)) --target vcattn_cli
	@mkdir -p demo-out
	$(CLI) compare $(CAPTURE) --html demo-out/report.html --json demo-out/report.json
	@echo "Report: $(CURDIR)/demo-out/report.html   figures: demo-out/report.json"

test: build ## build everything and run every test
	$(call run_tests,$(PRESET))
	@$(MAKE) --no-print-directory test-python

wheel: build ## package the built library for Python: one wheel in dist/
	tools/build_wheel.sh $(BUILD)/src/libvcattn.so dist

test-python: wheel ## install that wheel into virtual environments, run tests/python without and with torch (2.5 GB from PyPI)
	tools/test_python.sh dist build/python

asan: packages ## run the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call configure,asan)
	$(call build,asan)
	$(call run_tests,asan) --label-exclude lint

test-gpu: packages ## build and run the tests that need a CUDA device; prints a JSON record
	$(call configure,cuda)
	$(call build,cuda) --target vcattn_gpu_tests
	build/cuda/tests/cuda/vcattn_gpu_core_test
	build/cuda/tests/cuda/vcattn_gpu_prepare_test
	build/cuda/tests/cuda/vcattn_gpu_grouping_test
	build/cuda/tests/cuda/vcattn_gpu_attention_test --gtest_filter=Streams.ACapturedCallMayBeTheFirst
	build/cuda/tests/cuda/vcattn_gpu_attention_test
	build/cuda/tests/api/vcattn_gpu_c_api_test
	build/cuda/tests/cli/vcattn_gpu_cli_test

test-python-gpu: packages ## the Python tests that need a CUDA device, on a wheel of the CUDA build (torch comes from PyPI)
	$(call configure,cuda)
	$(call build,cuda) --target vcattn
	tools/build_wheel.sh build/cuda/src/libvcattn.so dist
	VCATTN_REQUIRE_CUDA=1 tools/test_python.sh dist build/python tests/python/gpu

sanitize-gpu: packages ## run small and odd GPU tests under the four tools of compute-sanitizer
	$(call configure,cuda)
	$(call build,cuda) --target vcattn_gpu_tests
	for tool in memcheck racecheck synccheck initcheck; do \
	  run="compute-sanitizer --tool $$tool --error-exitcode 3 build/cuda/tests/cuda/vcattn_gpu_"; \
	  $${run}prepare_test --gtest_filter='GpuPrepare.EveryKernel' && \
	  $${run}grouping_test --gtest_filter='GpuGrouping.Layouts*:GpuGrouping.Segments*' && \
	  $${run}attention_test --gtest_filter='Recipes/*' || exit 1; \
	done

bench: packages ## run the benchmarks
	$(call configure,$(PRESET))
	$(call build,$(PRESET)) --target vcattn_bench_micro
	$(BUILD)/bench/vcattn_bench_micro

tables: packages ## measure again what README.md shows, and docs/alignment.md for TABLES="FILE ..."
	$(call configure,$(PRESET))
	$(call build,$(PRESET)) --target vcattn_cli
	python3 tools/update_tables.py --cli $(CLI) readme $(CAPTURE)
	$(if $(TABLES),python3 tools/update_tables.py --cli $(CLI) alignment $(TABLES))

format: packages ## format the C++ sources
	python3 tools/lint.py --rules format --fix

lint: packages ## check the sources and the documentation (what needs the built CLI is checked by `make test`)
	python3 tools/lint.py

clean: ## remove the build folders of `make test` and `make asan`, and the report
	rm -rf $(BUILD) build/asan demo-out
