"""The findings of a study in three sentences, no stronger than its rows and intervals allow."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.report.grid import interval_text
from bertvision.report.rows import Metric, Row, best_of, judge, main_metric, main_rows

UNDER = {
    "tune": "with the no-answer threshold chosen on the tuning set, ",
    "zero": "with the no-answer threshold at zero, ",
}
NOTHING_YET = "There are no scores yet."


def summary_sentences(rows: Sequence[Row], recipe: Mapping[str, Any]) -> list[str]:
    """Three sentences: what was compared, what differs from the backbone and by how much, how far to trust it."""
    metric = main_metric(rows)
    if metric is None:
        return [NOTHING_YET]
    # The greedy ensemble, chosen among all others on the tuning set, is the best there by construction.
    scored = [row for row in rows if metric.key in row.scores]
    shown = main_rows(row for row in scored if not row.is_greedy) or scored
    return [_compared(rows, recipe), _finding(shown, metric), _trust(shown, metric)]


def side(row: Row, metric: Metric) -> int:
    """1 if the row is clearly above the backbone, -1 if below: its interval excludes zero, and so does every seed."""
    known, apart = row.intervals.get(metric.key), row.differences.get(metric.key)
    sign = 0 if known is None else (known.low > 0) - (known.high < 0)
    return sign if all(sign * value > 0 for value in (apart.values if apart else ())) else 0


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


def _compared(rows: Sequence[Row], recipe: Mapping[str, Any]) -> str:
    heads = {row.ensemble.members[0].head for row in rows if row.role == "head"}
    ensembles = {row.name for row in rows if row.role == "ensemble"}
    parts = [f"{count(len(heads), 'head')} on the states of all its layers"] if heads else []
    parts += [count(len(ensembles), "ensemble")] if ensembles else []
    name = recipe.get("backbone", {}).get("name", "The backbone")
    text = f"{name} was compared with {listed(parts)}" if parts else f"{name} was scored"
    epochs = list(dict.fromkeys(f"{row.epoch:g}" for row in rows))
    text += f" after {listed(epochs)} {'epoch' if epochs == ['1'] else 'epochs'} of fine-tuning"
    if totals := [row.scores["total"].mean for row in rows if "total" in row.scores]:
        text += f", on {totals[0]:,.0f} questions"
    if test := recipe.get("data", {}).get("test"):
        text += f" of {test}"
    return f"{text}."


def _finding(rows: Sequence[Row], metric: Metric) -> str:
    """The best member against the backbone, at the first and the last checkpoint."""
    epochs = list(dict.fromkeys(row.epoch for row in rows))
    ends = dict.fromkeys([epochs[0], epochs[-1]])
    parts = [f"at epoch {epoch:g} {_at([row for row in rows if row.epoch == epoch], metric)}" for epoch in ends]
    text = f"{UNDER.get(rows[0].threshold_from, '')}{'; '.join(parts)}."
    return text[:1].upper() + text[1:]


def _at(rows: Sequence[Row], metric: Metric) -> str:
    others = [row for row in rows if row.role != "backbone"]
    base = next((row for row in rows if row.role == "backbone"), None)
    best = best_of(others, metric)

    def score(row: Row) -> str:
        return f"{row.scores[metric.key].mean:z.{metric.digits}f}"

    if best is None:
        return f"the backbone's {metric.label} is {score(rows[0])}"
    of = f" of {len(others)} members" if len(others) > 1 else ""
    how = f"the highest{of}" if judge(others, metric) == metric.key else f"the best{of} on the tuning set"
    if base is None:
        return f"{best.name}, {how}, has {metric.label} {score(best)}; there is no backbone to compare it with"
    against = f"{metric.label} {score(best)} against {score(base)}"
    if metric.key not in best.intervals:
        apart = best.differences.get(metric.key)
        by = f" ({apart.mean:+z.{metric.digits}f}{_in_seeds(best, metric)})" if apart else ""
        return f"{best.name}, {how}, has {against} for the backbone{by}"
    known = best.intervals[metric.key]
    interval = f"95 % interval {interval_text(known, metric.digits)}{_in_seeds(best, metric)}"
    numbers = f"{against}, {known.difference:+z.{metric.digits}f}, {interval}"
    clear = sum(side(row, metric) != 0 for row in others)
    if not clear:
        return f"no member differs clearly from the backbone ({how}: {best.name}, {numbers})"
    if not side(best, metric):
        rest = f"though {clear} of the others {'does' if clear == 1 else 'do'}"
        return f"{best.name}, {how}, does not differ clearly from the backbone ({numbers}), {rest}"
    return f"{best.name}, {how}, is {'above' if side(best, metric) > 0 else 'below'} the backbone ({numbers})"


def _in_seeds(row: Row, metric: Metric) -> str:
    """In how many seeds the difference has the sign of its mean, if there are several."""
    apart = row.differences.get(metric.key)
    if apart is None or len(apart.values) < 2:
        return ""
    word, sign = ("higher", 1) if apart.mean >= 0 else ("lower", -1)
    return f", {word} in {sum(sign * value > 0 for value in apart.values)} of {len(apart.values)} seeds"


def _trust(rows: Sequence[Row], metric: Metric) -> str:
    seeds = list(dict.fromkeys(seed for row in rows for seed in row.seeds))
    others = [row for row in rows if row.role != "backbone"]
    if len(seeds) == 1:
        parts = [f"This is a single run (seed {seeds[0]}), so the variation between training runs is unknown"]
    else:
        parts = [f"Scores are means over {over_seeds(rows)}, with the sample standard deviation after ±"]
    if any(metric.key in row.intervals for row in others):
        beyond = "" if len(seeds) == 1 else ", and do not include the variation between training runs"
        parts.append(f"intervals are over the questions (paired bootstrap){beyond}")
    elif others:
        parts.append("no interval was computed, so a small difference may be chance")
    if others and judge(others, metric) == metric.key:
        parts.append("the highest member was picked on the reported data, which favours it slightly")
    elif others:
        parts.append("the best member was picked on the tuning set, never on the reported data")
    return f"{'; '.join(parts)}."
