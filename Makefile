# The two commands of the README. Everything lives in .venv; nothing outside this folder and the user's cache is touched.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: demo test lint bench clean

demo: $(STAMP)
	$(BIN)/bertvision study recipes/quickstart.toml

test: $(STAMP)-dev lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)-dev
	$(BIN)/python bench/run.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[documents,serve]"
	touch $@

$(STAMP)-dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,documents,lora]"
	touch $@ $(STAMP)

clean:
	rm -rf .venv runs build dist
