PYTHON ?= .venv/bin/python

.PHONY: run test test-all durations ci-full lint types bench soak docs

run: .venv
	.venv/bin/ultramon demo

test: .venv
	$(PYTHON) -m pytest -n 2 --dist loadfile -m 'not slow'

test-all: .venv
	$(PYTHON) -m pytest -n 2 --dist loadfile

durations: .venv
	$(PYTHON) -m pytest -n 2 --dist loadfile --write-durations

ci-full:
	scripts/ci_full.sh $(ARGS)

lint: .venv
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types: .venv
	$(PYTHON) -m mypy

bench: .venv
	$(PYTHON) benchmarks/run.py

soak: .venv
	$(PYTHON) benchmarks/soak.py $(ARGS)

.venv:
	python3 -m venv .venv
	.venv/bin/pip install -q -c constraints.txt -e '.[dev]'
