"""The official SQuAD 2.0 metric: exact match and token F1 over answer texts, equal to the official to the last digit.

`articles` is the `data` list of a SQuAD file: [{"paragraphs": [{"qas": [{"id", "answers": [{"text"}, ...]}]}]}].
A prediction is a text; the empty text says "no answer". All totals are percentages.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertvision.data.squad import normalize, questions
from bertvision.errors import UserError


def score(
    articles: Sequence[Mapping[str, Any]],
    predictions: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    no_answer_threshold: float = 1.0,
) -> dict[str, float]:
    """Scores of `predictions` ({question id: text}) under the official keys.

    exact, f1, total; the same as HasAns_* and NoAns_* for the answerable and the unanswerable questions, where there
    are any. A prediction whose no-answer score is above the threshold counts as empty. With `no_answer_scores` also
    best_exact and best_f1: what the best threshold *for these very questions* (best_exact_thresh, best_f1_thresh)
    would give, an upper bound rather than a result. Ids that are not in `articles` are ignored.
    """
    raw = question_scores(articles, predictions)
    has_answer = answerable(articles)
    raw_exact = {key: pair[0] for key, pair in raw.items()}
    raw_f1 = {key: pair[1] for key, pair in raw.items()}
    unsure = no_answer_scores if no_answer_scores is not None else dict.fromkeys(raw, 0.0)
    _need_all(raw, unsure, "no-answer score")
    exacts = _empty_above(raw_exact, unsure, has_answer, no_answer_threshold)
    f1s = _empty_above(raw_f1, unsure, has_answer, no_answer_threshold)

    result = _totals("", exacts, f1s, list(raw))
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        group = [key for key, has in has_answer.items() if has is wanted]
        if group:
            result |= _totals(prefix, exacts, f1s, group)
    if no_answer_scores is not None:
        for name, scores in (("best_exact", raw_exact), ("best_f1", raw_f1)):
            result[name], result[f"{name}_thresh"] = best_threshold(scores, predictions, unsure, has_answer)
    return result


def question_scores(
    articles: Sequence[Mapping[str, Any]], predictions: Mapping[str, str]
) -> dict[str, tuple[float, float]]:
    """{question id: (exact, f1)}, each between 0 and 1 and the best over the gold answers; no threshold applied."""
    golds = {qa["id"]: gold_texts(answer["text"] for answer in qa["answers"]) for qa in questions(articles)}
    if not golds:
        raise UserError("data: there is no question to score; give a file in SQuAD format with at least one")
    _need_all(golds, predictions, "prediction")
    return {key: text_scores(texts, predictions[key]) for key, texts in golds.items()}


def gold_texts(answers: Iterable[str]) -> list[str]:
    """Distinct normalised gold answers; those of which nothing is left do not count, and none at all means ""."""
    return [text for text in dict.fromkeys(map(normalize, answers)) if text] or [""]


def text_scores(golds: Sequence[str], text: str) -> tuple[float, float]:
    """(exact, f1) of a predicted text, each between 0 and 1 and the best over `golds`, see `gold_texts`."""
    predicted = normalize(text)
    return int(predicted in golds), max(_overlap(gold.split(), predicted.split()) for gold in golds)


def answerable(articles: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """{question id: whether the data gives it an answer}."""
    return {qa["id"]: bool(qa["answers"]) for qa in questions(articles)}


def best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    no_answer_scores: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """(percentage, threshold) that the official search finds, for raw `scores` per question between 0 and 1.

    It lets the threshold rise from "all empty" over the questions in the order of their no-answer score and keeps
    the first of the best. Two properties of the official search are kept for comparability: the start is called 0.0,
    and questions of equal score are taken one after the other, as if a threshold could separate them. To *choose* a
    threshold use `evaluate.calibration.choose_threshold`, which has neither.
    """
    current = best = float(sum(not has for has in has_answer.values()))
    threshold = 0.0
    for key in sorted(no_answer_scores, key=no_answer_scores.__getitem__):
        if key not in scores:
            continue
        if has_answer[key]:
            current += scores[key]
        elif predictions[key]:
            current -= 1
        if current > best:
            best, threshold = current, no_answer_scores[key]
    return 100.0 * best / len(scores), threshold


def exact(gold: str, predicted: str) -> int:
    """1 if the two texts are equal once normalised, else 0."""
    return int(normalize(gold) == normalize(predicted))


def f1(gold: str, predicted: str) -> float:
    """Harmonic mean of precision and recall over normalised tokens; a token counts as often as both texts have it."""
    return _overlap(normalize(gold).split(), normalize(predicted).split())


def _overlap(gold: list[str], predicted: list[str]) -> float:
    # 0 and 1 are ints here, as in the official script: newer Pythons sum ints and floats by different rules.
    if not gold or not predicted:
        return int(gold == predicted)
    same = sum(min(gold.count(token), predicted.count(token)) for token in set(gold).intersection(predicted))
    if not same:
        return 0
    precision = same / len(predicted)
    recall = same / len(gold)
    return (2 * precision * recall) / (precision + recall)


def _empty_above(
    scores: Mapping[str, float], unsure: Mapping[str, float], has_answer: Mapping[str, bool], threshold: float
) -> dict[str, float]:
    """Scores after the predictions whose no-answer score is above the threshold have been emptied."""
    return {key: float(not has_answer[key]) if unsure[key] > threshold else value for key, value in scores.items()}


def _totals(prefix: str, exacts: Mapping[str, float], f1s: Mapping[str, float], keys: list[str]) -> dict[str, float]:
    count = len(keys)
    return {
        f"{prefix}exact": 100.0 * sum(exacts[key] for key in keys) / count,
        f"{prefix}f1": 100.0 * sum(f1s[key] for key in keys) / count,
        f"{prefix}total": count,
    }


def _need_all(wanted: Mapping[str, Any], given: Mapping[str, Any], noun: str) -> None:
    missing = [key for key in wanted if key not in given]
    if missing:
        raise UserError(
            f"predictions: {len(missing)} of {len(wanted)} questions have no {noun}, first {missing[0]!r}; "
            "give one for every question of the data"
        )
