# Two targets do everything: `make quickstart` and `make test`. Each installs into .venv first if that is not done yet.
PYTHON ?= python3
VENV ?= .venv
SEED ?= 1
PIP_ARGS ?=
MUTANTS ?=
CPU_ARGS ?=
DEFECTS ?=
FINDINGS ?=
BENCH_ARGS ?=
BENCH_REAL_ARGS ?=
GPU_CHECK_ARGS ?=
COMPILE_ARGS ?=
VLLM_PYTHON ?=
VLLM_HOME ?= $(HOME)/.cache/gspo_lightning
TEST_PROCESSES ?= 3
THOROUGH_PROCESSES ?= 4
SHARE ?= 1/1
BIN := $(VENV)/bin
NEWEST := build/newest
EXTRAS := dev,data,lora,gguf,logic,instructions,eval,agents
SANDBOX_TESTS := tests/rewards/sandbox tests/rewards/code tests/rollouts/agents tests/runs/test_agent_kills.py \
  tests/runs/test_code_run.py tests/runs/test_secrets.py tests/rollouts/environments/test_tools.py \
  tests/data/prompts/tasks/test_code.py \
  tests/data/prompts/test_data_configs.py tests/training/suites/test_records.py tests/commands/data/test_report.py \
  tests/commands/evaluate/test_programs.py tests/commands/evaluate/test_recorded.py tests/commands/test_score.py \
  tests/core/test_thinking.py tests/runs/test_half_characters.py
SPELLED := $(wildcard *.md) .github docs findings gspo_lightning benchmarks configs examples experiments plugins tools # tests misspell on purpose
USER_TESTS := $(SANDBOX_TESTS) tests/resume tests/commands/export tests/commands/init tests/runs/test_one_writer.py \
  tests/runs/test_checkpoints.py tests/runs/test_named_faults.py tests/rollouts/vllm/test_key.py

unexport PYTHONDONTWRITEBYTECODE  # where that is set, each process of a test compiles all it imports again

.PHONY: help install sandbox bench-install bench bench-real test-gpu gpu-check device-check device-check-compile \
  docs links quickstart real-model there test test-all test-quick test-thorough test-durations test-long \
  test-sandbox test-landlock test-user test-trl test-newest release test-wheel test-container test-vllm test-agents test-view test-real-model \
  audit mutants defects findings check format lint types doctest constraints lock clean

help:
	@echo "make quickstart [SEED=2]   cold start, then GSPO, on a tiny model: about a minute on a CPU"
	@echo "make real-model            fetch SmolLM2-135M-Instruct (93 MB, once) for gspo fit --config smollm2; trains nothing"
	@echo "make test                  the test suite: under eight minutes on two cores"
	@echo "make test-all              everything: installs TRL, vLLM, agents, a browser; two hours (.ci/run, with an eighth of the long runs: one)"
	@echo "make test-PART             a part of it: quick thorough sandbox landlock user trl agents view vllm real-model wheel"
	@echo "                           container; or long, newest, gpu, durations, which it has not: CONTRIBUTING.md says what each is"
	@echo "make docs                  the documentation as a site, in build/site"
	@echo "make links                 whether the links of the documentation lead somewhere (needs the network)"
	@echo "make release               sdist and wheel of the commit in dist/, built twice with equal hashes; publishes nothing"
	@echo "make audit                 known vulnerabilities of the pinned packages (needs the network)"
	@echo "make mutants               break the mathematics in every place and see that the tests notice (docs/mutants.md)"
	@echo "make defects               put proven defects back one by one and see that the tests notice (tools/defects)"
	@echo "make findings              surprises of other packages (findings/), each installed anew: minutes; one: FINDINGS=name"
	@echo "make sandbox               bubblewrap, which model-written programs run in, and g++ for those in C++ (docs/sandbox.md)"
	@echo "make bench-install         TRL, for make bench and make test-trl"
	@echo "make bench                 speed and memory beside TRL, on one CPU thread: under 10 minutes (benchmarks/README.md)"
	@echo "make bench-real            a step of the model of make real-model beside TRL: CPU time and memory, 25 minutes"
	@echo "make gpu-check             is this card right, fast and small enough? 13 minutes, one JSON (docs/gpu_checks.md)"
	@echo "make device-check          kernels, casts, syncs and bytes that a device would see, counted on a CPU in a minute"
	@echo "make device-check-compile  attention compiled for an H100 without one; its environment (5 GB) is built once, in VLLM_HOME"
	@echo "make check                 ruff, codespell, mypy --strict, doctests, pre-commit's configuration"
	@echo "make format                let ruff format and fix"
	@echo "make constraints           write the installed versions to constraints.txt"
	@echo "make lock                  the same versions with the hashes of their files, in tools/requirements.lock"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or newer is needed; give one with: make PYTHON=python3.12 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	extras=$$($(PYTHON) tools/extras.py $(EXTRAS)) && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e ".[$$extras]"
	@touch $@

