"""What a study found, in three sentences that its rows and intervals bear out."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.evaluate.ensemble import GREEDY
from bertvision.report.summary import Metric, Row, best_of, judge, main_metric, rows_by_kind
from bertvision.report.tables import interval_text, is_clear

UNDER = {
    "tune": "with the no-answer threshold chosen on the tuning set",
    "zero": "with the threshold left at zero",
}
NOTHING_YET = "No scores yet: nothing can be said."


def summary_sentences(
    rows: Sequence[Row], metrics: Sequence[Metric], recipe: Mapping[str, Any] | None = None
) -> list[str]:
    """Three sentences: what was compared, what differs from the backbone and by how much, how far to trust it."""
    metric = main_metric(metrics, rows) if metrics else None
    if metric is None or not any(metric.key in row.scores for row in rows):
        return [NOTHING_YET]
    # Chosen from all others on the tuning set, the greedy ensemble is the best there by construction: no finding.
    kinds = rows_by_kind(row for row in rows if row.fraction == 1 and row.member != GREEDY)
    shown = next((found for found in kinds.values() if any(metric.key in row.scores for row in found)), list(rows))
    return [_compared(rows, recipe or {}), _finding(shown, metric), _trust(shown, metric)]


def _compared(rows: Sequence[Row], recipe: Mapping[str, Any]) -> str:
    points = [f"{point:g}" for point in dict.fromkeys(row.checkpoint for row in rows) if point is not None]
    parts = []
    for role, noun in (("head", "head"), ("ensemble", "ensemble")):
        if number := len({row.head for row in rows if row.role == role}):
            parts.append(f"{count(number, noun)}{' on the states of all its layers' if role == 'head' else ''}")
    name = recipe.get("backbone", {}).get("name", "The backbone")
    text = f"{name} was compared with {listed(parts)}" if parts else f"{name} was scored"
    if points:
        text += f" after {listed(points)} {'epoch' if points == ['1'] else 'epochs'} of fine-tuning"
    if totals := [row.scores["total"].mean for row in rows if "total" in row.scores]:
        text += f", on {totals[0]:,.0f} questions"
    if test := recipe.get("data", {}).get("test"):
        text += f" of {test}"
    return text + "."


def _finding(rows: Sequence[Row], metric: Metric) -> str:
    """Of the first and the last checkpoint: what can be said about the best member and the backbone."""
    scored = [row for row in rows if metric.key in row.scores]
    points = list(dict.fromkeys(row.checkpoint for row in scored))
    ends = dict.fromkeys([*points[:1], *points[-1:]])
    parts = [_at(point, [row for row in scored if row.checkpoint == point], metric) for point in ends]
    under = UNDER.get(rows[0].threshold_from)
    text = f"{f'{under}, ' if under else ''}{'; '.join(parts)}."
    return text[:1].upper() + text[1:]


def _at(point: float | None, rows: Sequence[Row], metric: Metric) -> str:
    at = "" if point is None else f"at epoch {point:g} "
    others = [row for row in rows if row.role != "backbone"]
    base = next((row for row in rows if row.role == "backbone"), None)
    best = best_of(others, metric)
    if best is None:
        return f"{at}the backbone's {metric.label} is {_score(base, metric)}" if base else f"{at}there is no score"
    how = "best on the tuning set" if judge(others, metric) != metric.key else "the highest"
    if base is None:
        return (
            f"{at}{best.member}, {how}, has {metric.label} {_score(best, metric)}, with no backbone to compare it with"
        )
    against = f"{metric.label} {_score(best, metric)} against {_score(base, metric)}"
    if metric.key not in best.intervals:
        of = f" of {len(others)} members" if len(others) > 1 else ""
        rank = f"the best{of} on the tuning set" if how.startswith("best") else f"{how}{of}"
        return f"{at}{best.member}, {rank}, has {against}{_apart(best, metric)}"
    if not any(side(row, metric) for row in others):
        return (
            f"{at}no member differs clearly from the backbone ({how}: {best.member}, {against}, {gain(best, metric)})"
        )
    if not side(best, metric):
        clear = sum(side(row, metric) != 0 for row in others)
        rest = f"though {clear} of the others {'does' if clear == 1 else 'do'}"
        near = f"{best.member}, {how}, does not differ clearly from the backbone"
        return f"{at}{near} ({against}, {gain(best, metric)}), {rest}"
    where = "above" if side(best, metric) > 0 else "below"
    return f"{at}{best.member}, {how}, is {where} the backbone ({against}, {gain(best, metric)})"


def side(row: Row, metric: Metric) -> int:
    """1 if the row is clearly above the backbone, -1 if below: the interval leaves zero out, and so does every seed."""
    known, apart = row.intervals.get(metric.key), row.differences.get(metric.key)
    if known is None or not is_clear(known):
        return 0
    sign = 1 if known.low > 0 else -1
    return sign if all(sign * value > 0 for value in (apart.values if apart else ())) else 0


def gain(row: Row, metric: Metric) -> str:
    """`+1.40, 95 % interval +0.30 to +2.50, higher in 2 of 2 seeds` of a row that has an interval."""
    known = row.intervals[metric.key]
    between = f"95 % interval {interval_text(known, metric.digits)}"
    return f"{known.difference:+z.{metric.digits}f}, {between}{_in_seeds(row, metric)}"


def _apart(row: Row, metric: Metric) -> str:
    apart = row.differences.get(metric.key)
    if apart is None:
        return ""
    return f" for the backbone ({apart.mean:+z.{metric.digits}f}{_in_seeds(row, metric)})"


def _in_seeds(row: Row, metric: Metric) -> str:
    """In how many seeds the difference has the sign of its mean, where there are several."""
    apart = row.differences.get(metric.key)
    if apart is None or apart.n < 2:
        return ""
    word, sign = ("higher", 1) if apart.mean >= 0 else ("lower", -1)
    return f", {word} in {sum(sign * value > 0 for value in apart.values)} of {apart.n} seeds"


def _score(row: Row | None, metric: Metric) -> str:
    return "–" if row is None else f"{row.scores[metric.key].mean:z.{metric.digits}f}"


def _trust(rows: Sequence[Row], metric: Metric) -> str:
    seeds = list(dict.fromkeys(seed for row in rows for seed in row.seeds))
    others = [row for row in rows if row.role != "backbone"]
    known = any(metric.key in row.intervals for row in others)
    if len(seeds) == 1:
        named = "" if seeds[0] is None else f" (seed {seeds[0]})"
        how = f"This is a single run{named}, so how much chance there is in training cannot be told"
    else:
        how = f"Scores are means over {over_seeds(rows)}, with the sample standard deviation after ±"
    if known:
        chance = "" if len(seeds) == 1 else ", so that the chance in training is outside them"
        how += f"; intervals are over the questions (paired bootstrap){chance}"
    elif others:
        how += "; no interval was computed, so a small difference may be chance"
    if not others:
        return f"{how}."
    if judge(others, metric) == metric.key:
        return f"{how}; the highest member is picked after the fact, on the data reported, which flatters it a little."
    return f"{how}; the best member is picked on the tuning set, never on the data reported."


def over_seeds(rows: Sequence[Row]) -> str:
    """`2 seeds`, or `1 to 2 seeds` where a study under way has more of them at one checkpoint than at another."""
    numbers = [len(row.seeds) for row in rows]
    low, high = min(numbers), max(numbers)
    return f"{high} seeds" if low == high else f"{low} to {high} seeds"


def count(number: int, noun: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
