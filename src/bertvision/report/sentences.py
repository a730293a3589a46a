"""What a study found, in three sentences that its rows bear out."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.report.summary import Metric, Row, main_metric, rows_by_kind

UNDER = {
    "tune": "with the no-answer threshold chosen on the tuning set",
    "zero": "with the threshold left at zero",
}


def summary_sentences(
    rows: Sequence[Row], metrics: Sequence[Metric], recipe: Mapping[str, Any] | None = None
) -> list[str]:
    """Three sentences: what was compared, who is best and by how much, and how far that can be trusted."""
    metric = main_metric(metrics) if metrics else None
    if metric is None or not any(metric.key in row.scores for row in rows):
        return ["No scores yet: nothing can be said."]
    findings = filter(None, (_finding(found, metric) for found in rows_by_kind(rows).values()))
    text, against, rest = "; ".join(findings).partition(" against the backbone")
    found = text + against + rest.replace(against, "") if against else text  # said once, it holds for all that follows
    return [_compared(rows, recipe or {}), found[:1].upper() + found[1:] + ".", _trust(rows, metric)]


def _compared(rows: Sequence[Row], recipe: Mapping[str, Any]) -> str:
    points = [f"{point:g}" for point in dict.fromkeys(row.checkpoint for row in rows) if point is not None]
    parts = []
    for role, noun in (("head", "head"), ("ensemble", "ensemble")):
        if count := len({row.member for row in rows if row.role == role}):
            parts.append(f"{_count(count, noun)}{' on the states of all its layers' if role == 'head' else ''}")
    name = recipe.get("backbone", {}).get("name", "The backbone")
    text = f"{name} was compared with {_listed(parts)}" if parts else f"{name} was scored"
    if points:
        text += f" after {_listed(points)} {'epoch' if points == ['1'] else 'epochs'} of fine-tuning"
    if totals := [row.scores["total"].mean for row in rows if "total" in row.scores]:
        text += f", on {totals[0]:,.0f} questions"
    if test := recipe.get("data", {}).get("test"):
        text += f" of {test}"
    return text + "."


def _finding(rows: Sequence[Row], metric: Metric) -> str:
    """Of the first and the last checkpoint: the best member and its distance from the backbone."""
    scored = [row for row in rows if metric.key in row.scores]
    points = list(dict.fromkeys(row.checkpoint for row in scored))
    ends = dict.fromkeys([*points[:1], *points[-1:]])
    parts = [_best([row for row in scored if row.checkpoint == point], metric) for point in ends]
    if not parts:
        return ""
    under = UNDER.get(rows[0].threshold_from)
    what = "the highest" if _judge(scored, metric) == metric.key else "the best member's"
    return f"{f'{under}, ' if under else ''}{what} {metric.label} is {' and '.join(parts)}"


def _best(rows: Sequence[Row], metric: Metric) -> str:
    judge = _judge(rows, metric)
    best = max(_complete(rows), key=lambda row: row.scores[judge].mean)
    at = "" if best.checkpoint is None else f" at epoch {best.checkpoint:g}"
    text = f"{best.scores[metric.key].mean:z.{metric.digits}f}{at}, by "
    apart = best.differences.get(metric.key)
    if best.role == "backbone":
        ahead = "ahead of every other member" + (" on the tuning set" if judge != metric.key else "")
        return f"{text}the backbone itself" + (f" ({ahead})" if len(rows) > 1 else "")
    if apart is None:
        return f"{text}{best.member} (with no backbone to compare it with)"
    points = " points" if any(abs(value) > 1 for row in rows for value in row.scores[metric.key].values) else ""
    seeds = f", higher in {sum(value > 0 for value in apart.values)} of {apart.n} seeds" if apart.n > 1 else ""
    return f"{text}{best.member} ({apart.mean:+z.{metric.digits}f}{points} against the backbone{seeds})"


def _complete(rows: Sequence[Row]) -> list[Row]:
    """The members that have been run with as many seeds as any: a mean over fewer is no rival."""
    most = max(len(row.seeds) for row in rows)
    return [row for row in rows if len(row.seeds) == most]


def _judge(rows: Sequence[Row], metric: Metric) -> str:
    """The key that picks the best: its score on the tuning set where every row has one, else the reported score."""
    tuned = f"tune_{metric.key}"
    return tuned if all(tuned in row.scores for row in rows) else metric.key


def _trust(rows: Sequence[Row], metric: Metric) -> str:
    seeds = list(dict.fromkeys(seed for row in rows for seed in row.seeds))
    if len(seeds) == 1:
        named = "" if seeds[0] is None else f" (seed {seeds[0]})"
        how = f"This is a single run{named} without any spread, so a small difference may be chance"
    else:
        how = f"Scores are means over {len(seeds)} seeds, with the sample standard deviation after ±"
    if _judge(rows, metric) == metric.key:
        return f"{how}; the highest member is picked after the fact, on the data reported, which flatters it a little."
    return f"{how}; the best member is picked on the tuning set, never on the data reported."


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
