"""Arguments of a reader, checked; collected logits -> ranked answers with probabilities and places, labels, scores."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data.squad import Record, normalize
from bertvision.data.windows import Windows, make_text_windows, make_windows
from bertvision.errors import UserError, nearest
from bertvision.evaluate.calibration import Calibration
from bertvision.serve.config import TaskConfig
from bertvision.tasks.decode import SpanCollector, SpanPredictions

if TYPE_CHECKING:
    from bertvision.data.conll import Sentence

REMOVED = {  # options of the pipeline that transformers 5 removed, for which a reader has no use
    "doc_stride": "windows are cut as in training",
    "max_seq_len": "windows are cut as in training",
    "max_question_len": "a question is cut only if it leaves no room for the text",
    "padding": "batches hold texts of similar lengths",
    "batch_size": "batches are filled by tokens",
}
OPTIONS = (
    *("top_k", "no_answer_threshold", "answerable", "layers"),
    *("max_answer_len", "handle_impossible_answer", "align_to_words"),
)
QuestionInput = str | Sequence[str] | Mapping[str, str] | Sequence[Mapping[str, str]] | None
SURROGATES = re.compile("[\ud800-\udfff]")  # halves of characters: Python can hold them, tokenizers cannot
# Scripts that are written without spaces, or with particles attached: Thai to Khmer, Japanese, Chinese, Korean.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
WORD = re.compile(r"\w+")
ALIKE = 5  # candidates collected for each answer that is shown: most are spellings of one another
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """How answers are wanted. limit: "no answer" above this probability; None: by the reader's own threshold.
    answer_tokens: most tokens of an answer, 0: as the reader was tuned. words: answers are extended to whole words.
    answerable: the share of questions expected to have an answer; None: as in the reader's tune set."""

    top_k: int = 1
    limit: float | None = None
    layers: bool = False
    answer_tokens: int = 0
    words: bool = True
    answerable: float | None = None

    @classmethod
    def of(cls, **given: Any) -> "Options":
        """From the keyword arguments of a call, see `Reader.__call__`; UserError unless all are possible."""
        for name in given:
            if name in REMOVED:
                raise UserError(f"{name}: {REMOVED[name]}; leave it out")
            if name not in OPTIONS:
                raise UserError(f"{name}: a reader has no such option; {nearest(name, OPTIONS)}")
        top_k, longest = given.get("top_k", 1), given.get("max_answer_len")
        for name, count in (("top_k", top_k), ("max_answer_len", 1 if longest is None else longest)):
            if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
                raise UserError(f"{name}: must be a whole number, at least 1, not {count!r}")
        limit = given.get("no_answer_threshold")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Real) or not 0 <= float(limit) <= 1):
            raise UserError(f"no_answer_threshold: must be a probability from 0 to 1, not {limit!r}")
        share = given.get("answerable")
        share = None if share is None else check_answerable(share)
        if given.get("handle_impossible_answer") in (False, 0):
            if limit is not None:
                raise UserError("handle_impossible_answer: False is no_answer_threshold = 1; give only one of them")
            limit = 1.0
        limit = None if limit is None else float(limit)
        words = bool(given.get("align_to_words", True))
        return cls(int(top_k), limit, bool(given.get("layers")), int(longest or 0), words, share)

    def over(self, config: TaskConfig) -> TaskConfig:
        """A task's configuration with these options applied."""
        if self.answerable is not None and config.verb == "answer":
            config = config.assuming(self.answerable)
        if not self.answer_tokens:
            return config
        return replace(config, decoding=replace(config.decoding, answer_tokens=self.answer_tokens))


def check_answerable(share: Any) -> float:
    """A share of questions, between 0 and 1 and neither of them."""
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) < 1:
        raise UserError(f"answerable: must be a share between 0 and 1, not {share!r}")
    return float(share)


def pairs_of(question: QuestionInput, context: str | Sequence[str] | None) -> tuple[list[tuple[str, str]], bool]:
    """(question, context) pairs, and whether several were asked for, so that a list is returned even for one."""
    if isinstance(question, Mapping):
        if context is not None:
            raise UserError("context: is in the dictionary already; give it there or apart, not both")
        return [_pair(question)], False
    if context is None:
        if isinstance(question, Sequence) and not isinstance(question, str):
            return [_pair(entry) for entry in question], True
        raise UserError("context: give the text to look in, as reader(question=..., context=...)")
    if question is None:
        raise UserError("question: give what is asked, as reader(question=..., context=...)")
    return _aligned({"question": question, "context": context})


def check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """UserError unless all are strings and no question is blank. A blank context is fine: it answers nothing."""
    for question, context in pairs:
        _check_string("question", question)
        _check_string("context", context)
        if not question.strip():
            raise UserError("question: is empty; ask something")


def text_pairs(a: str | Sequence[str], b: str | Sequence[str] | None) -> tuple[list[tuple[str, ...]], bool]:
    """Texts, or pairs of texts where there is a `b`, and whether several were given."""
    examples, several = _aligned({"texts": a} | ({} if b is None else {"pairs": b}))
    for text in (text for texts in examples for text in texts):
        _check_string("text", text)
    return examples, several


