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
from bertvision.serve.answers import Answer, Options, collector_of, cut, rank
from bertvision.serve.config import TaskConfig
from bertvision.serve.reader import DEFAULTS, Progress, Reader
from bertvision.tasks.decode import SpanPredictions
from bertvision.tasks.spans import POINTS

SPANS = Options(limit=1.0)  # "no answer" switched off


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
    questions = records(articles)
    config = reader.config.tasks[reader.task_for("answer")]
    began = time.perf_counter()
    predictions = predict(reader, questions, progress)
    seconds = time.perf_counter() - began
    answers = first_answers(questions, predictions, config)
    spans = first_answers(questions, predictions, config, SPANS)
    answer_texts, span_texts = ({key: answer["answer"] for key, answer in best.items()} for best in (answers, spans))
    has = answerable(articles)
    scores, points = score(articles, answer_texts), question_scores(articles, answer_texts)
    if any(has.values()):
        scores["HasAns_spans_f1"] = score(articles, span_texts)["HasAns_f1"]
    result = {
        "reader": reader.name,
        "data": source,
        **scores,
        "threshold": config.threshold,
        "ms_per_question": round(1000 * seconds / len(questions), 3),
        "intervals": _intervals(points, question_scores(articles, span_texts), has),
        "calibration": _calibration(config, predictions, [has[question.id] for question in questions]),
    }
    return result | ({"mistakes": _mistakes(questions, answers, spans, points)} if mistakes else {})


def predict(reader: Reader, questions: Sequence[Record], progress: Progress | None = None) -> SpanPredictions:
    """What a reader finds for questions, before any threshold."""
    name = reader.task_for("answer")
    config, pairs = reader.config.tasks[name], [(question.question, question.context) for question in questions]
    windows = cut(reader.engine.tokenizer, pairs, config)
    collector: Any = collector_of(config, pairs, windows)
    reader.read_windows(windows, {name: collector}, progress)
    return collector.finish()


def first_answers(
    questions: Sequence[Record], predictions: SpanPredictions, config: TaskConfig, options: Options = DEFAULTS
) -> dict[str, Answer]:
    """{question's id: its first answer}; options SPANS: with "no answer" switched off."""
    return {
        question.id: rank(predictions, row, question.context, config, options).answers[0]
        for row, question in enumerate(questions)
    }


def _mistakes(
    questions: Sequence[Record],
    answers: Mapping[str, Answer],
    spans: Mapping[str, Answer],
    points: Mapping[str, tuple[float, float]],
) -> list[dict[str, Any]]:
    """Questions with an F1 below 1: {"kind", "id", "question", "gold", "said", "span", "no_answer_score", "f1"}.

    kind: "silent" where there is an answer and it says none, "answered" where there is none, else "wrong". spans: its
    answers with "no answer" switched off.
    """
    mistakes = []
    for question in questions:
        answer, f1 = answers[question.id], points[question.id][1]
        if f1 == 1:
            continue
        kind = "answered" if not question.has_answer else "wrong" if answer["answer"] else "silent"
        mistakes.append(
            {
                "kind": kind,
                "id": question.id,
                "question": question.question,
                "gold": list(dict.fromkeys(question.answers)),
                "said": answer["answer"],
                "span": spans[question.id]["answer"],
                "no_answer_score": answer["no_answer_score"],
                "f1": f1,
            }
        )
    return sorted(mistakes, key=lambda mistake: ("silent", "answered", "wrong").index(mistake["kind"]))


def _intervals(
    points: Mapping[str, tuple[float, float]], span_points: Mapping[str, tuple[float, float]], has: Mapping[str, bool]
) -> dict[str, list[float]]:
    rows = [(*pair, span_points[key][1], has[key], not has[key]) for key, pair in points.items()]
    table = Points(np.array(rows, dtype=np.float64), POINTS)
    intervals = {metric: score_interval(table, metric) for metric in POINTS}
    return {metric: [round(end, 2) for end in ends] for metric, ends in intervals.items() if np.isfinite(ends[0])}


def _calibration(config: TaskConfig, predictions: SpanPredictions, has: Sequence[bool]) -> dict[str, Any]:
    """How far the probability of "no answer" can be trusted: {"auroc", "answerable", "before", "after"}.

    before: the softmax over null and best span, after: as the reader gives it, for the share of answerable questions it
    assumes, and "after_share" for that of these questions; each {"error", "curve"}, see evaluate/calibration.py.
    """
    none, share = ~np.array(has, bool), float(np.mean(has))
    ways: dict[str, Any] = {"before": null_probability(predictions.no_answer)}
    if calibration := config.calibration:
        shares = {"after": calibration} | ({"after_share": calibration.assuming(share)} if 0 < share < 1 else {})
        for way, moved in shares.items():
            ways[way] = [moved.probability(doubt) for doubt in predictions.no_answer]
    curves = {way: reliability(probability, none) for way, probability in ways.items()}
    judged = {way: {"error": calibration_error(curve), "curve": curve} for way, curve in curves.items()}
    return {"auroc": auroc(predictions.no_answer, none), "answerable": share} | judged


def report(scores: Mapping[str, Any]) -> str:
    """The result of `score_reader` as lines of text."""
    lines = []
    for key, value in scores.items():
        if not isinstance(value, Mapping | list):
            ends = scores["intervals"].get(key)
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            lines.append(f"{key:20} {shown}" + (f"  (95 %: {ends[0]:.1f} to {ends[1]:.1f})" if ends else ""))
    for way, judged in scores["calibration"].items():
        if way in ("before", "after", "after_share"):
            lines.append(f'"no answer", {way.replace("_", ", at this ")}: calibration error {judged["error"]:.3f}')
            lines += [
                f"  said {point['confidence']:.2f}, was {point['observed']:.2f} of {point['questions']}"
                for point in judged["curve"]
            ]
    for mistake in scores.get("mistakes", ()):
        answer = f'would say "{mistake["span"]}"' if mistake["kind"] == "silent" else f'says "{mistake["said"]}"'
        gold = f"; right: {' | '.join(mistake['gold'])}" if mistake["gold"] else ""
        doubt = f"no answer {mistake['no_answer_score']:.2f}"
        lines.append(f"{mistake['kind']} ({doubt}): {mistake['question']} {answer}{gold}")
    return "\n".join(lines)
