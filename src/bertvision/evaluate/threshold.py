"""Choosing the no-answer threshold: on the tuning set, so that it can be reported on another."""

from collections.abc import Sequence

import numpy as np


def choose_threshold(
    answered: Sequence[float], emptied: Sequence[float], no_answer_scores: Sequence[float]
) -> tuple[float, float]:
    """(threshold, mean score under it) that is best for these questions, n of each, in the same order.

    answered: (n,) a question's score if its prediction stands; emptied: (n,) its score if "no answer" is said instead,
    which it is where its no-answer score is above the threshold. Any real scale will do: probabilities or
    differences of logits. The threshold lies halfway between the two scores that it parts, so that it depends on
    neither; of equally good ones the lowest wins, and equal scores always stay on the same side.
    """
    order = np.argsort(no_answer_scores, kind="stable")
    unsure = np.asarray(no_answer_scores, dtype=np.float64)[order]  # (n,)
    if not unsure.size or not np.isfinite(unsure).all():
        raise ValueError("a threshold needs at least one no-answer score, and all of them finite")
    gain = (np.asarray(answered, dtype=np.float64) - np.asarray(emptied, dtype=np.float64))[order]
    totals = np.sum(emptied, dtype=np.float64) + np.concatenate([[0.0], np.cumsum(gain)])  # (n + 1,): first k stand

    cuts = np.concatenate([[True], unsure[1:] > unsure[:-1], [True]])  # (n + 1,): can a threshold stand after the k-th?
    best = int(np.flatnonzero(cuts)[np.argmax(totals[cuts])])
    return _between(unsure, best), float(totals[best] / unsure.size)


def _between(unsure: np.ndarray, kept: int) -> float:
    """A threshold that lets the first `kept` of the sorted scores stand and no other."""
    if kept == 0:
        return float(np.nextafter(unsure[0], -np.inf))
    lower = float(unsure[kept - 1])
    if kept == unsure.size:
        return lower
    upper = float(unsure[kept])
    middle = lower + (upper - lower) / 2
    return middle if lower <= middle < upper else lower  # between neighbouring floats there is no middle
