"""`bertvision data ...`: verbs for data sets."""

from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli.options import AsJson, arg, help_without_verb, opt, print_json

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

    found = describe(source, DataRecipe(glue=glue, text=tuple(text or ()), label=label))
    if as_json:
        print_json(found)
        return
    for key, value in found.items():
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
    from bertvision.report.terminal import download_bar

    with download_bar(name) as progress:
        if name == "squad2-dev":
            path = fetch_dev_set(directory, progress=progress)
        else:
            path = fetch_official(name, directory, progress=progress)
    print(path)
