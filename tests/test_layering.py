"""The structure of the package: the order of its folders, and sizes a reader can keep in mind."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from textwrap import dedent

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "bertvision"

# A folder or file imports only from those before it. The command line may import all.
ORDER = [
    *(
        "__init__",
        "errors",
        "files",
        "wheels",
        "toml",
        "schema",
        "registry",
        "recipe",
        "reference",
        "devices",
        "runtime",
    ),
    *(
        "data",
        "backbone",
        "states",
        "heads",
        "evaluate",
        "tasks",
        "train",
        "report",
        "serve",
        "auto",
        "cli",
        "__main__",
    ),
]
LATER = {("recipe", "heads")}  # within a function only: head options are declared by the heads, and checked early
FOREIGN = {"transformers": {"backbone"}, "peft": {"backbone"}, "huggingface_hub": {"backbone"}}
MODULES = 79  # of ours that a study imports; what it does not need is imported where it is used
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imports(tree: ast.AST) -> list[tuple[str, ast.AST]]:
    """All modules imported anywhere below `tree`, with the statement."""
    found: list[tuple[str, ast.AST]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            found += [(f"{base}.{alias.name}" if base == "bertvision" else base, node) for alias in node.names]
    return found


@each_file
def test_a_folder_imports_only_from_those_before_it(path):
    here = room(path)
    assert here in ORDER
    for name, node in imports(TREES[path]):
        parts = name.split(".")
        assert here in FOREIGN.get(parts[0], {here}), f"line {node.lineno}: {here} must not import {parts[0]}"
        if parts[0] != "bertvision":
            continue
        there = parts[1] if len(parts) > 1 and parts[1] in ORDER else "__init__"
        if (here, there) in LATER:
            assert node.col_offset > 0, f"line {node.lineno}: must be imported where it is used"
        else:
            assert ORDER.index(there) <= ORDER.index(here), f"line {node.lineno}: {here} must not import {there}"


@each_file
def test_files_and_signatures_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.FunctionDef) and room(path) != "cli":  # there a parameter is an option of a verb
            options = [] if room(path) == "heads" and node.name == "__init__" else node.args.kwonlyargs  # of a recipe
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *options)]
            assert len([name for name in names if name not in ("self", "cls")]) <= 8, node.name


def test_no_file_name_appears_twice():
    allowed = {"__init__.py", "squad.py"}  # evaluate.squad is part of the public surface
    folders = defaultdict(list)
    for path in FILES:
        folders[path.name].append(path.parent.name)
    assert {name: where for name, where in folders.items() if len(where) > 1 and name not in allowed} == {}


def test_the_tree_in_the_readme_is_in_this_order():
    text = (SOURCE.parents[1] / "README.md").read_text(encoding="utf-8")
    lines = text[text.index("src/bertvision/\n") :].split("```")[0].splitlines()[1:]
    rooms = [line.split()[0].removesuffix("/").removesuffix(".py") for line in lines]
    below = [name for name in rooms if name != "cli"]  # comes first there, as the place where a reader begins
    assert len(below) > 5
    assert below == sorted(below, key=ORDER.index)


def test_a_study_imports_few_modules(tmp_path):
    from runs import tiny_recipe  # imports much itself

    recipe = tiny_recipe(tmp_path / "study.toml", finetune={"epochs": 0.2, "checkpoints": []}, heads=[{"kind": "pool"}])
    script = """
        import sys
        from bertvision import cli
        try:
            cli.main()
        except SystemExit as end:
            assert not end.code
        print(*sorted(name for name in sys.modules if name.partition(".")[0] == "bertvision"))
    """
    words = ["study", recipe, "--out", tmp_path / "run", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", dedent(script), *words], capture_output=True, encoding="utf-8", check=True
    )
    found = done.stdout.splitlines()[-1].split()
    assert len(found) <= MODULES, (len(found), found)
