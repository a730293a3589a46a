"""The order of the house: data flows down the tour in the README, and imports only look up it."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "bertvision"

# Rooms from the top of the house down; a room may use those above it and itself. The command line may use all.
ORDER = [
    "__init__",
    "errors",
    "files",
    "toml",
    "schema",
    "registry",
    "recipe",
    "reference",
    "runtime",
    "data",
    "backbone",
    "states",
    "heads",
    "evaluate",
    "tasks",
    "train",
    "report",
    "serve",
    "scale",
    "cli",
    "__main__",
]
GLANCES = {("recipe", "heads")}  # only within a function: head options are declared by the heads, and checked early
FILES = sorted(SOURCE.rglob("*.py"))


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


def used_rooms(path: Path) -> list[tuple[str, ast.AST]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = [(name.split("."), node) for name, node in imports(tree) if name.split(".")[0] == "bertvision"]
    return [(parts[1] if len(parts) > 1 and parts[1] in ORDER else "__init__", node) for parts, node in own]


def test_every_room_has_its_place():
    assert FILES
    assert {room(path) for path in FILES} <= set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_uses_only_those_above_it(path):
    here = room(path)
    for there, node in used_rooms(path):
        if (here, there) in GLANCES:
            assert node.col_offset > 0, f"line {node.lineno}: must be imported where it is used"
            continue
        assert ORDER.index(there) <= ORDER.index(here), f"line {node.lineno}: {here} must not import {there}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_transformers_stays_in_the_backbone(path):
    outside = {"transformers", "peft", "huggingface_hub"}
    if room(path) != "backbone":
        names = {name.split(".")[0] for name, _ in imports(ast.parse(path.read_text(encoding="utf-8")))}
        assert not names & outside


def test_the_tour_in_the_readme_is_in_this_order():
    text = (SOURCE.parents[1] / "README.md").read_text(encoding="utf-8")
    tour = [line.split()[0] for line in text[text.index("src/bertvision/\n") :].split("```")[0].splitlines()[1:]]
    rooms = [name.removesuffix("/").removesuffix(".py") for name in tour]
    below = [name for name in rooms if name != "cli"]  # stands first there, for it is where a reader begins
    assert len(below) > 5
    assert below == sorted(below, key=ORDER.index)
