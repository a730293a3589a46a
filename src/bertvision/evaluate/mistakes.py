"""The most instructive mistakes: a few of every sort, each with the reason why it is worth a look."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.squad import Record, normalize
from bertvision.evaluate.analysis import Verdict

Sort = tuple[str, Any, Any]
"""Why, which questions (Q,), how telling each of them is (Q,); `{right}` and `{wrong}` stand for a member that is."""


def instructive(records: Sequence[Record], verdicts: Mapping[str, Verdict], most: int = 50) -> list[dict[str, Any]]:
    """At most `most` questions that some member gets wrong: {"id", "question", "context", "gold", "answers", "why"}.

    Taken in turn from each sort of mistake, the most telling first, no question twice.
    """
    right = np.array([verdict.exact for verdict in verdicts.values()])  # (M, Q)
    names = list(verdicts)
    found = []
    for row, why in take_turns(sorts_of_mistake(records, verdicts), most):
        record = records[row]
        some = {"right": names[int(right[:, row].argmax())], "wrong": names[int(right[:, row].argmin())]}
        found.append(
            {
                "id": record.id,
                "question": record.question,
                "context": record.context,
                "gold": list(dict.fromkeys(record.answers)),
                "answers": {name: verdict.answers[row] for name, verdict in verdicts.items()},
                "why": why.format(**some),
            }
        )
    return found


def sorts_of_mistake(records: Sequence[Record], verdicts: Mapping[str, Verdict]) -> list[Sort]:
    """The sorts, with the questions that belong to each and a number by which they are put in order."""
    has = np.array([record.has_answer for record in records], bool)
    right = np.array([verdict.exact for verdict in verdicts.values()])  # (M, Q)
    doubt = np.array([verdict.doubt for verdict in verdicts.values()])
    f1 = np.array([verdict.f1 for verdict in verdicts.values()])
    spans = np.array([verdict.spans_f1 for verdict in verdicts.values()])
    said = np.array([[bool(text) for text in verdict.answers] for verdict in verdicts.values()])
    wrong, certain = ~right.any(axis=0), np.abs(doubt).min(axis=0)
    spoken, silent = wrong & said.all(axis=0), wrong & has & ~said.any(axis=0)
    alike = _unanimous([verdict.answers for verdict in verdicts.values()])
    held_back = silent & (spans.min(axis=0) == 1)
    sorts: list[Sort] = [
        ("there is no answer, yet all members give one, and are sure", spoken & ~has, certain),
        ("there is an answer, yet all members say there is none, and are sure", silent, certain),
        ("all members give the same wrong span: they may have a point", spoken & has & alike, certain),
        ("all members hold back the right span: the threshold's fault", held_back, -certain),
        ("a near miss: the right place, the wrong ends", spoken & has & (f1.min(axis=0) > 0), f1.mean(axis=0)),
    ]
    return sorts + disputes(right, certain)


def disputes(right: NDArray[np.bool_], sure: NDArray[np.float64]) -> list[Sort]:
    """The sorts of mistake that not all members make. right: (M, Q). sure: (Q,) how sure members are."""
    members, count = len(right), right.sum(axis=0)
    sorts: list[Sort] = [("only {right} is right", count == 1, sure)] if members > 1 else []
    if members > 2:
        split = (count > 0) & (count < members)
        sorts.append(("only {wrong} is wrong", count == members - 1, sure))
        sorts.append(("members disagree: about half of them are right", split, -np.abs(count - members / 2)))
    return sorts


def take_turns(sorts: Sequence[Sort], most: int) -> Iterable[tuple[int, str]]:
    """(question, why), one of each sort in turn; a question belongs to the first sort whose turn it is."""
    queues = []
    for why, members, telling in sorts:
        rows = np.flatnonzero(members)
        queues.append((why, iter(rows[np.argsort(-telling[rows], kind="stable")].tolist())))
    taken: dict[int, str] = {}
    while queues and len(taken) < most:
        left = []
        for why, rows in queues:
            row = next((row for row in rows if row not in taken), None)
            if row is not None and len(taken) < most:
                taken[row] = why
                left.append((why, rows))
        queues = left
    return list(taken.items())


def _unanimous(answers: Sequence[Sequence[str]]) -> NDArray[np.bool_]:
    """(Q,) whether all members say the same."""
    return np.array([len({normalize(text) for text in texts}) == 1 for texts in zip(*answers)], bool)
