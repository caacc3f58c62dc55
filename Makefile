# Everything a newcomer needs: `make demo` and `make test` set up their own environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-reproductions slow tenth smoke newest constraints lint bench calls gallery thumbnails docs wheel release-check clean

# the sdist of the library has no reproductions
REPRODUCTIONS := $(wildcard reproductions/pyproject.toml)

# versions of the development environment; `make test CONSTRAINTS=` takes the newest that pyproject.toml allows
CONSTRAINTS ?= $(wildcard constraints.txt)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

$(VENV)/.library: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	@echo "installing into $(VENV): this takes one to three minutes"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.ready: $(VENV)/.library $(REPRODUCTIONS)
	$(INSTALL) --editable '.[dev]' $(if $(REPRODUCTIONS),--editable ./reproductions)
	touch $@

demo: $(VENV)/.library
	$(BIN)/python examples/demo.py

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

# the figures and the gallery, a distribution of their own
test-reproductions: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 --dist worksteal -q reproductions/tests

slow: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m slow tests reproductions/tests

# a tenth of the slow tests, another one after each commit; those of README, pages and notebooks are run by `make docs`
TENTH ?= $(shell git rev-list --count HEAD)

tenth: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m slow --tenth $(TENTH) tests reproductions/tests --ignore tests/docs/test_docs.py --ignore tests/docs/test_readme.py --ignore tests/docs/test_notebooks.py

# one small call of every solver, and the GPU kernels interpreted on a CPU
smoke: $(VENV)/.ready
	$(BIN)/python -m pytest -q -m 'slow or not slow' tests/smoke

# the newest release of each dependency, beyond the upper bounds of pyproject.toml; PRE=--pre takes pre-releases
DEPENDENCIES = $(shell $(BIN)/python -c 'import re, tomllib; print(*[re.split("[<>=]", name)[0] for name in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]])')

newest: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade $(PRE) $(DEPENDENCIES)
	$(BIN)/python -m pip list --disable-pip-version-check

# write the versions of this environment into constraints.txt
constraints: $(VENV)/.docs
	$(BIN)/python -m pip freeze --disable-pip-version-check --exclude-editable > constraints.txt

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.style --gate
	$(BIN)/pyright

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/run.py

# first and second call of public functions, with what limits them
calls: $(VENV)/.ready
	$(BIN)/python benchmarks/calls.py --json output/calls.json

gallery: $(VENV)/.ready
	$(BIN)/python -m sgdynamics_reproductions.gallery --quick --out output/gallery

# the thumbnails of the gallery page, from the figures of `make gallery`
thumbnails:
	$(BIN)/python docs/gallery/thumbnails.py output/gallery

# examples of the README and the pages and the notebooks are run, must print what is shown, and leave their pictures in output/pictures and
# output/notebooks for the pages; a headless browser, where there is one, opens every page
docs: $(VENV)/.docs
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m 'slow or not slow' tests/docs/test_docs.py tests/docs/test_readme.py tests/docs/test_notebooks.py -k 'examples or test_readme or notebooks'
	$(BIN)/python -m sphinx -W --keep-going -n -q -d output/.doctrees docs output/docs
	PAGES=output/docs $(BIN)/python -m pytest -q tests/docs/test_pages.py tests/cli/explorer/test_page.py
	@echo "open output/docs/index.html"

$(VENV)/.docs: $(VENV)/.ready
	$(INSTALL) --editable '.[docs]'
	$(BIN)/npm install --silent --no-audit --no-fund --prefix $(VENV)/katex katex@0.19.1
	touch $@

# what a release uploads, installed in fresh environments and tried there; RELEASE_TAG=v1.2.3 is held against the version
wheel: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'build>=1.2'
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m build --outdir dist reproductions
	DIST=dist $(BIN)/python -m pytest -q -m 'slow or not slow' tests/docs/test_release.py

# all of a release but the upload; RELEASE_TAG=v1.2.3 is compared with the version
release-check: lint test smoke slow test-reproductions docs wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'twine>=6'
	$(BIN)/python -m twine check --strict dist/*
	@echo "dist/ can be uploaded"

clean:
	rm -rf $(VENV) output dist