bench-install: $(VENV)/.bench-installed

$(VENV)/.bench-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[bench]'
	@touch $@

sandbox:
	@wanted=; command -v bwrap > /dev/null || wanted=bubblewrap; command -v g++ > /dev/null || wanted="$$wanted g++"; \
	  test -z "$$wanted" || { \
	  command -v apt-get > /dev/null || \
	    { echo "error: install with this system's package manager:" $$wanted; exit 1; }; \
	  run=; test "$$(id -u)" = 0 || run=sudo; \
	  test -z "$$run" || command -v sudo > /dev/null || \
	    { echo "error: something is missing; as root: apt-get install" $$wanted; exit 1; }; \
	  $$run apt-get install -y -qq $$wanted || { $$run apt-get update -qq && $$run apt-get install -y -qq $$wanted; }; }
	@bwrap --version
	@g++ --version | head -n 1

bench: bench-install
	$(BIN)/python -m benchmarks --quick --json $(BENCH_ARGS)

bench-real: bench-install
	$(BIN)/python -m benchmarks.real $(BENCH_REAL_ARGS)

# with what is there: images with CUDA bring their own torch; an environment is made only where there is none
THERE := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
there:
	@$(THERE) -c 'import torch, lightning, transformers' 2> /dev/null || $(MAKE) --no-print-directory install

test-gpu: there
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); GSPO_TEST_ACCELERATOR=gpu \
	  $$python -m pytest tests/runs/test_configs.py tests/runs/test_lora.py tests/runs/test_model_configs.py \
	  tests/runs/test_critic.py tests/runs/test_resume.py tests/runs/test_invariance.py tests/runs/test_float16.py \
	  tests/runs/test_distillation_run.py tests/runs/test_routing_run.py tests/runs/test_model_families.py

gpu-check: there
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); $$python -m benchmarks.gpu_check $(GPU_CHECK_ARGS)

device-check: there
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); $$python -m benchmarks.device_check

device-check-compile:
	@python=$$($(PYTHON) -m tools.cuda_environment "$(VLLM_HOME)" $(PIP_ARGS)) || exit 1; \
	  $$python -m benchmarks.device_check --compile $(COMPILE_ARGS)

# the site: warnings are errors, nothing is fetched
docs: $(VENV)/.docs-installed
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/site
	@echo "written: build/site/index.html"

links: $(VENV)/.docs-installed  # asks every site that a page links to
	$(BIN)/sphinx-build -q -b linkcheck docs build/links

$(VENV)/.docs-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[docs]'
	@touch $@

quickstart: install
	$(BIN)/gspo fit --config configs/quickstart.yaml --seed_everything $(SEED)

real-model: install
	@$(BIN)/python tools/real_model.py $(PIP_ARGS)

# files of tests in one process more than the two cores of CI, because some tests wait; every test is single-threaded
test: install
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

test-thorough: install  # its tests wait more: for ranks, kills and limits
	$(BIN)/python -m pytest --parts thorough --share $(SHARE) -n $(THOROUGH_PROCESSES) --dist loadfile

test-all:  # bubblewrap and a browser become packages of the system
	.ci/run suite thorough check isolation peers package

test-quick: install
	$(BIN)/python -m pytest -m "not slow and not long" -n $(TEST_PROCESSES) --dist loadfile