def _pair(entry: Any) -> tuple[str, str]:
    if not isinstance(entry, Mapping) or not {"question", "context"} <= set(entry):
        raise UserError('give each question as {"question": ..., "context": ...}, or name question and context apart')
    return entry["question"], entry["context"]


def _aligned(given: Mapping[str, Any]) -> tuple[list[Any], bool]:
    """Tuples of one text from each, and whether any is a list; a single string goes with every entry of the others."""
    for name, value in given.items():
        if not isinstance(value, Sequence) or isinstance(value, bytes):
            raise UserError(f"{name}: must be a string or a list of strings, not {type(value).__name__}")
    sizes = {len(value) for value in given.values() if not isinstance(value, str)}
    if len(sizes) > 1:
        raise UserError(f"{' and '.join(given)}: lists of {' and '.join(map(str, sorted(sizes)))}; give equally many")
    size = sizes.pop() if sizes else None
    columns = [[value] * (1 if size is None else size) if isinstance(value, str) else value for value in given.values()]
    return list(zip(*columns)), size is not None


def _check_string(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise UserError(f"{what}: must be a string, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answers to one question, best first, and for each the character offsets it was decoded at."""

    answers: list[Answer]
    chars: list[tuple[int, int]]


def as_records(pairs: Sequence[tuple[str, ...]]) -> list[Record]:
    """Questions without known answers."""
    return [Record(str(row), _clean(pair[0]), _clean(pair[-1]), (), (), "", row) for row, pair in enumerate(pairs)]


def _clean(text: str) -> str:
    """The text with surrogates replaced one for one, so that offsets stay."""
    return SURROGATES.sub("\ufffd", text)


def _sentences(texts: Sequence[tuple[str, ...]]) -> "list[Sentence]":
    from bertvision.data.conll import unlabelled

    return [unlabelled(row, _clean(text))[0] for row, (text,) in enumerate(texts)]


def cut(tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]], config: TaskConfig) -> Windows:
    """Windows as in training: one for each text or pair, or several where the second text of a pair is long."""
    sizes = config.windows
    if config.verb == "entities":
        from bertvision.tasks.tokens import make_windows as make_sentence_windows

        return make_sentence_windows(tokenizer, _sentences(texts), config.labels, sizes.max_length, sizes.overlap)
    if sizes.too_long == "windows":
        return make_windows(tokenizer, as_records(texts), sizes.max_length, sizes.overlap)
    clean, targets = [tuple(map(_clean, example)) for example in texts], np.zeros(len(texts), np.int64)
    return make_text_windows(tokenizer, clean, targets, sizes.max_length, sizes.pairs == "apart")


def collector_of(config: TaskConfig, texts: Sequence[tuple[str, ...]], windows: Windows, top_k: int = 1) -> Any:
    """The collector of a task's logits. Of spans it keeps enough candidates for `top_k` answers, see `merged`."""
    if config.verb == "answer":
        longest = int(windows.lengths.max(initial=1))
        answer_tokens = min(config.decoding.answer_tokens, longest)
        wanted = top_k if top_k == 1 else ALIKE * top_k
        nbest = min(max(config.decoding.nbest, wanted), longest * answer_tokens)
        rule = config.decoding.rule
        return SpanCollector(as_records(texts), windows, nbest=nbest, answer_tokens=answer_tokens, rule=rule)
    if config.verb == "classify":
        from bertvision.tasks.labels import LabelCollector

        return LabelCollector([str(row) for row in range(len(texts))], windows, config.labels)
    if config.verb == "entities":
        from bertvision.tasks.tokens import TokenCollector

        return TokenCollector(_sentences(texts), windows, config.labels)
    from bertvision.tasks.scores import Scale, ScoreCollector

    return ScoreCollector([str(row) for row in range(len(windows))], Scale(*config.scale))


def results_of(predictions: Any, windows: Windows) -> list[Any]:
    """Of each example {"label", "score", "scores": {label: probability}}, or its score: the mean over its windows."""
    if hasattr(predictions, "numbers"):  # of a score; else of labels
        return (np.bincount(windows.example, predictions.numbers) / np.bincount(windows.example)).tolist()
    results = []
    for label, probabilities in zip(predictions.values(), predictions.probabilities.tolist()):
        scores = dict(zip(predictions.labels, probabilities))
        results.append({"label": label, "score": scores[label], "scores": scores})
    return results


def entities_of(collector: Any, texts: Sequence[tuple[str, ...]]) -> list[list[dict[str, Any]]]:
    """Of each text its entities in order, {"label", "text", "start", "end", "score"}: text[start:end] is the entity.

    score: the probability of the label of its least probable word.
    """
    from bertvision.data.conll import unlabelled
    from bertvision.tasks.tokens import entities

    results = []
    for (text,), labels, probabilities in zip(texts, collector.finish().labels, collector.probabilities):
        words = unlabelled(0, _clean(text))[1]
        entities_of_text = []
        for label, first, last in sorted(entities(labels), key=lambda entity: entity[1]):
            start, end = words[first][0], words[last][1]
            place = {"text": text[start:end], "start": start, "end": end}
            entities_of_text.append({"label": label} | place | {"score": float(probabilities[first : last + 1].min())})
        results.append(entities_of_text)
    return results


