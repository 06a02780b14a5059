# make demo   install into .venv, then show a message go from a phone to two hosts and back
# make test   install into .venv, then run the tests (about 5 minutes on 2 cores)
# make check  ruff and mypy        make bench  measurements        make format  rewrite layout
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Tests wait for half of their time: two for each core.
JOBS ?= $(shell $(PY) -c 'import os; print(min(16, 2 * (os.cpu_count() or 1)))' 2>/dev/null || echo auto)

.PHONY: demo test test-long test-outside test-vm check format bench install clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@python=$$(tools/find-python) || exit 1; \
	if [ ! -x $(PY) ] || ! $(PY) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then \
	  rm -rf $(VENV); echo "Making $(VENV) with $$python"; "$$python" -m venv $(VENV) || exit 1; \
	fi
	@echo "Installing pacerelled and its pinned dependencies"
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(PY) -m pacerelle_cli demo

test: $(STAMP)
	$(PY) -m pytest -n $(JOBS) -q

test-long: $(STAMP)
	$(PY) -m pytest -m long -q

test-outside: $(STAMP)
	$(PY) -m pytest -m outside -q

test-vm: $(STAMP)
	$(PY) -m pytest -m vm -q

check: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(STAMP)
	$(PY) -m bench

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache
