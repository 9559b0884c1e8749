# Everything a user or a contributor does from a checkout. `make run` needs only Python >= 3.11 and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: run demo test test-long check format coverage bench chaos screenshots clean

run: $(VENV)/.installed
	@$(BIN)/gputui

demo: $(VENV)/.installed
	@$(BIN)/gputui --demo

# Many tests wait more than they compute, so four run at once on two cores; what must be alone comes afterwards.
JOBS ?= 4
# Both parts run, whatever the first finds. A failure names the seed of its order: make test SEED="--seed 1".
define in-two-parts
	@status=0; \
	$(BIN)/python -m pytest -m "$(1) and not alone" -n $(JOBS) --dist loadgroup $(2) || status=$$?; \
	$(BIN)/python -m pytest -m "$(1) and alone" $(2) || status=$$?; \
	exit $$status
endef

test: $(VENV)/.installed-dev
	$(call in-two-parts,not long,$(SEED))

# Random chaos, every property with hundreds of examples, the wide matrix of the trainer, benchmarks, the wheel.
test-long: $(VENV)/.installed-dev
	$(call in-two-parts,(long or hypothesis),--hypothesis-profile many $(SEED))

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# How much of the trainer its own tests run, rank processes included.
coverage: $(VENV)/.installed-dev
	rm -rf .coverage && mkdir .coverage
	$(BIN)/python -m coverage run -m pytest tests/trainer
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# Some minutes of killing, stopping and continuing processes at random; CHAOS="--rounds 300 --study-kills 200 --seed 1" for more.
chaos: $(VENV)/.installed-dev
	$(BIN)/python -m tests.faults.chaos $(CHAOS)

screenshots: $(VENV)/.installed-dev
	$(BIN)/python -m docs.screenshots

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gputui needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing gputui and its trainer into $(VENV) (once)"
	$(PIP) install -c constraints.txt -e '.[train]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[train,dev]'
	@touch $@
