PYTHON ?= .venv/bin/python

.PHONY: run test test-all durations frameworks mutants ci-full lint types bench bench-relay bench-workers bench-orchestrators soak proof docs pictures hosts release-check

run: .venv
	.venv/bin/ultramon demo

test: .venv
	$(PYTHON) -m pytest -n 5 --dist loadfile -m 'not slow'

test-all: .venv
	$(PYTHON) -m pytest -n 5 --dist loadfile

durations: .venv
	$(PYTHON) -m pytest -n 5 --dist loadfile --write-durations

# The oldest and newest supported version of each: make frameworks ARGS='langchain 1.1.0' for another
frameworks: .venv
	$(PYTHON) scripts/frameworks.py $(ARGS)

# The table of docs/hosts.md, and the suite that proves it for each host
hosts: .venv
	$(PYTHON) scripts/generate_hosts_table.py
	$(PYTHON) -m pytest -n 4 tests/hosts/test_host_contract.py tests/test_extending.py -k 'not backend and not integration'

# A sample of modules; all that [tool.mutmut] names take an hour: make mutants MUTANTS='ultramon.*'
MUTANTS ?= ultramon.state.liveness* ultramon.context.ladder* ultramon.notices.message_rules*

mutants: .venv
	.venv/bin/pip install -q -c constraints.txt -e '.[mutants]'
	.venv/bin/mutmut run --max-children 2 $(foreach name,$(MUTANTS),'$(name)')
	.venv/bin/mutmut results

ci-full:
	scripts/ci_full.sh $(ARGS)

lint: .venv
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types: .venv
	$(PYTHON) -m mypy

bench: .venv
	.venv/bin/pip install -q -c constraints.txt -e '.[bench]'
	$(PYTHON) benchmarks/run.py

bench-relay: .venv
	$(PYTHON) benchmarks/relay_arms.py $(ARGS)

bench-workers: .venv
	$(PYTHON) benchmarks/relay_workers.py

# Orchestrators against agents that lie and die, over 20 seeds: make bench-orchestrators ARGS='--only relay'
bench-orchestrators: .venv
	$(PYTHON) benchmarks/relay_bench.py $(ARGS)

soak: .venv
	$(PYTHON) -m benchmarks.soak $(ARGS)

# Writes benchmarks/PROOF.md and proof.json; another seed each time: make proof MINUTES=60 SEED=7
MINUTES ?= 10

proof: .venv
	$(PYTHON) -m benchmarks.proof --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

# The site, from docs/: build/docs/README.html needs no network
docs: .venv
	.venv/bin/pip install -q -c constraints.txt -e '.[docs]'
	$(PYTHON) -m sphinx -W --keep-going -q -b html docs build/docs

# The pictures of the pages, from real runs; needs chromium
pictures: .venv
	$(PYTHON) -m scripts.pictures $(ARGS)

# A release up to the upload
release-check: .venv
	$(PYTHON) scripts/release_check.py

.venv:
	python3 -m venv .venv
	.venv/bin/pip install -q -c constraints.txt -e '.[dev]'
