# The two commands of the README. Everything lives in .venv; nothing outside this folder and the user's cache is touched.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: demo test ray lint bench torture clean

demo: $(STAMP)
	$(BIN)/bertvision study recipes/quickstart.toml

test: $(STAMP)-dev lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile
	BERTVISION_TEST_DEVICE=ghost $(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m device  # see tests/ghost.py

ray: $(STAMP)-dev  # Ray, with kills and two nodes on this machine; 600 MB more in .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "ray[serve]"
	$(BIN)/python -m pytest -m "ray or not ray" tests/train/test_ray.py tests/serve/test_ray_serve.py

lint: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)-dev
	$(BIN)/python bench/run.py

torture: $(STAMP)-dev  # TORTURE="--minutes 5 --only damage"
	PYTHONPATH=src:tests $(BIN)/python -m torture $(TORTURE)

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
