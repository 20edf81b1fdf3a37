# The front door: `make`, `make test`, `make demo`, `make lint`, `make format`. CMake and Ninja do the work.
#   SAN=address|thread   a build with sanitizers, in a folder of its own
#   LABEL=unit|multi|stress|gpu   only these tests; several as 'unit|multi'
#   WERROR=1             warnings are errors
#   JOBS=N               compilers and tests at a time
#   CMAKE_ARGS=...       more arguments for cmake, as -DFCCL_CUDA=OFF
#   PREFIX=/usr/local    where `make install` puts the library
#   REPORT=FILE          what `make gpu-check` and `make nccl-check` write
#   TIDY=all             `make lint` gives clang-tidy all files, not only those that changed
SAN ?=
LABEL ?=
WERROR ?=
JOBS ?= $(shell nproc)
CMAKE_ARGS ?=
PREFIX ?= /usr/local
TIDY ?= changed
REPORT ?= $(BUILD)/$@.md

BUILD := build$(if $(SAN),-$(SAN))

# ThreadSanitizer's shadow memory may collide with the kernel's address space randomisation.
run := $(if $(filter thread,$(SAN)),$(shell setarch -R true 2>/dev/null && echo setarch -R))
export ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1

.PHONY: all deps configure test demo gpu-check nccl-check lint format install clean

all: configure
	$(run) cmake --build $(BUILD) -j $(JOBS)

deps:
	@cmake/install_deps.sh

configure: deps
	cmake -S . -B $(BUILD) -G Ninja -DFCCL_SANITIZE=$(SAN) -DFCCL_WERROR=$(if $(WERROR),ON,OFF) $(CMAKE_ARGS)

# mpirun refuses root, and more ranks than cores, unless it is told.
test demo: export OMPI_ALLOW_RUN_AS_ROOT = 1
test demo: export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
test demo: export OMPI_MCA_rmaps_base_oversubscribe = 1

test: all
	$(run) ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(JOBS) $(if $(LABEL),-L '^($(LABEL))$$')

demo: all
	./examples/demo.sh $(BUILD)

# Everything that needs a GPU, on however many there are; the report is REPORT.
gpu-check: all
	./cmake/gpu_check.sh $(BUILD) $(REPORT)

# The same of what needs NCCL, and PyTorch.
nccl-check: all
	./cmake/nccl_check.sh $(BUILD) $(REPORT)

# clang-tidy cannot read GCC's precompiled headers, so it gets a configuration without them; nothing is built there.
lint: deps
	cmake -S . -B build-lint -G Ninja -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DFCCL_CUDA=OFF $(CMAKE_ARGS)
	@cmake/lint.sh build-lint $(TIDY) $(JOBS)

format:
	@cmake/lint.sh format

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf build build-address build-thread build-lint
