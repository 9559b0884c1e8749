# Everything a user or a contributor does from a checkout. `make run` needs only Python >= 3.11 and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: run demo test test-long drill-targets test-long-setup check format coverage bench chaos screenshots clean

run: $(VENV)/.installed
	@$(BIN)/gputui

demo: $(VENV)/.installed
	@$(BIN)/gputui --demo

# Four workers on two cores, since many tests wait for processes; tests/conftest.py says which worker runs what.
JOBS ?= 4

# The same tests with the same examples in the same order each time.
test: $(VENV)/.installed-dev
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -m "not long" -n $(JOBS) --dist loadgroup --durations 10

# What only breadth finds, in random order: chaos, the wide matrix, real Slurm, Ray, sshd and frameworks, the wheel, and
# what measures time, which runs last and alone. A failure prints its seed: make test-long SHUFFLE=1234
SHUFFLE ?= any
LONG = $(BIN)/python -m pytest --hypothesis-profile many --shuffle $(SHUFFLE) --durations 10
test-long: $(VENV)/.installed-dev
	@status=0; \
	$(LONG) -m "(long or hypothesis) and not alone" -n $(JOBS) --dist loadscope || status=$$?; \
	$(LONG) -m "long and alone" || status=$$?; \
	exit $$status

# The drills of targets on a Slurm and an sshd of their own, as root; a part of test-long.
drill-targets: $(VENV)/.installed-dev
	@PATH="$$PATH:/usr/sbin"; command -v sbatch >/dev/null && command -v sshd >/dev/null || \
		{ echo "make test-long-setup installs Slurm and sshd"; exit 1; }
	$(LONG) -m long -n $(JOBS) --dist loadscope -rs tests/runs/executors

# What test-long needs beyond pip's packages for `make test`; tests skip what is not installed. Ray has an environment of its own.
test-long-setup: $(VENV)/.installed-dev
	apt-get update -q
	RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
		openssh-server prometheus munge rsync slurm-wlm
	$(PIP) install -c constraints.txt -e '.[train,dev,foreign]'
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install --quiet "ray[default]"

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.budget
	$(BIN)/python -m tools.style
	$(BIN)/python -m docs.tables --check

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

$(VENV)/bin/pip: # comes last, so an interrupted one is made anew
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gputui needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "installing gputui and its trainer into $(VENV) (once)"
	$(PIP) install -c constraints.txt -e '.[train]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[train,dev]'
	@touch $@
