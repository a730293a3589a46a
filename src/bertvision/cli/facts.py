"""Verbs that describe what can be used: heads, parameter counts, the recipe's keys."""

import json
from typing import Annotated, Any

from bertvision.cli.options import AsJson, Code, Outputs, Task, opt, print_json
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
    from bertvision.report.terminal import print_heads

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
    plan = Tuning(blocks, adapters, lora, biases=biases)
    table = parameter_table(backbone, plan, _head(head), task=task, outputs=outputs)
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


def _head(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"kind": text}
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f'--head {text[:100]}: not JSON ({error}); for example \'{{"kind":"compress","size":64}}\''
        ) from None