def probabilities(
    scores: NDArray[np.float64],
    no_answer: float,
    threshold: float,
    among: int,
    calibration: Calibration | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Of the candidates (K,), and of there being no answer: a softmax over the first `among` of them and the latter.

    scores: (K,) best first, finite. no_answer: null score minus best score. With a calibration it gives the probability
    of "no answer", and the candidates share the rest; else it counts from `threshold` on, so that at the threshold
    "no answer" and the best span are equally probable. among: fixed, so that a probability does not depend on how many
    candidates are asked for.
    """
    if not len(scores):
        return scores, 1.0
    if calibration:
        weights, nothing = np.exp(scores - scores[0]), calibration.probability(no_answer)
        return (1 - nothing) * weights / weights[:among].sum(), nothing
    alternatives = np.append(scores - scores[0], no_answer - threshold)
    weights = np.exp(alternatives - alternatives.max())
    shares = weights / (weights[:-1][:among].sum() + weights[-1])
    return shares[:-1], float(shares[-1])


def rank(predictions: SpanPredictions, row: int, context: str, config: TaskConfig, options: Options) -> Ranking:
    """The best answers to question `row` on the caller's own `context`: at least one, at most `options.top_k`.

    "No answer" wins where its probability exceeds `options.limit`, or its score the threshold if that is None. It then
    comes first, with answer "" and start = end = 0. Candidates that are one answer are one, see `merged`.
    """
    limit, doubt = options.limit, float(predictions.no_answer[row])
    count = int(np.isfinite(predictions.scores[row]).sum())  # candidates; fewer where the text is short
    shares, nothing = probabilities(
        predictions.scores[row, :count], doubt, config.threshold, config.decoding.nbest, config.calibration
    )
    silent = (doubt > config.threshold if limit is None else nothing > limit) if count else True
    ranking = Ranking([], [])
    if silent:
        ranking.answers.append({"answer": "", "score": nothing, "start": 0, "end": 0, "no_answer_score": nothing})
        ranking.chars.append((0, 0))
    decoded = predictions.chars[row, :count].tolist()
    spans = [whole(context, start, end, words=options.words) for start, end in decoded]
    room = options.top_k - len(ranking.answers)
    for best, share in merged(context, spans, shares.tolist(), config.decoding.nbest, room):
        start, end = spans[best]
        ranking.answers.append(
            {"answer": context[start:end], "score": share, "start": start, "end": end, "no_answer_score": nothing}
        )
        ranking.chars.append(tuple(decoded[best]))
    return ranking


def merged(
    context: str, spans: Sequence[tuple[int, int]], shares: Sequence[float], among: int, most: int
) -> list[tuple[int, float]]:
    """Candidates that are one answer with a comma more or a word less, as one: (its most probable one, their sum).

    spans: of the context, the most probable first. A span joins the first group whose most probable span it
    overlaps if, articles and signs aside, one of the two has all words of the other, or at least half of all their
    words are common to both. At most `most`: the group of the most probable span first, so that the answer is the one
    that evaluation scores, then the others by their sums. Only the first `among` candidates add to sums, so that these
    do not depend on how many there are.
    """
    best: list[tuple[int, frozenset[str]]] = []  # of each group: its most probable span, and the words of that
    sums: list[float] = []
    for number, (start, end) in enumerate(spans):
        if number >= among and len(best) >= most:
            break
        words = frozenset(normalize(" ".join(WORD.findall(context[start:end]))).split())
        for group, (top, others) in enumerate(best):
            overlaps = start < spans[top][1] and spans[top][0] < end
            common, either = len(words & others), len(words | others)
            if overlaps and (common == min(len(words), len(others)) or 2 * common >= either):
                sums[group] += shares[number] if number < among else 0.0
                break
        else:
            best.append((number, words))
            sums.append(shares[number])
    groups = [(top, total) for (top, _), total in zip(best, sums)]
    return [*groups[:1], *sorted(groups[1:], key=lambda group: -group[1])][:most]


def whole(text: str, start: int, end: int, *, words: bool = True) -> tuple[int, int]:
    """The span start:end, extended so that no letter loses its accents and, with `words`, no word is cut."""
    while start > 0 and _is_mark(text[start]):
        start -= 1
    while end < len(text) and _is_mark(text[end]):
        end += 1
    while words and start > 0 and _is_within_word(text, start):
        start -= 1
    while words and end < len(text) and _is_within_word(text, end):
        end += 1
    return start, end


def _is_within_word(text: str, at: int) -> bool:
    around = text[at - 1 : at + 1]
    return all((letter.isalnum() or _is_mark(letter)) and not UNSPACED.match(letter) for letter in around)


def _is_mark(character: str) -> bool:
    return character >= "\u0300" and unicodedata.category(character).startswith("M")