# what GSPO_TEST_CPU=cpu.json make test has measured, beside tests/durations.json; with CPU_ARGS=--write the table anew
test-durations: install
	$(BIN)/python -m tools.durations $(or $(GSPO_TEST_CPU),cpu.json) $(CPU_ARGS)

test-long: install  # tests one by one
	$(BIN)/python -m pytest tests -m long -n $(TEST_PROCESSES) --dist load

# with GSPO_TESTS_EXPECT, what was installed and does not work is a failure and not a skip
test-sandbox: install sandbox
	GSPO_TESTS_EXPECT=bubblewrap $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile $(SANDBOX_TESTS)

test-landlock: install  # where bubblewrap is hidden: .ci/run sandbox
	GSPO_TESTS_EXPECT=landlock $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile $(SANDBOX_TESTS)

test-user: install  # root's rights hide what a user meets: closed folders, namespaces, signals
	$(BIN)/python -m tools.ordinary_user -m pytest -n $(TEST_PROCESSES) --dist loadfile -p no:cacheprovider $(USER_TESTS)

test-trl: bench-install
	GSPO_TESTS_EXPECT=trl $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile tests/objectives/test_against_trl.py tests/benchmarks/test_benchmarks.py tests/benchmarks/test_real.py \
	  tests/rewards/test_trl_functions.py tests/data/prompts/test_tool_calls.py tests/commands/fit/test_foreign.py \
	  tests/training/test_cold_start_against_trl.py \
	  "tests/project/test_code_in_docs.py::test_python_runs[from_trl]"

# vLLM pins versions of its own, so it has an environment of its own; VLLM_PYTHON=... takes one that is there
test-vllm:
	@python="$(VLLM_PYTHON)"; \
	  test -n "$$python" || python=$$($(PYTHON) tools/vllm_environment.py "$(VLLM_HOME)" $(PIP_ARGS)) || exit 1; \
	  PYTHONPATH="$(CURDIR)" "$$python" -m pytest tests/real_vllm -m "vllm and not long"

# real clients (openai, anthropic, agent frameworks), about 320 MB in an environment of their own, and OpenEnv and
# verifiers in others of 480 and 600 MB; AGENTS_PYTHON=..., OPENENV_PYTHON=... and VERIFIERS_PYTHON=... take those that are there
test-agents: install
	@python="$(AGENTS_PYTHON)"; openenv="$(OPENENV_PYTHON)"; verifiers="$(VERIFIERS_PYTHON)"; \
	  test -n "$$python" || python=$$($(PYTHON) -m tools.agents_environment "$(VLLM_HOME)" agents $(PIP_ARGS)) || exit 1; \
	  test -n "$$openenv" || openenv=$$($(PYTHON) -m tools.agents_environment "$(VLLM_HOME)" openenv $(PIP_ARGS)) || exit 1; \
	  test -n "$$verifiers" || verifiers=$$($(PYTHON) -m tools.agents_environment "$(VLLM_HOME)" verifiers $(PIP_ARGS)) || exit 1; \
	  GSPO_AGENTS_PYTHON="$$python" GSPO_OPENENV_PYTHON="$$openenv" GSPO_VERIFIERS_PYTHON="$$verifiers" \
	  $(BIN)/python -m pytest tests/real_agents

# axe-core (MPL-2.0) checks the page for people who see, point or read otherwise; it is fetched once and not kept here
AXE_VERSION = 4.14.1
AXE_SHA256 = 29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
AXE = $(VLLM_HOME)/axe-core-$(AXE_VERSION)/axe.min.js

