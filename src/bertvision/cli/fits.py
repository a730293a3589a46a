"""The verb that needs no recipe: `fit`."""

from pathlib import Path
from typing import Annotated

from bertvision.cli.options import AsJson, arg, opt, print_json


def fit(
    data: Annotated[Path, arg("Your examples: .csv, .tsv, .jsonl, SQuAD .json, or .conll.")],
    text: Annotated[list[str] | None, opt("A column of text; twice for pairs of texts. Found if not given.")] = None,
    label: Annotated[str, opt("The column of the label or the score. Found if not given.")] = "",
    minutes: Annotated[float, opt("How long to go on.")] = 10.0,
    steps: Annotated[int | None, opt("Exactly the first steps, however long they take; instead of --minutes.")] = None,
    tune: Annotated[str, opt("A file to choose on; split off the data if not given.")] = "",
    test: Annotated[str, opt("A file to report on; split off the data if not given.")] = "",
    out: Annotated[Path | None, opt("Directory of the result; runs/<name of the file> if not given.")] = None,
    encoder: Annotated[str, opt("minilm, marco, pocket (for questions), a directory or a hub name.")] = "",
    seed: Annotated[int, opt("Decides the split and the training.", min=0)] = 1,
    as_json: AsJson = False,
) -> None:
    """The best model for a file in the minutes there are, without a recipe. Ctrl-C keeps the best so far."""
    from bertvision.auto.fit import fit as fit_data

    options = {"label": label, "minutes": minutes, "steps": steps, "tune": tune, "test": test, "encoder": encoder}
    found = fit_data(data, text=text or (), out=out or "", seed=seed, quiet=as_json, **options)
    if as_json:
        scores = {"metric": found.metric, "tune": found.tune, "test": found.test, "low": found.low, "high": found.high}
        print_json({"directory": str(found.directory), "step": found.step, **scores})
        return
    print(f"{found.metric} {found.test:.2f} on test (95 %: {found.low:.2f} to {found.high:.2f})")
    print(f"report: {found.directory / 'report.html'}")
    run = found.directory / "steps" / found.step
    print(f"model: {found.model}" if found.model else f"run: {run} (there are no readers for this task yet)")
