"""Which sets a checkpoint was scored on: a digest of each beside its scores, so that scores of two sets never mix."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bertvision.errors import UserError
from bertvision.files import read_json, write_json
from bertvision.tasks import Dataset

SPLITS = ("tune", "test")


def digest(dataset: Dataset) -> str:
    """Of what is asked and what is right, in order; wherever the files lie."""
    found = hashlib.sha256()
    for record in dataset.records:
        found.update(json.dumps(record.content).encode())
    if dataset.gold is not None:
        found.update(dataset.gold.tobytes())
    return found.hexdigest()


def sets_beside(scores: Path) -> Path:
    """sets-E.json of scores-E.json."""
    return scores.with_name(scores.name.replace("scores", "sets", 1))


def note_sets(scores: Path, data: Mapping[str, Dataset]) -> None:
    """Writes what the scores that are about to be written are of."""
    write_json(sets_beside(scores), {split: digest(data[split]) for split in SPLITS})


def refuse_other_sets(scores: Iterable[Path], data: Mapping[str, Dataset], splits: Sequence[str] = SPLITS) -> None:
    """UserError if any of these files of scores is of other sets than `data`; where none are noted, they may be any."""
    noted = {path: sets_beside(path) for path in scores if sets_beside(path).is_file()}
    now = {split: digest(data[split]) for split in splits} if noted else {}
    for path, note in noted.items():
        then = read_json(note, "note of the sets scored")
        for split in splits:
            if then.get(split) != now[split]:
                raise UserError(
                    f"{path}: was scored when the {split} set ({data[split].source}) was not what it is now; restore "
                    "it, choose another --out, or delete these scores and run `bertvision study` again"
                )
