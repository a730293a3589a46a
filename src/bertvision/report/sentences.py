"""The findings of a study in a few sentences, no stronger than its rows and intervals allow; notes below its tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment

from bertvision.evaluate.score import Score
from bertvision.report import TEMPLATES, TEXTS
from bertvision.report.grid import interval_text
from bertvision.report.reading import Study
from bertvision.report.rows import Metric, Row, best_of, judge, main_metric, main_rows, metrics_of, sources

NOTHING_YET = "There are no scores yet."


def summary_sentences(rows: Sequence[Row], recipe: Mapping[str, Any]) -> list[str]:
    """The summary: members compared, differences to the backbone, also at equal cost, and their reliability."""
    metric = main_metric(rows)
    if metric is None:
        return [NOTHING_YET]
    # The greedy ensemble, chosen among all others on the tuning set, is the best there by construction.
    scored = [row for row in rows if metric.key in row.scores]
    shown = main_rows(row for row in scored if not row.is_greedy) or scored
    epochs = list(dict.fromkeys(row.epoch for row in shown))
    ends = dict.fromkeys([epochs[0], epochs[-1]])
    others = [row for row in shown if row.role != "backbone"]
    return [
        sentence(
            "compared",
            backbone=recipe.get("backbone", {}).get("name", "The backbone"),
            heads=len({row.ensemble.members[0].head for row in rows if row.role == "head"}),
            ensembles=len({row.name for row in rows if row.role == "ensemble"}),
            epochs=list(dict.fromkeys(f"{row.epoch:g}" for row in rows)),
            total=next((row.scores["total"].mean for row in rows if "total" in row.scores), None),
            test=recipe.get("data", {}).get("test"),
        ),
        sentence(
            "finding",
            kind=shown[0].threshold_from,
            places=[_best_at([row for row in shown if row.epoch == epoch], metric) for epoch in ends],
        ),
        *_at_equal_cost(others, metric),
        sentence(
            "trust",
            seeds=list(dict.fromkeys(seed for row in shown for seed in row.seeds)),
            over=over_seeds(shown),
            others=len(others),
            intervals=any(metric.key in row.intervals for row in others),
            tuned=judge(others, metric) != metric.key,
        ),
    ]


def sentence(name: str, **facts: Any) -> str:
    """A macro of templates/sentences.txt, on one line."""
    return " ".join(getattr(MACROS, name)(**facts).split())


def side(row: Row, metric: Metric) -> int:
    """1 if the row is clearly above the backbone, -1 if below: its interval excludes zero, and so does every seed."""
    interval, difference = row.intervals.get(metric.key), row.differences.get(metric.key)
    sign = 0 if interval is None else (interval.low > 0) - (interval.high < 0)
    return sign if all(sign * value > 0 for value in (difference.values if difference else ())) else 0


def over_seeds(rows: Sequence[Row]) -> str:
    """`2 seeds`, or `1 to 2 seeds` if checkpoints have different numbers of them."""
    counts = [len(row.seeds) for row in rows]
    return f"{max(counts)} seeds" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} seeds"


def count(number: int, noun: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _at_equal_cost(others: Sequence[Row], metric: Metric) -> list[str]:
    """How many members differ clearly from the backbone of equal cost."""
    equals = [equal for row in others if (equal := row.at_equal("train_seconds", metric.key))]
    reached = [equal.interval for equal in equals if equal.how != "beyond"]
    above, below = sum(equal.low > 0 for equal in reached), sum(equal.high < 0 for equal in reached)
    counts = {
        "above": above,
        "below": below,
        "rest": len(reached) - above - below,
        "beyond": len(equals) - len(reached),
    }
    return [sentence("equal", **counts)] if reached else []


def _best_at(rows: Sequence[Row], metric: Metric) -> dict[str, Any]:
    """The best member of a checkpoint against the backbone."""
    key, form = metric.key, f"z.{metric.digits}f"
    others = [row for row in rows if row.role != "backbone"]
    base = next((format(row.scores[key].mean, form) for row in rows if row.role == "backbone"), "")
    best_member = {"epoch": f"{rows[0].epoch:g}", "label": metric.label, "base": base, "others": len(others)}
    best_member |= {"tuned": judge(others, metric) != key, "differing": sum(side(row, metric) != 0 for row in others)}
    best_member |= dict.fromkeys(("name", "score", "side", "difference", "interval", "seeds"), "")
    if best := best_of(others, metric):
        interval, difference = best.intervals.get(key), best.differences.get(key)
        best_member |= {"name": best.name, "score": format(best.scores[key].mean, form), "side": side(best, metric)}
        if difference:
            best_member["difference"] = format(difference.mean, f"+{form}")
        if interval:
            best_member |= {
                "difference": format(interval.difference, f"+{form}"),
                "interval": interval_text(interval, metric.digits),
            }
        if difference and len(difference.values) > 1:  # in how many seeds the difference has the sign of its mean
            word, sign = ("higher", 1) if difference.mean >= 0 else ("lower", -1)
            best_member["seeds"] = (
                f", {word} in {sum(sign * value > 0 for value in difference.values)} of {len(difference.values)} seeds"
            )
    return best_member


def score_notes(study: Study) -> Iterator[str]:
    """The notes below the main table."""
    yield from _constant(study)
    yield TEXTS["legend"]
    if any(row.intervals for row in study.rows):
        yield TEXTS["intervals"]
    if any(row.equal for row in study.rows):
        yield TEXTS["equal_cost"]
    yield from row_notes(study.contents.scores)
    yield from _chosen_parts(study.contents.scores)
    if "tune" in study.recipe.get("data", {}) and not study.recipe["data"]["tune"]:
        yield f"No tuning set was given, so one was split off the training data: {study.source('tune')}."
    yield from sources(study.paper)
    if study.paper and study.synthetic():
        yield TEXTS["unlike"]


def row_notes(scores: Sequence[Score]) -> list[str]:
    """The notes of scores, such as that a member always gives the same answer, with their checkpoints and seeds."""
    checkpoints_of: dict[tuple[str, str], dict[str, None]] = {}  # name, note -> places, in order
    for score in scores:
        if score.note:
            checkpoints_of.setdefault((score.name, score.note), {})[f"epoch {score.epoch:g}, seed {score.seed}"] = None
    return [f"{name} ({'; '.join(checkpoints)}): {note}." for (name, note), checkpoints in checkpoints_of.items()]


def _chosen_parts(scores: Sequence[Score]) -> list[str]:
    """The pairs that were chosen on the tuning set, by checkpoint."""
    parts_of: dict[str, dict[float, dict[str, None]]] = {}  # name -> epoch -> parts, in order
    for score in scores:
        if score.ensemble.chosen == "best":
            parts_of.setdefault(score.name, {}).setdefault(score.epoch, {})[score.ensemble.parts] = None
    sentences = {
        name: [f"at epoch {epoch:g} {' or '.join(parts)}" for epoch, parts in sorted(epochs.items())]
        for name, epochs in parts_of.items()
    }
    return [f"{name}, chosen on the tuning set: {'; '.join(texts)}." for name, texts in sentences.items()]


def _constant(study: Study) -> list[str]:
    """The scores of the best constant answer, from the composition of the test set."""
    constant = dict(study.facts.get("constant") or {})
    totals = [row.scores for row in study.rows if {"total", "NoAns_total", "f1"} <= row.scores.keys()]
    if not constant and totals:  # the SQuAD metric counts the questions without an answer
        share = 100 * totals[0]["NoAns_total"].mean / totals[0]["total"].mean
        constant = {"says": "no answer", "exact": share, "f1": share}
    shown = [metric for metric in metrics_of(study.rows) if isinstance(constant.get(metric.key), int | float)]
    scores = ", ".join(f"{metric.label} {constant[metric.key]:.{metric.digits}f}" for metric in shown)
    return [f"Baseline: always answering “{constant['says']}” scores {scores} on this test set."] if scores else []


_environment = Environment()  # plain text; the templates of the pages escape it
_environment.globals |= {"count": count, "listed": listed}
MACROS = _environment.from_string((TEMPLATES / "sentences.txt").read_text(encoding="utf-8")).module
