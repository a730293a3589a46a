"""Published results (`paper` of a recipe), and the rows of ours that they belong beside.

An entry is a table: checkpoint, member, and any numbers that a score row has, costs included, or that the analysis of a
member has, shares in percent (`second_right`, `right_tokens`; see `[analysis]` of templates/texts.toml). member =
"ensemble" means the backbone with a head at that checkpoint, whichever head that is. `when` gives the settings of the
run that an entry belongs to, in the form of --set ("finetune.train_layers=6 finetune.adapters=0"), and `label` the
paper's name for that run. `variant` may name the variant it belongs to instead. `on` says what it was measured on, such
as "BERT-large, SQuAD 2.0", if that is not what the study reads. `source` is cited below the table.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertvision import toml
from bertvision.errors import UserError
from bertvision.report.rows import Row, is_number

Entry = Mapping[str, Any]


def for_run(paper: Iterable[Entry], recipe: Mapping[str, Any]) -> list[Entry]:
    """The entries for a run without variants: those of another run get its name, so that they match no member here."""
    own = [entry for entry in paper if not entry.get("variant")]
    return [entry if _holds(entry, recipe) else of_another_run(entry) for entry in own]


def of_another_run(entry: Entry) -> Entry:
    """An entry whose member carries the name of the run that it belongs to."""
    run = next((entry[key] for key in ("label", "variant", "when") if entry.get(key)), "")
    return {**entry, "member": f"{entry.get('member', '')}, {run}"} if run else entry


def for_variant(paper: Iterable[Entry], name: str, recipe: Mapping[str, Any]) -> list[Entry]:
    """The entries of one variant: by its name, else by their settings; those with neither belong to every variant."""
    return [entry for entry in paper if (entry["variant"] == name if "variant" in entry else _holds(entry, recipe))]


def beside(rows: Sequence[Row], paper: Iterable[Entry]) -> list[Entry]:
    """For each row the entry to compare it with, or an empty one."""
    published = {_key(entry): entry for entry in paper}
    return [next((published[key] for key in _keys(row) if key in published), {}) for row in rows]


def without_counterpart(rows: Sequence[Row], paper: Iterable[Entry]) -> list[Entry]:
    """The entries that belong beside none of the rows."""
    ours = {key for row in rows for key in _keys(row)}
    return [entry for entry in paper if _key(entry) not in ours]


def called(paper: Iterable[Entry]) -> str:
    """The heading of published results: `paper`, with what they were measured on."""
    known = dict.fromkeys(str(entry["on"]) for entry in paper if entry.get("on"))
    return f"paper ({'; '.join(known)})" if known else "paper"


def sources(paper: Iterable[Entry]) -> list[str]:
    """The line that cites them, if they have sources."""
    known = dict.fromkeys(str(entry["source"]) for entry in paper if entry.get("source"))
    return [f"Paper: {'; '.join(known)}."] if known else []


def _holds(entry: Entry, recipe: Mapping[str, Any]) -> bool:
    """Whether a run has the settings of an entry: set in its recipe, they change nothing."""
    changed = copy.deepcopy(dict(recipe))
    try:
        for setting in str(entry.get("when", "")).split():
            toml.lay_over(changed, setting)
    except UserError:  # the recipe has no such key, as `finetune.head.form` if the head is just a kind
        return False
    return changed == recipe


def _key(entry: Entry) -> tuple[float | None, str]:
    epoch = entry.get("checkpoint")
    return round(epoch, 6) if epoch is not None and is_number(epoch) else None, str(entry.get("member", ""))


def _keys(row: Row) -> list[tuple[float | None, str]]:
    """The keys of entries that a row may be compared with, the most exact first."""
    names = [row.name, *(["ensemble"] if row.role == "ensemble" and not row.is_greedy else [])]
    return [(row.epoch, name) for name in names]
