"""Documentation of the recipe, made from its declarations: the JSON schema and docs/recipe.md."""

from typing import Any

from bertvision import recipe, toml
from bertvision.schema import LARGEST, adapter

INTRODUCTION = """\
# The keys of a recipe

A recipe is a TOML file, such as those in `recipes/`. Every key has a default, so a recipe names only what differs;
an unknown key, a wrong type or an impossible value is an error that names the file and the key.
`--set key=value` changes one value for one run: `--set finetune.epochs=0.5`, `--set heads.0.size=64`,
`--set "seeds=[1, 2, 3]"`, `--set backbone.name=path/to/encoder`.

For editors: `bertvision recipe --schema` prints a JSON schema. This page is made from the source:
`bertvision recipe > docs/recipe.md`.
"""
TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a string",
    "object": "a table",
    "boolean": "true or false",
}


def json_schema(cls: Any = recipe.Recipe) -> dict[str, Any]:
    """The JSON schema of the recipe, or of one of its tables, every key with its description."""
    schema = adapter(cls).json_schema()
    inherited = adapter(recipe.Training).json_schema()["properties"]  # pydantic describes no inherited field
    for table in (schema, *schema.get("$defs", {}).values()):
        for name, node in table["properties"].items():
            if "description" not in node:
                node["description"] = inherited[name]["description"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def reference() -> str:
    """docs/recipe.md: every key with its type, default and meaning."""
    schema = json_schema()
    tables = {name: node["$ref"].rpartition("/")[2] for name, node in schema["properties"].items() if "$ref" in node}
    sections = [("The recipe itself", schema), *((f"`[{name}]`", schema["$defs"][cls]) for name, cls in tables.items())]
    sections.append(("`[[heads]]`, beside `kind` and its options", json_schema(recipe.HeadEntry)))
    return INTRODUCTION + "".join(f"\n## {title}\n\n{_table(table)}" for title, table in sections)


def _table(table: dict[str, Any]) -> str:
    rows = [("key", "type", "default", "meaning"), ("---",) * 4]
    for name, node in table["properties"].items():
        if "$ref" not in node:
            meaning = " ".join(node["description"].split())
            rows.append((f"`{name}`", _type(node), f"`{toml.literal(node['default'])}`", meaning))
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def _type(node: dict[str, Any]) -> str:
    """A type of the schema in words."""
    if "anyOf" in node:
        return " or ".join(map(_type, node["anyOf"]))
    if "enum" in node or "const" in node:
        return ", ".join(repr(value) for value in node.get("enum", [node.get("const")]))
    if node["type"] == "array":
        return f"a list, each {_type(node['items'])}"
    low, high = node.get("minimum"), node.get("maximum", LARGEST)
    bound = "" if low is None else f" (at least {low:g})" if high >= LARGEST else f" (between {low:g} and {high:g})"
    return TYPES[node["type"]] + bound