test-view: install
	@command -v chromedriver > /dev/null && command -v chromium > /dev/null || { \
	  run=; test "$$(id -u)" = 0 || run=sudo; $$run apt-get update -qq && $$run apt-get install -y -qq chromium chromium-driver; }
	@test -f "$(AXE)" || { command -v npm > /dev/null && work=$$(mktemp -d) && cd "$$work" && \
	  npm pack --silent axe-core@$(AXE_VERSION) > /dev/null && tar xzf axe-core-$(AXE_VERSION).tgz package/axe.min.js && \
	  echo "$(AXE_SHA256)  package/axe.min.js" | sha256sum --check --quiet && mkdir -p "$(dir $(AXE))" && \
	  mv package/axe.min.js "$(AXE)"; } || echo "without axe-core, which npm fetches: contrasts are checked by the tests' own rule"
	GSPO_PICTURES="$(PICTURES)" GSPO_AXE="$$(ls "$(AXE)" 2> /dev/null)" $(BIN)/python -m pytest -m "long or not long" -rs tests/report/view

test-real-model: install  # three minutes; without the file of make real-model it is skipped, with the reason
	$(BIN)/python -m pytest -m long -rs tests/runs/test_real_model.py

# the newest releases, those beyond the bounds in pyproject.toml, too; in an environment of its own
test-newest:
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[$(EXTRAS),bench]'
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --upgrade torch lightning transformers trl
	$(NEWEST)/bin/python -m pip freeze --exclude-editable
	$(NEWEST)/bin/python -m pytest --parts all -n $(TEST_PROCESSES) --dist loadfile

test-wheel: install
	dist=$$(mktemp -d) && trap 'rm -rf "$$dist"' EXIT && \
	  $(BIN)/python -m build --no-isolation --outdir "$$dist" . > "$$dist/log" 2>&1 || { cat "$$dist/log"; exit 1; }; \
	  $(BIN)/python -m tools.try_wheel "$$dist"/*.whl $(PIP_ARGS)

release: install  # nothing is published; two folders and two umasks, as .github/workflows/release.yml does
	again=$$(mktemp -d) && trap 'rm -rf "$$again"' EXIT && $(BIN)/python -m tools.build_release dist && \
	  (umask 077 && $(BIN)/python -m tools.build_release "$$again" > /dev/null) && cmp dist/SHA256SUMS "$$again"/SHA256SUMS

test-container: $(VENV)/.container-installed
	$(BIN)/hadolint examples/Dockerfile
	$(BIN)/python -m tools.try_container examples/Dockerfile $(PIP_ARGS)

$(VENV)/.container-installed: $(VENV)/.installed  # hadolint has wheels for x86-64 alone
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[container]'
	@touch $@

audit: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[audit]'
	$(BIN)/pip-audit --strict --no-deps --disable-pip -r constraints.txt

mutants: install
	$(BIN)/python -m tools.mutants $(MUTANTS)

defects: install
	$(BIN)/python -m tools.defects $(DEFECTS)

# each in an environment of its own, with the versions that it names; a behaviour that has changed is an error
findings:
	@status=0; for script in $(if $(FINDINGS),$(FINDINGS:%=findings/%.sh),$(sort $(wildcard findings/*.sh))); do \
	  echo "== $$script"; PYTHON=$(PYTHON) bash $$script || { status=1; echo "not as described: $$script"; }; done; exit $$status

check: install lint types doctest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $(SPELLED)
	$(BIN)/pre-commit validate-config .pre-commit-config.yaml

types: install
	$(BIN)/mypy

doctest: install
	$(BIN)/python -m pytest gspo_lightning --durations=0

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: bench-install $(VENV)/.docs-installed
	{ echo "# Tested versions: pip install -c constraints.txt -e '.[$(EXTRAS),docs,bench]'. Regenerate with: make constraints"; \
	  $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.txt

# pip refuses editable installs with hashes, so the hashes have a file of their own; uv asks for them and is not kept
lock:
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(PYTHON) -m venv "$$folder" && \
	  "$$folder"/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) uv && \
	  grep -v '^torch==' constraints.txt | "$$folder"/bin/uv --quiet pip compile - --universal --python-version 3.11 --no-deps \
	    --generate-hashes --no-header --no-annotate --output-file "$$folder"/lock > /dev/null && \
	  { echo "# The versions of constraints.txt with the hashes of their files: pip install --require-hashes --no-deps -r tools/requirements.lock"; \
	    echo "# Without torch, which is installed before: its wheel for CPUs comes from an index of its own. Regenerate with: make lock"; \
	    cat "$$folder"/lock; } > tools/requirements.lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
