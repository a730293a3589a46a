"""Verbs that describe what can be used: heads, parameter counts, the recipe's keys, data sets."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli.options import AsJson, Code, Outputs, Task, arg, help_without_verb, opt, print_json
from bertvision.errors import UserError


def heads(
    layers: Annotated[int, opt("Layers of the backbone, embedding output included.")] = 7,
    width: Annotated[int, opt("Width of the backbone.")] = 384,
    backbone: Annotated[str, opt("Take layers and width from it, e.g. bert-large-uncased.")] = "",
    task: Task = "spans",
    outputs: Outputs = 2,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """The registered heads with their options, formula and parameter count."""
    from bertvision.heads.catalog import catalog

    if backbone:
        from bertvision.heads.catalog import encoder_counts

        layers, width, _ = encoder_counts(backbone)
    entries = catalog(layers, width, task, outputs)
    if as_json:
        print_json(entries)
        return
    from bertvision.report.lists import print_heads

    print_heads(entries, layers, width, task)


def params(
    backbone: Annotated[str, opt("An architecture known offline, or a directory with config.json.")] = "minilm",
    train_layers: Annotated[str, opt("`all`, or the number of last blocks that train.")] = "all",
    adapters: Annotated[int, opt("Size of Houlsby adapters, 0 = none.")] = 0,
    lora: Annotated[int, opt("Rank of LoRA, 0 = none.")] = 0,
    biases: Annotated[bool, opt("All biases train, too.", "--biases")] = False,
    head: Annotated[str, opt("A kind of head, or a JSON table of it.")] = "last",
    task: Task = "spans",
    outputs: Outputs = 2,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Exact parameter counts of any backbone, tuning and head, without weights."""
    from bertvision.backbone.plan import Tuning
    from bertvision.heads.catalog import parameter_table

    blocks: Any = int(train_layers) if train_layers.isdecimal() and len(train_layers) < 10 else train_layers
    tuning = Tuning(blocks, adapters, lora, biases=biases)
    table = parameter_table(backbone, tuning, _head_entry(head), task=task, outputs=outputs)
    if as_json:
        print_json(table)
        return
    for key, value in table.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else value
        print(f"{key:22} {shown}")


def recipe(
    schema: Annotated[bool, opt("Print the JSON schema, for editors.", "--schema")] = False,
) -> None:
    """The keys of a recipe, with type, default and meaning."""
    from bertvision.reference import json_schema, reference

    print(json.dumps(json_schema(), indent=2) if schema else reference(), end="\n" if schema else "")


def _head_entry(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"kind": text}
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f'--head {text[:100]}: not JSON ({error}); for example \'{{"kind":"compress","size":64}}\''
        ) from None


data_app = typer.Typer()


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """Make the sample set; fetch and verify SQuAD and GLUE; show statistics."""
    help_without_verb(context)


@data_app.command()
def sample(
    split: Annotated[str, arg("train, tune or test.")],
    out: Annotated[Path, arg("The JSON file to write.")],
    questions: Annotated[int, opt("How many questions.", min=1)] = 3000,
) -> None:
    """Write the synthetic sample set as a SQuAD 2.0 file."""
    from bertvision.data.sources import load_articles
    from bertvision.data.squad import write_articles

    write_articles(out, load_articles(f"sample:{split}:{questions}"))
    print(f"{out}: {questions} synthetic questions")


@data_app.command()
def stats(
    source: Annotated[str, arg("A SQuAD file, sample:…, squad_v2, glue:CoLA/train, or a table.")],
    glue: Annotated[str, opt("The folder of the official GLUE files.")] = "data/glue",
    text: Annotated[list[str] | None, opt("A column of text of a table; may be given twice.")] = None,
    label: Annotated[str, opt("The column of a table that holds the label or the score.")] = "",
    as_json: AsJson = False,
) -> None:
    """Counts and lengths of a set of questions or texts."""
    from bertvision.data.statistics import describe
    from bertvision.recipe import DataRecipe

    statistics = describe(source, DataRecipe(glue=glue, text=tuple(text or ()), label=label))
    if as_json:
        print_json(statistics)
        return
    for key, value in statistics.items():
        shown = ", ".join(f"{name} {number}" for name, number in value.items()) if isinstance(value, dict) else value
        print(f"{key:14} {shown}")


@data_app.command()
def fetch(
    name: Annotated[str, arg("squad2-dev, train-v2.0.json, dev-v2.0.json, dev-v1.1.json, or glue:CoLA and the like.")],
    directory: Annotated[Path, opt("Where to put it.", "--out")] = Path("data"),
) -> None:
    """Download an official SQuAD file and verify its size and sha256; or the files of a GLUE task, and their rows."""
    if name.startswith("glue:"):
        from bertvision.data import glue

        print("\n".join(map(str, glue.fetch(name.removeprefix("glue:"), directory / "glue"))))
        return
    from bertvision.data.download import fetch_dev_set, fetch_official
    from bertvision.report.lists import download_bar

    with download_bar(name) as progress:
        if name == "squad2-dev":
            path = fetch_dev_set(directory, progress=progress)
        else:
            path = fetch_official(name, directory, progress=progress)
    print(path)
