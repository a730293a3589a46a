"""Published results: which of ours each of them stands beside.

An entry is a plain table of a recipe: checkpoint, member, and any numbers that a score row has, costs included.
member = "ensemble" means the backbone with a head at that checkpoint, whichever head that is. A table of a paper may
need several runs, one per tuning plan: `when` gives the settings of the run an entry belongs to, as they follow --set
("finetune.train_layers=6 finetune.adapters=0"), and `label` the paper's name for that run. In a study of several
variants, `variant` may name the one it belongs to instead; a study without variants has no use for such an entry.
`on` says what it was measured on, such as "BERT-large, SQuAD 2.0", where that is not what the study reads: it becomes
part of the columns' headings. `source` is cited below the table.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertvision import toml
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import GREEDY
from bertvision.report.summary import Row

Entry = Mapping[str, Any]
Key = tuple[float | None, str]  # checkpoint, member


def for_run(paper: Iterable[Entry], recipe: Mapping[str, Any]) -> list[Entry]:
    """The entries as a run without variants sees them: those of variants are left out, and those of another run are
    called after it, so that they match no member here."""
    own = [entry for entry in paper if not entry.get("variant")]
    return [entry if _holds(str(entry.get("when", "")), recipe) else of_another_run(entry) for entry in own]


def of_another_run(entry: Entry) -> Entry:
    """An entry under the name of its member and of the run that it belongs to."""
    run = next((entry[key] for key in ("label", "variant", "when") if entry.get(key)), "")
    return {**entry, "member": f"{member_of(entry)}, {run}"} if run else entry


def for_variant(paper: Iterable[Entry], name: str, recipe: Mapping[str, Any]) -> list[Entry]:
    """The entries that belong to one variant of a study: by its name, else by their settings.

    An entry with neither belongs to every variant.
    """
    return [
        entry
        for entry in paper
        if (entry["variant"] == name if "variant" in entry else _holds(str(entry.get("when", "")), recipe))
    ]


def beside(rows: Sequence[Row], paper: Iterable[Entry]) -> list[Entry]:
    """For each row the entry that it is to be compared with, or an empty one."""
    published = {_key(entry): entry for entry in paper}
    return [next((published[key] for key in _keys(row) if key in published), {}) for row in rows]


def alone(rows: Sequence[Row], paper: Iterable[Entry]) -> list[Entry]:
    """The entries that no row stands beside."""
    ours = {key for row in rows for key in _keys(row)}
    return [entry for entry in paper if _key(entry) not in ours]


def called(paper: Iterable[Entry]) -> str:
    """What the columns of published results are called: `paper`, with what these were measured on where they say so."""
    known = dict.fromkeys(str(entry["on"]) for entry in paper if entry.get("on"))
    return f"paper ({'; '.join(known)})" if known else "paper"


def checkpoint_of(entry: Entry) -> float | None:
    """The epoch a published result belongs to, rounded as those of rows are."""
    value = entry.get("checkpoint")
    return round(value, 6) if isinstance(value, int | float) else None


def member_of(entry: Entry) -> str:
    """The member a published result belongs to."""
    return str(entry.get("member", ""))


def _holds(when: str, recipe: Mapping[str, Any]) -> bool:
    """Whether a run has these settings: laid over its recipe, they change nothing."""
    changed = copy.deepcopy(dict(recipe))
    try:
        for setting in when.split():
            toml.lay_over(changed, setting)
    except UserError:  # the recipe has no such place, as `finetune.head.form` where the head is just a kind
        return False
    return changed == recipe


def _key(entry: Entry) -> Key:
    return checkpoint_of(entry), member_of(entry)


def _keys(row: Row) -> list[Key]:
    """Under which names a result for this row may be published, the most exact first."""
    names = [row.member, *(["ensemble"] if row.role == "ensemble" and row.member != GREEDY else [])]
    return [(row.checkpoint, name) for name in names]
