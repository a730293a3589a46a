"""What pocket says at other no-answer thresholds: python recipes/pocket_threshold.py DATA.json...

Prints a row for each default share of answerable questions that would move the threshold there: F1 on all questions,
on those with an answer and on those without, and how much of its spans F1 is left of the answerable ones. The shipped
threshold has the share of tune.json, 0.547.
"""

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertvision import Reader
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.evaluate.squad import question_scores
from bertvision.serve.config import TaskConfig
from bertvision.serve.measure import SPANS, first_answers, predict

SHARES = (0.45, 0.5, 0.547, 0.55, 0.56, 0.58, 0.6, 0.65, 0.7, 0.8)


def question_table(reader: Reader, source: str) -> NDArray[np.float64]:
    """(Q, 3): the no-answer score of each question, the F1 of its best span, and that of "no answer": 1 or 0."""
    articles = load_articles(source)
    questions = records(articles)
    predictions = predict(reader, questions)
    best = first_answers(questions, predictions, reader.config.tasks["spans"], SPANS)
    spans = {key: answer["answer"] for key, answer in best.items()}
    scores = [question_scores(articles, answers) for answers in (spans, dict.fromkeys(spans, ""))]
    f1 = [[points[question.id][1] for question in questions] for points in scores]
    return np.array([predictions.no_answer, *f1]).T


def rows(config: TaskConfig, table: NDArray[np.float64], shares: Sequence[float]) -> list[str]:
    """A line for each share."""
    doubt, span, silent = table.T
    has, lines = silent == 0, []
    for share in shares:
        threshold = config.assuming(share).threshold
        f1 = np.where(doubt > threshold, silent, span)
        without = f"{100 * f1[~has].mean():.2f}" if (~has).any() else "–"
        scores = f"F1 {100 * f1.mean():.2f}, with an answer {100 * f1[has].mean():.2f}, without {without}"
        kept = 100 * f1[has].mean() / span[has].mean()
        lines.append(f"share {share:.3f}, threshold {threshold:.2f}: {scores}; {kept:.1f} % of spans F1 left")
    return lines


if __name__ == "__main__":
    pocket = Reader.from_pretrained("pocket", engine="torch")
    for source in sys.argv[1:]:
        print(source)
        print("\n".join(rows(pocket.config.tasks["spans"], question_table(pocket, source), SHARES)), flush=True)
