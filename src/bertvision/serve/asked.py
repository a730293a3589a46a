"""What a caller may hand to a reader, in all its shapes -> pairs of strings, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from bertvision.errors import UserError, nearest
from bertvision.serve.config import TaskConfig

FORMER = {  # options of the pipeline that transformers had, which a reader decides by itself
    "doc_stride": "windows are cut as the reader was trained",
    "max_seq_len": "windows are cut as the reader was trained",
    "max_question_len": "a question is cut only where it leaves no room for the text",
    "padding": "batches hold texts of like lengths, and hardly any padding",
    "batch_size": "batches are filled by tokens",
}
Asked = str | Sequence[str] | Mapping[str, str] | Sequence[Mapping[str, str]] | None


def pairs_of(question: Asked, context: str | Sequence[str] | None) -> tuple[list[tuple[str, str]], bool]:
    """(question, context) pairs, and whether several were asked for, so that a list is due even for one."""
    if isinstance(question, Mapping):
        if context is not None:
            raise UserError("context: is in the dictionary already; give it there or apart, not both")
        return [_pair(question)], False
    if context is None:
        if isinstance(question, Sequence) and not isinstance(question, str):
            return [_pair(one) for one in question], True
        raise UserError("context: give the text to look in, as reader(question=..., context=...)")
    if question is None:
        raise UserError("question: give what is asked, as reader(question=..., context=...)")
    several = not isinstance(question, str) or not isinstance(context, str)
    questions, contexts = _aligned("question", question, "context", context)
    return list(zip(questions, contexts)), several


def text_pairs(a: str | Sequence[str], b: str | Sequence[str] | None) -> tuple[list[tuple[str, ...]], bool]:
    """Texts, or pairs of texts where there is a `b`, and whether several were given."""
    _check_texts("texts", a)
    several = not isinstance(a, str) or not (b is None or isinstance(b, str))
    examples: list[tuple[str, ...]]
    if b is None:
        examples = [(a,)] if isinstance(a, str) else [(text,) for text in a]
    else:
        examples = list(zip(*_aligned("texts", a, "pairs", b)))
    for texts in examples:
        for text in texts:
            _check_string("text", text)
    return examples, several


def check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """UserError unless all are strings and no question is blank. A blank context is fine: it answers nothing."""
    for question, context in pairs:
        _check_string("question", question)
        _check_string("context", context)
        if not question.strip():
            raise UserError("question: is empty; ask something")


@dataclass(frozen=True, slots=True)
class Options:
    """How answers are wanted. limit: "no answer" where its probability lies above; None: by the reader's own threshold.
    answer_tokens: the most an answer may have, 0: as the reader was tuned for. words: none begins or ends in a word."""

    top_k: int = 1
    limit: float | None = None
    layers: bool = False
    answer_tokens: int = 0
    words: bool = True

    def over(self, config: TaskConfig) -> TaskConfig:
        """A task's configuration with these options laid over it."""
        if not self.answer_tokens:
            return config
        return replace(config, decoding=replace(config.decoding, answer_tokens=self.answer_tokens))


def check_options(
    top_k: Any = 1,
    no_answer_threshold: Any = None,
    layers: bool = False,
    max_answer_len: Any = None,
    handle_impossible_answer: bool | None = None,
    align_to_words: bool = True,
) -> Options:
    """UserError unless all are possible. The last three are those of the pipeline that transformers had."""
    for name, count in (("top_k", top_k), ("max_answer_len", 1 if max_answer_len is None else max_answer_len)):
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise UserError(f"{name}: must be a whole number from 1 up, not {count!r}")
    limit = no_answer_threshold
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Real) or not 0 <= float(limit) <= 1):
        raise UserError(f"no_answer_threshold: must be a probability from 0 to 1, not {limit!r}")
    if handle_impossible_answer is not None and not handle_impossible_answer:
        if limit is not None:
            raise UserError("handle_impossible_answer: False is no_answer_threshold = 1; give only one of them")
        limit = 1.0
    limit, longest = None if limit is None else float(limit), int(max_answer_len or 0)
    return Options(int(top_k), limit, bool(layers), longest, bool(align_to_words))


def refuse_unknown(options: Mapping[str, Any], known: Sequence[str]) -> None:
    """UserError if there is any option."""
    for name in options:
        if name in FORMER:
            raise UserError(f"{name}: {FORMER[name]}; leave it out")
        raise UserError(f"{name}: a reader has no such option; {nearest(name, known)}")


def _pair(one: Any) -> tuple[str, str]:
    if not isinstance(one, Mapping) or not {"question", "context"} <= set(one):
        raise UserError('give each question as {"question": ..., "context": ...}, or name question and context apart')
    return one["question"], one["context"]


def _aligned(
    name: str, ones: str | Sequence[Any], other: str, twos: str | Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Both as lists of one length; a single string goes with every entry of the other."""
    _check_texts(name, ones)
    _check_texts(other, twos)
    if isinstance(ones, str):
        ones = [ones] * (1 if isinstance(twos, str) else len(twos))
    if isinstance(twos, str):
        twos = [twos] * len(ones)
    if len(ones) != len(twos):
        raise UserError(
            f"{name} and {other}: lists of {len(ones)} and {len(twos)}; give as many of one as of the other"
        )
    return list(ones), list(twos)


def _check_texts(what: str, value: Any) -> None:
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise UserError(f"{what}: must be a string or a list of strings, not {type(value).__name__}")


def _check_string(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise UserError(f"{what}: must be a string, not {type(value).__name__}")
