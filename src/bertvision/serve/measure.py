"""Scores of a reader on a SQuAD file: the official ones of what it says, intervals, calibration, time."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertvision.data.sources import load_articles
from bertvision.data.squad import Record, records
from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Points, score_interval
from bertvision.evaluate.calibration import auroc, calibration_error, null_probability, reliability
from bertvision.evaluate.squad import answerable, question_scores, score
from bertvision.serve.answers import Options, collector_of, cut, rank
from bertvision.serve.reader import Progress, Reader
from bertvision.tasks.decode import SpanPredictions
from bertvision.tasks.spans import POINTS


def score_reader(
    reader: Reader, source: str, progress: Progress | None = None, *, mistakes: bool = False
) -> dict[str, Any]:
    """Of a reader on the questions of `source`: the official scores, HasAns_spans_f1 ("no answer" switched off),

    `intervals` {metric: [low, high]} (95 %), `calibration` (see `_calibration`), threshold, and ms_per_question.
    mistakes: with `mistakes`, every question that it answers wrongly, see `_mistakes`.
    """
    if not source:
        raise UserError("--data: name the SQuAD file to score the reader on")
    articles = load_articles(source)
    asked = records(articles)
    name = reader.task_for("answer")
    config, pairs = reader.config.tasks[name], [(one.question, one.context) for one in asked]
    began = time.perf_counter()
    windows = cut(reader.engine.tokenizer, pairs, config)
    collector: Any = collector_of(config, pairs, windows)
    reader.read_windows(windows, {name: collector}, progress)
    found = collector.finish()
    seconds = time.perf_counter() - began

    def said(options: Options) -> dict[str, dict[str, Any]]:
        return {one.id: rank(found, row, one.context, config, options).answers[0] for row, one in enumerate(asked)}

    first, best = said(Options()), said(Options(limit=1.0))
    answers, spans = ({key: one["answer"] for key, one in which.items()} for which in (first, best))
    has = answerable(articles)
    scores, points = score(articles, answers), question_scores(articles, answers)
    if any(has.values()):
        scores["HasAns_spans_f1"] = score(articles, spans)["HasAns_f1"]
    return {
        "reader": reader.name,
        "data": source,
        **scores,
        "threshold": config.threshold,
        "ms_per_question": round(1000 * seconds / len(asked), 3),
        "intervals": _intervals(points, question_scores(articles, spans), has),
        "calibration": _calibration(reader, name, found, [has[one.id] for one in asked]),
    } | ({"mistakes": _mistakes(asked, first, best, points)} if mistakes else {})


def _mistakes(
    asked: Sequence[Record],
    first: Mapping[str, Mapping[str, Any]],
    best: Mapping[str, Mapping[str, Any]],
    points: Mapping[str, tuple[float, float]],
) -> list[dict[str, Any]]:
    """Questions with an F1 below 1: {"kind", "id", "question", "gold", "said", "span", "no_answer_score", "f1"}.

    kind: "silent" where there is an answer and it says none, "answered" where there is none, else "wrong". span: what
    it would say with "no answer" switched off.
    """
    found = []
    for one in asked:
        said, f1 = first[one.id], points[one.id][1]
        if f1 < 1:
            kind = "wrong" if one.has_answer and said["answer"] else "silent" if one.has_answer else "answered"
            about = {"kind": kind, "id": one.id, "question": one.question, "gold": list(dict.fromkeys(one.answers))}
            span, nothing = best[one.id]["answer"], said["no_answer_score"]
            found.append(about | {"said": said["answer"], "span": span, "no_answer_score": nothing, "f1": f1})
    return sorted(found, key=lambda mistake: ("silent", "answered", "wrong").index(mistake["kind"]))


def _intervals(
    said: Mapping[str, tuple[float, float]], spans: Mapping[str, tuple[float, float]], has: Mapping[str, bool]
) -> dict[str, list[float]]:
    rows = [(*pair, spans[key][1], has[key], not has[key]) for key, pair in said.items()]
    points = Points(np.array(rows, dtype=np.float64), POINTS)
    found = {metric: score_interval(points, metric) for metric in POINTS}
    return {metric: [round(value, 2) for value in ends] for metric, ends in found.items() if np.isfinite(ends[0])}


def _calibration(reader: Reader, name: str, found: SpanPredictions, has: Sequence[bool]) -> dict[str, Any]:
    """How far the probability of "no answer" can be trusted: {"auroc", "answerable", "before", "after"}.

    before: the softmax over null and best span, after: as the reader gives it, for the share of answerable questions it
    assumes, and "after_share" for that of these questions; each {"error", "curve"}, see evaluate/calibration.py.
    """
    none, share = ~np.array(has, bool), float(np.mean(has))
    calibration = reader.config.tasks[name].calibration
    ways: dict[str, Any] = {"before": null_probability(found.no_answer)}
    if calibration:
        shares = {"after": calibration} | ({"after_share": calibration.assuming(share)} if 0 < share < 1 else {})
        ways |= {way: [one.probability(doubt) for doubt in found.no_answer] for way, one in shares.items()}
    curves = {way: reliability(probability, none) for way, probability in ways.items()}
    judged = {way: {"error": calibration_error(curve), "curve": curve} for way, curve in curves.items()}
    return {"auroc": auroc(found.no_answer, none), "answerable": share} | judged


def report(found: Mapping[str, Any]) -> str:
    """The result of `score_reader` as lines of text."""
    lines = []
    for key, value in found.items():
        if not isinstance(value, Mapping | list):
            ends = found["intervals"].get(key)
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            lines.append(f"{key:20} {shown}" + (f"  (95 %: {ends[0]:.1f} to {ends[1]:.1f})" if ends else ""))
    for way, judged in found["calibration"].items():
        if way in ("before", "after", "after_share"):
            lines.append(f'"no answer", {way.replace("_", ", at this ")}: calibration error {judged["error"]:.3f}')
            lines += [
                f"  said {point['confidence']:.2f}, was {point['observed']:.2f} of {point['questions']}"
                for point in judged["curve"]
            ]
    for one in found.get("mistakes", ()):
        answer = f'would say "{one["span"]}"' if one["kind"] == "silent" else f'says "{one["said"]}"'
        gold = f"; right: {' | '.join(one['gold'])}" if one["gold"] else ""
        lines.append(f"{one['kind']} (no answer {one['no_answer_score']:.2f}): {one['question']} {answer}{gold}")
    return "\n".join(lines)
