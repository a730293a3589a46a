"""Statistics of a data source: counts, labels and lengths in words, ready for JSON."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bertvision.data.conll import Sentence, is_conll, load_conll
from bertvision.data.sources import is_synthetic, is_text, load_articles, parts, read_examples
from bertvision.data.squad import question_word, records
from bertvision.data.tables import Example, score_numbers
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe

MOST = 20  # different labels that are counted one by one


def describe(source: str, data: DataRecipe) -> dict[str, Any]:
    """Statistics of any source. data: where GLUE is, and which columns to read."""
    if all(is_conll(part) for part in parts(source)):
        return of_sentences([sentence for part in parts(source) for sentence in load_conll(part)])
    if is_text(source):
        return of_examples(read_examples(source, data).examples)
    return of_articles(load_articles(source)) | {"synthetic": is_synthetic(source)}


def of_articles(articles: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Questions on paragraphs."""
    contexts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    everything = records(articles)
    answerable = sum(record.has_answer for record in everything)
    first_words = Counter(question_word(record.question) for record in everything)
    return {
        "articles": len(articles),
        "paragraphs": len(contexts),
        "questions": len(everything),
        "answerable": answerable,
        "unanswerable": len(everything) - answerable,
        "context_words": word_lengths(contexts),
        "question_words": word_lengths(record.question for record in everything),
        "answer_words": word_lengths(answer for record in everything for answer in record.answers),
        "first_question_word": dict(sorted(first_words.items(), key=lambda item: (-item[1], item[0]))),
    }


def of_examples(examples: Sequence[Example]) -> dict[str, Any]:
    """Texts. Of many labels: the range, if they are numbers, else the most frequent ones and how many there are."""
    targets = Counter(example.target for example in examples if example.target is not None)
    statistics: dict[str, Any] = {"examples": len(examples), "texts": len(examples[0].texts)}
    for column in range(len(examples[0].texts)):
        statistics[f"text_{column + 1}_words"] = word_lengths(example.texts[column] for example in examples)
    if len(targets) <= MOST:
        return statistics | {"labels": dict(sorted(targets.items()))}
    try:
        values = score_numbers(examples)
    except UserError:
        return statistics | {"different_labels": len(targets), "labels": dict(targets.most_common(MOST))}
    low, mean, high = float(np.nanmin(values)), round(float(np.nanmean(values)), 3), float(np.nanmax(values))
    return statistics | {"scores": {"lowest": low, "mean": mean, "highest": high}}


def of_sentences(sentences: Sequence[Sentence]) -> dict[str, Any]:
    """Sentences with a label per word. entities: how many there are of each type."""
    labels = [label for sentence in sentences for label in sentence.labels]
    return {
        "sentences": len(sentences),
        "words": len(labels),
        "sentence_words": _summary([len(sentence.words) for sentence in sentences]),
        "entities": dict(sorted(Counter(label[2:] for label in labels if label.startswith("B-")).items())),
    }


def word_lengths(texts: Iterable[str]) -> dict[str, float]:
    """Mean, percentiles and maximum of the number of words; zeros where there is no text."""
    return _summary([len(text.split()) for text in texts])


def _summary(counts: list[int]) -> dict[str, float]:
    numbers = np.array(counts or [0])
    p5, p50, p95 = (round(float(value), 1) for value in np.percentile(numbers, [5, 50, 95]))
    return {"mean": round(float(numbers.mean()), 2), "p5": p5, "p50": p50, "p95": p95, "max": int(numbers.max())}
